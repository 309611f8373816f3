"""The steps of a recipe by name, and which of them read what others make; nothing of the run itself is needed.

``agentmill.pipelines.recipes.plan`` checks a recipe before it runs, tables and models included. This only reads one
that has been checked, wherever the run lies now.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from agentmill.pipelines.operators.operator import Operator
from agentmill.pipelines.operators.registry import OPERATORS
from agentmill.pipelines.operators.train import Training
from agentmill.pipelines.recipes.grammar import (
    ALL,
    BEST,
    PREVIOUS,
    Fork,
    Iterate,
    Recipe,
    output_name,
    parameters_of,
    round_name,
)
from agentmill.pipelines.recipes.known_models import LAST
from agentmill.pipelines.recipes.short_forms import FORK, ITERATE
from agentmill.pipelines.recipes.stopping import decide
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
    """Where steps are: before their names is ``prefix``, and the same without the round is ``group``.

    ``folder`` is that of the run.
    """

    prefix: str = ""
    group: str = ""
    round: int = 0
    folder: Path = Path()

    def route(self, name: str) -> Place:
        """A route of a ``fork`` at this place."""
        return Place(f"{self.prefix}{name}/", f"{self.group}{name}/", self.round, self.folder)

    def turn(self, prefix: str, number: int) -> Place:
        """A round of an ``iterate`` at this place."""
        return Place(f"{self.prefix}{prefix}{round_name(number)}/", self.group, number, self.folder)


def planned(recipe: Recipe, folder: Path) -> list[Planned]:
    """The steps of the run in ``folder``, in their order; those of rounds that an ``until`` has ended are left out.

    Raises ``UserError`` for an ``iterate`` or a ``fork`` that is none.
    """
    return list(walk(recipe.steps, Place(folder=folder), {}, set(recipe.data)))


def walk(steps: list[dict[str, Any]], place: Place, known: dict[str, str], data: Set[str]) -> Iterator[Planned]:
    """The steps of a list; ``known`` says which step a reference means, and learns of what each step makes."""
    for given in steps:
        if given.get("operator") == ITERATE:
            yield from rounds(validate(Iterate, given, ITERATE), place, known, data)
        elif given.get("operator") == FORK:
            yield from routes(validate(Fork, given, FORK), place, known, data)
        else:
            yield one(given, place, known, data)


def rounds(iterate: Iterate, place: Place, known: dict[str, str], data: Set[str]) -> Iterator[Planned]:
    """The steps of an ``iterate``, as many rounds as it has come to."""
    turns = [place.turn(iterate.prefix, number) for number in range(1, iterate.rounds + 1)]
    best = None
    if iterate.until is not None:
        decision = decide(iterate.until, [place.folder / turn.prefix for turn in turns])
        turns, best = turns[: len(decision.values)] if decision.stops else turns, decision.best
    for turn in turns:
        yield from walk(iterate.steps, turn, known, data)
    version = LAST if best is None else round_name(best)
    for reference, step in list(known.items()):
        model, at, of = reference.partition("@")
        if at and of == version and iterate.until is not None:
            known[f"{model}@{BEST}"] = step


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
    reads = dict.fromkeys(step for reference in named for step in meant(reference, known, place.round))
    outside = [each for each in named if each in data and each not in known]
    step = Planned(name, operator, place.group + output, place.round, list(reads), outside)
    of_round = [f"@{place.round}"] if place.round else []
    for version in ["", *of_round]:
        known[f"{output}{version}"] = name
        if stage is not None:
            known.update({f"{output}/{side}{version}": name for side in stage.sides})
    if isinstance(stage, Training):
        versions = [LAST, *([round_name(place.round)] if place.round else [])]
        known.update({f"{stage.model.partition('@')[0]}@{version}": name for version in versions})
    return step


def meant(reference: str, known: Mapping[str, str], round_: int) -> list[str]:
    """The steps that a reference means, in round ``round_``."""
    name, at, version = reference.partition("@")
    if at and version == ALL:
        return [step for each, step in known.items() if re.fullmatch(rf"{re.escape(name)}@\d+", each)]
    if at and version == PREVIOUS:
        reference = f"{name}@{round_ - 1}"
    elif at and (number := version.removeprefix("round-").lstrip("0")).isdecimal() and f"{name}@{number}" in known:
        reference = f"{name}@{number}"
    return [known[reference]] if reference in known else []


def stage_of(operator: str, given: dict[str, Any]) -> Operator | None:
    """The parameters of a step, if this version can read them."""
    try:
        stage: Operator = validate(OPERATORS.load(operator), parameters_of(given), operator)
    except UserError:
        return None
    return stage
