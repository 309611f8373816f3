"""Planning worlds from a grammar, after AgentGen (Hu et al., 2024), without a model.

An inspiration text chooses a theme and makes features likelier that its words name; the seed decides the rest.
"""

from __future__ import annotations

import random
import re

from agentmill.schemas.ids import derive_seed
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Inspiration
from agentmill.synthesis.environments.pddl.structure import domain_structure
from agentmill.synthesis.environments.pddl.writer import domain_text
from agentmill.synthesis.generators.pddl_procedural.composition import compose
from agentmill.synthesis.generators.pddl_procedural.draft import Draft
from agentmill.synthesis.generators.pddl_procedural.vocabulary import THEMES
from agentmill.synthesis.generators.procedural import BACKEND, choose_theme, proposal

_PLACEHOLDERS = ("X", "Y", "Z", "W")


class ProceduralGenerator:
    """Proposes planning worlds from a seeded grammar; no model is asked."""

    async def propose(self, inspiration: Inspiration, seed: int) -> EnvironmentSpec:
        """A world; same inspiration and seed, same world."""
        return propose(inspiration, seed)


def propose(inspiration: Inspiration, seed: int) -> EnvironmentSpec:
    """The world of ``inspiration`` and ``seed``. ``lineage.notes`` names the theme and the parts it was composed of."""
    chance = random.Random(derive_seed(BACKEND, inspiration.inspiration_id, seed))
    theme = choose_theme(THEMES, lambda each: each.keywords, inspiration.text, chance)
    draft, parts = compose(theme, inspiration.text, chance)
    name = "-".join([theme.name, *parts])
    domain = draft.domain(name)
    return proposal(
        "pddl",
        inspiration,
        seed,
        {"theme": theme.name, "parts": parts},
        name=name,
        source=domain_text(domain),
        parameters={
            "predicate_text": draft.predicate_text,
            "action_text": draft.action_text(),
            "rules": told_rules(draft),
            "problems": _problems(draft),
        },
        structure_digest=domain_structure(domain),
    )


def told_rules(draft: Draft) -> str:
    """The rules in a few sentences, then every command with capital letters for names of objects."""
    commands = [_form(text) for text in draft.action_text().values()]
    return f"{' '.join(draft.rules)}\nCommands: {'; '.join(commands)}."


def _form(text: str) -> str:
    """``take {1} in {0}`` as ``take X in Y``: placeholders in the order of the text."""
    order = list(dict.fromkeys(re.findall(r"{(\d)}", text)))
    return re.sub(r"{(\d)}", lambda found: _PLACEHOLDERS[order.index(found[1])], text)


def _problems(draft: Draft) -> JsonObject:
    """The scheme of ``agentmill.synthesis.generators.pddl_tasks.scheme``."""
    word = draft.theme.kind
    pools = {word(r): {"count": list(n), "names": list(draft.theme.objects(r))} for r, n in draft.kinds.items()}
    return {
        "objects": {kind: pool for kind, pool in pools.items() if pool["count"] != [0, 0]},
        "start": draft.start,
        "goals": draft.goals,
    }
