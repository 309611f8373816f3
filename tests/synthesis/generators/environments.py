"""Planning worlds for tests of generators: one from the grammar, one as a model would write it."""

from __future__ import annotations

from typing import Any

import msgspec

from agentmill.schemas.records.task import EnvironmentSpec, Inspiration
from agentmill.synthesis.generators.pddl_llm.answer import read_answer
from agentmill.synthesis.generators.pddl_procedural.generator import propose
from agentmill.synthesis.prompts import prompt


def inspiration(text: str = "Explain how a lock works.", inspiration_id: str = "i1") -> Inspiration:
    """A piece of text."""
    return Inspiration(inspiration_id=inspiration_id, text=text)


def grammar_environment(seed: int = 0) -> EnvironmentSpec:
    """A world of the procedural generator."""
    return propose(inspiration(), seed)


def ferry(replaced: dict[str, str] | None = None, **parameters: Any) -> EnvironmentSpec:
    """The seed world of the prompt, with texts in its domain replaced and parameters overridden."""
    answer = read_answer(prompt("pddl_world_seed"))
    source = answer.domain
    for old, new in (replaced or {}).items():
        assert old in source
        source = source.replace(old, new)
    return EnvironmentSpec(
        environment_id="ferry",
        family="pddl",
        name="ferry",
        source=source,
        parameters={**answer.texts, "problems": {"example": answer.problem}, **parameters},
    )


def with_predicate(spec: EnvironmentSpec, name: str, text: str) -> EnvironmentSpec:
    """``spec`` with one more text of a predicate."""
    texts = {**spec.parameters["predicate_text"], name: text}
    return msgspec.structs.replace(spec, parameters={**spec.parameters, "predicate_text": texts})
