"""Toolboxes from a grammar of entities, relations and operations, without a model.

An inspiration text chooses the theme; the seed decides which tables there are, what hangs on what, and which tools
work on them. After AgentScaler, whose databases and read and write tools a model writes.
"""

from __future__ import annotations

import random

from agentmill.schemas.ids import derive_seed
from agentmill.schemas.records.task import EnvironmentSpec, Inspiration
from agentmill.synthesis.environments.toolbox.structure import toolbox_structure
from agentmill.synthesis.environments.toolbox.toolbox import Toolbox, write_toolbox
from agentmill.synthesis.generators.procedural import BACKEND, choose_theme, proposal
from agentmill.synthesis.generators.toolbox_procedural.reads import add_reads
from agentmill.synthesis.generators.toolbox_procedural.tables import entities, rows
from agentmill.synthesis.generators.toolbox_procedural.vocabulary import Theme, themes
from agentmill.synthesis.generators.toolbox_procedural.writes import add_writes

FAMILY = "toolbox"


class ProceduralGenerator:
    """Proposes toolboxes from a seeded grammar; no model is asked."""

    async def propose(self, inspiration: Inspiration, seed: int) -> EnvironmentSpec:
        """A toolbox; same inspiration and seed, same toolbox."""
        return propose(inspiration, seed)


def propose(inspiration: Inspiration, seed: int) -> EnvironmentSpec:
    """The toolbox of ``inspiration`` and ``seed``. ``lineage.notes`` names the theme and the parts."""
    chance = random.Random(derive_seed(BACKEND, FAMILY, inspiration.inspiration_id, seed))
    theme = choose_theme(themes(), lambda each: each.keywords.split(), inspiration.text, chance)
    toolbox, parts = compose(theme, chance)
    return proposal(
        "toolbox",
        inspiration,
        seed,
        {"theme": theme.name, "parts": parts},
        name="-".join([theme.name, *(table.name for table in toolbox.tables[3:])]),
        source=write_toolbox(toolbox),
        structure_digest=toolbox_structure(toolbox),
    )


def compose(theme: Theme, chance: random.Random) -> tuple[Toolbox, list[str]]:
    """A toolbox in the words of ``theme``, and the names of the parts of its tools."""
    draft = entities(theme, chance)
    add_reads(draft, chance)
    add_writes(draft, chance)
    toolbox = Toolbox(
        about=theme.about, tables=draft.tables(), rows=rows(draft, chance), tools=tuple(draft.tools.values())
    )
    return toolbox, draft.parts
