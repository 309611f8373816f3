"""Coding problems from a grammar of accesses, readings and questions and a few kinds of environments, without a model.

An inspiration text chooses the theme; the seed decides which problem it is.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from agentmill.schemas.ids import derive_seed
from agentmill.schemas.records.task import EnvironmentSpec, Inspiration
from agentmill.synthesis.environments.codegym.problem import write_problem
from agentmill.synthesis.environments.codegym.structure import problem_structure
from agentmill.synthesis.generators.codegym_procedural.composition import (
    COLLECTIONS,
    Theme,
    accesses,
    compose,
    questions,
    readings,
    themes,
)
from agentmill.synthesis.generators.codegym_procedural.puzzles import (
    Made,
    arrangement,
    counter,
    lock,
    maze,
    network,
    orders,
    scales,
    search,
)
from agentmill.synthesis.generators.procedural import BACKEND, choose_theme, proposal

FAMILY = "codegym"


class ProceduralGenerator:
    """Proposes coding problems from a seeded grammar; no model is asked."""

    async def propose(self, inspiration: Inspiration, seed: int) -> EnvironmentSpec:
        """A problem; same inspiration and seed, same problem."""
        return propose(inspiration, seed)


def propose(inspiration: Inspiration, seed: int) -> EnvironmentSpec:
    """The problem of ``inspiration`` and ``seed``. ``lineage.notes`` names the theme and the parts."""
    chance = random.Random(derive_seed(BACKEND, FAMILY, inspiration.inspiration_id, seed))
    theme = choose_theme(themes(), lambda each: each.keywords.split(), inspiration.text, chance)
    (draw,) = chance.choices(list(KINDS), weights=list(KINDS.values()))
    problem, parts = draw(theme, chance)
    return proposal(
        "codegym",
        inspiration,
        seed,
        {"theme": theme.name, "parts": parts},
        name="-".join([theme.name, *parts]),
        source=write_problem(problem),
        structure_digest=problem_structure(problem),
    )


def collection(theme: Theme, chance: random.Random) -> Made:
    """A question about hidden things that are reached and seen in some way."""
    question = chance.choice(questions(chance.choice(COLLECTIONS)))
    reading = chance.choice([each for each in readings() if question.collection in each.fits])
    ordered = question.ordered or reading.ordered
    access = chance.choice([each for each in accesses() if each.ordered or not ordered])
    return compose(access, reading, question, theme), [access.name, reading.name, question.name]


KINDS: dict[Callable[[Theme, random.Random], Made], int] = {
    collection: 60,
    network: 14,
    arrangement: 8,
    counter: 8,
    search: 3,
    maze: 2,
    orders: 2,
    lock: 2,
    scales: 1,
}
"""What problems there are, with their weights."""
