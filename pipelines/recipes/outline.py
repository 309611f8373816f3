"""The steps of a recipe by name, and which of them read what others make; nothing of the run itself is needed.

``agentmill.pipelines.recipes.plan`` checks a recipe before it runs, tables and models included. This only reads one
that has been checked, wherever the run lies now.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from itertools import chain
from typing import Any

import msgspec

from agentmill.pipelines.operators.operator import Operator
from agentmill.pipelines.operators.registry import OPERATORS
from agentmill.pipelines.operators.train import Training
from agentmill.pipelines.recipes.grammar import FORK, ITERATE, OF_A_STEP, Fork, Iterate, Recipe, output_name
from agentmill.pipelines.recipes.plan import LAST
from agentmill.schemas.config import validate
from agentmill.schemas.errors import UserError


class Planned(msgspec.Struct, frozen=True):
    """A step: its name in the run, the steps and the entries of ``data`` that it reads; a model is read, too.

    ``group`` is what it is called in every round of ``iterate``; ``round`` is 0 outside of one.
    """

    name: str
    operator: str
    group: str
    round: int = 0
    reads: list[str] = []
    data: list[str] = []


class Place(msgspec.Struct, frozen=True):
    """Where steps are: before their names is ``prefix``, and the same without the round is ``group``."""

    prefix: str = ""
    group: str = ""
    round: int = 0

    def route(self, name: str) -> Place:
        """A route of a ``fork`` at this place."""
        return Place(f"{self.prefix}{name}/", f"{self.group}{name}/", self.round)

    def turn(self, number: int) -> Place:
        """A round of an ``iterate`` at this place."""
        return Place(f"{self.prefix}round-{number:02d}/", self.group, number)


def planned(recipe: Recipe) -> list[Planned]:
    """The steps in the order they run. Raises ``UserError`` for an ``iterate`` or a ``fork`` that is none."""
    return list(walk(recipe.steps, Place(), {}, set(recipe.data)))


def walk(steps: list[dict[str, Any]], place: Place, known: dict[str, str], data: Set[str]) -> Iterator[Planned]:
    """The steps of a list; ``known`` says which step a reference means, and learns of what each step makes."""
    for given in steps:
        if given.get("operator") == ITERATE:
            iterate = validate(Iterate, given, ITERATE)
            for number in range(1, iterate.rounds + 1):
                yield from walk(iterate.steps, place.turn(number), known, data)
        elif given.get("operator") == FORK:
            yield from routes(validate(Fork, given, FORK), place, known, data)
        else:
            yield one(given, place, known, data)


def routes(fork: Fork, place: Place, known: dict[str, str], data: Set[str]) -> Iterator[Planned]:
    """The steps of a ``fork``: what a route makes is known after it by the name of the route."""
    before = dict(known)
    for route, steps in fork.routes.items():
        inner = dict(before)
        yield from walk(steps, place.route(route), inner, data)
        for reference, step in inner.items():
            if before.get(reference) != step:
                model, at, _ = reference.partition("@")
                known[f"{model}@{route}" if at else f"{route}/{reference}"] = step


def one(given: dict[str, Any], place: Place, known: dict[str, str], data: Set[str]) -> Planned:
    """A step. What it reads is left open if this version does not know its operator."""
    operator, output = str(given.get("operator")), output_name(given)
    name = place.prefix + output
    stage = stage_of(operator, given)
    named = [] if stage is None else list(chain(*stage.tables().values(), stage.policies().values()))
    reads = dict.fromkeys(known[reference] for reference in named if reference in known)
    outside = [each for each in named if each in data and each not in known]
    step = Planned(name, operator, place.group + output, place.round, list(reads), outside)
    known[output] = name
    if stage is not None:
        known.update({f"{output}/{side}": name for side in stage.sides})
    if isinstance(stage, Training):
        known[f"{stage.model.partition('@')[0]}@{LAST}"] = name
    return step


def stage_of(operator: str, given: dict[str, Any]) -> Operator | None:
    """The parameters of a step, if this version can read them."""
    parameters = {key: value for key, value in given.items() if key not in OF_A_STEP}
    try:
        stage: Operator = validate(OPERATORS.load(operator), parameters, operator)
    except UserError:
        return None
    return stage
