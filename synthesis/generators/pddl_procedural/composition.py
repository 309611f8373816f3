"""How a world is composed: a core and up to two features, weighted by the words of the inspiration."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence

import msgspec

from agentmill.synthesis.generators.pddl_procedural import benches, boards, demands, exchanges, hurdles, journeys
from agentmill.synthesis.generators.pddl_procedural.draft import Draft
from agentmill.synthesis.generators.pddl_procedural.theme import Theme
from agentmill.synthesis.generators.procedural import matches

MAX_ACTIONS = 6
MAX_PARAMETERS = 4
EMPHASIS = 3.0
"""What each keyword found in the inspiration adds to the weight of a part."""

Build = Callable[[Draft, random.Random], None]


class Part(msgspec.Struct, frozen=True):
    """A core or a feature: how it is built, how likely it is, and the word stems that make it likelier."""

    name: str
    build: Build
    keywords: tuple[str, ...]
    weight: float = 1.0
    fits: Callable[[Draft], bool] = lambda _: True


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


CORES: tuple[Part, ...] = (
    Part("fetch", journeys.fetch, _words("carry bring fetch collect take find"), 3.0),
    Part("freight", journeys.freight, _words("transport deliver ship cargo truck travel drive"), 3.0),
    Part("survey", journeys.survey, _words("explore report inspect study learn look search research"), 2.0),
    Part("meeting", journeys.meeting, _words("meet friend team together people"), 1.5),
    Part("process", benches.process, _words("clean cook prepare make step process"), 1.5),
    Part("batch", benches.batch, _words("machine oven batch treat factory"), 1.5),
    Part("assemble", benches.assemble, _words("build assemble create recipe combine craft design"), 1.0),
    Part("paint", benches.paint, _words("paint color art draw picture"), 1.0),
    Part("tanks", benches.tanks, _words("water fill tank liquid flow level oil"), 1.0),
    Part("jobs", benches.jobs, _words("plan schedule project task job work order manage"), 1.0),
    Part("stack", boards.stack, _words("stack pile tower block sort"), 1.0),
    Part("store", boards.store, _words("store box pack organize keep"), 1.0),
    Part("panel", boards.panel, _words("switch device control electric computer network"), 1.0),
    Part("relay", exchanges.relay, _words("pass share exchange message communicat"), 1.0),
    Part("market", exchanges.market, _words("buy sell trade market money price economy business"), 1.5),
)

FEATURES: tuple[Part, ...] = (
    Part("worksite", demands.worksite, _words("make repair cook prepare clean"), 1.5, demands.fits_worksite),
    Part("register", demands.register, _words("record check form list"), 1.0, demands.fits_register),
    Part(
        "consumables", demands.consumables, _words("cost pay money energy ticket fuel"), 1.0, demands.fits_consumables
    ),
    Part("rest", demands.rest, _words("rest sleep health tired energy"), 1.0, demands.fits_rest),
    Part("locks", hurdles.locks, _words("lock key secur safe password"), 1.5, hurdles.fits_locks),
    Part("permits", hurdles.permits, _words("permit law access rule allow"), 1.0, hurdles.fits_permits),
    Part("closures", hurdles.closures, _words("open close light dark"), 1.0, hurdles.fits_closures),
    Part("power", demands.power, _words("power electric energy switch"), 1.0, demands.fits_power),
    Part("tools", demands.tools, _words("tool use hand repair"), 1.0, demands.fits_tools),
    Part("checks", demands.checks, _words("check quality test prepare"), 1.0, demands.fits_checks),
    Part("shutters", hurdles.shutters, _words("door open load"), 0.7, hurdles.fits_shutters),
    Part("capacity", hurdles.capacity, _words("room space limit full"), 1.0, hurdles.fits_capacity),
    Part("visits", hurdles.visits, _words("visit tour trip travel"), 0.7, hurdles.fits_visits),
)


def compose(theme: Theme, text: str, chance: random.Random) -> tuple[Draft, list[str]]:
    """A world told in ``theme``, and the names of its parts, core first."""
    draft = Draft(theme)
    core = _pick(CORES, text, chance)
    core.build(draft, chance)
    names = [core.name]
    for _ in range(chance.choices((0, 1, 2), (1, 4, 4))[0]):
        fitting = [part for part in FEATURES if part.name not in names and part.fits(draft)]
        if fitting:
            part = _pick(fitting, text, chance)
            extended = copy.deepcopy(draft)
            part.build(extended, chance)
            if _small(extended):
                draft = extended
                names.append(part.name)
    return draft, names


def _pick(parts: Sequence[Part], text: str, chance: random.Random) -> Part:
    weights = [part.weight * (1.0 + EMPHASIS * matches(text, part.keywords)) for part in parts]
    return chance.choices(parts, weights)[0]


def _small(draft: Draft) -> bool:
    """Whether the world is still small enough to be told in a short prompt."""
    longest = max(len(action.parameters) for action in draft.actions.values())
    return len(draft.actions) <= MAX_ACTIONS and longest <= MAX_PARAMETERS
