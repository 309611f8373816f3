"""Interpreter environments written by a model: functions over data with examples, and tasks with solutions; one example
of such an environment in the prompt, and repair rounds.

The model's Python runs in the sandbox only. What it says of its functions and tasks is tried out there.
"""

from __future__ import annotations

import json
from string import Template

import msgspec

from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.task import EnvironmentSpec, Inspiration
from agentmill.synthesis.generators.admission import AdmissionLimits
from agentmill.synthesis.generators.author import COPIED, NO_OBJECT, Author, first_fault, read_object
from agentmill.synthesis.generators.interpreter_admission import environment_checks, source_structure
from agentmill.synthesis.policies.policy import Policy
from agentmill.synthesis.prompts import prompt


class Answer(Record):
    """What a model writes; ``Written`` says of what form the last three are."""

    about: str
    source: str
    functions: list[JsonObject]
    data: JsonObject
    tasks: list[JsonObject]


class LlmGenerator:
    """Proposes interpreter environments that ``policy`` writes, with at most ``repairs`` rounds of repair."""

    def __init__(self, policy: Policy, repairs: int = 3, limits: AdmissionLimits = AdmissionLimits()) -> None:
        del limits  # of the search for plans, which there is none of
        self._author = Author(policy, "interpreter", prompt("interpreter_system"), prompt("object_repair"), repairs)

    async def propose(self, inspiration: Inspiration, seed: int) -> EnvironmentSpec:
        """An environment without known faults. Raises ``GenerationError`` (``unrepaired``) with all versions and their
        faults as ``history``, and passes on ``PolicyError``."""
        example = prompt("interpreter_example")
        copied = source_structure(json.loads(example)["source"])
        question = Template(prompt("interpreter_request")).substitute(example=example, inspiration=inspiration.text)

        def read(text: str, repairs: int) -> tuple[EnvironmentSpec | None, str]:
            found = read_object(text)
            if found is None:
                return None, NO_OBJECT
            try:
                answer = msgspec.json.decode(found, type=Answer)
            except (ValueError, RecursionError) as error:
                return None, f"- schema: {error}"
            structure = source_structure(answer.source)
            spec = self._author.draft(
                inspiration,
                seed,
                repairs,
                source=answer.source,
                parameters=parameters(answer),
                structure_digest=structure,
            )
            return spec, first_fault(environment_checks(spec)) or (COPIED if structure == copied else "")

        return await self._author.write(question, inspiration, seed, read)


def parameters(answer: Answer) -> JsonObject:
    """What a spec says of the environment apart from its source; the rules tell of the functions."""
    lines = [f"{each.get('name')}: {each.get('description')}" for each in answer.functions]
    parts = {"functions": answer.functions, "data": answer.data, "tasks": answer.tasks}
    return {"rules": "\n".join([answer.about, *lines]), **parts}
