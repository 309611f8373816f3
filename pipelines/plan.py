"""From a recipe to a plan: every step with its folder, its checked parameters, its inputs and its models.

Planning starts nothing and writes nothing; what it lets through can only fail for what happens while it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from pipelines.models import ModelConfig
from pipelines.operators import OPERATORS
from pipelines.recipe import FORK, ITERATE, NAME, Fork, Iterate, Recipe, one_of, output_name
from pipelines.stages.procedure import MODEL
from pipelines.stages.stage import Stage, StageContext
from schemas.config import validate
from schemas.errors import UserError
from schemas.ids import derive_seed
from schemas.tables import Table

BASE, LAST = "base", "last"
RESERVED = ("logs", "trainings")
"""Folders of a run directory that belong to no step."""


class Output(msgspec.Struct, frozen=True):
    """A table that a step may read; ``record`` names the type of its rows."""

    name: str
    folder: Path
    record: str


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step that is ready to run. ``name`` is unique in the run (``round-01/explored``); ``where`` is for messages.

    ``seed`` is what the step uses unless its parameters have one.
    """

    where: str
    name: str
    folder: Path
    operator: str
    stage: Stage
    inputs: dict[str, list[Output]]
    models: dict[str, ModelConfig]
    round: int
    seed: int


class Plan(msgspec.Struct, frozen=True):
    """A recipe and its steps in the order they run."""

    recipe: Recipe
    run_dir: Path
    steps: list[Step]


class Place(msgspec.Struct, frozen=True):
    """Where steps stand: ``where`` in the recipe, for messages, and ``prefix`` of their names in the run directory."""

    where: str
    prefix: str = ""
    round: int = 0

    def below(self, where: str, part: str, round_: int | None = None) -> Place:
        """The place of steps that a control step here repeats or runs under the name ``part``."""
        return Place(f"{self.where}.{where}", f"{self.prefix}{part}/", self.round if round_ is None else round_)


def make_plan(recipe: Recipe) -> Plan:
    """The plan of ``recipe``. Raises ``UserError`` for the first mistake in it."""
    planner = Planner(recipe)
    return Plan(recipe, planner.run_dir, list(planner.expand(recipe.steps, Place("steps"))))


class Planner:
    """What is known while the steps are read from first to last."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.run_dir = Path(recipe.run_dir)
        self._outputs = {name: external(name, path) for name, path in recipe.data.items()}
        self._models = {name: {BASE: model} for name, model in recipe.models.items()}
        self._will_be_trained: set[str] = set()
        self._taken: set[str] = {*RESERVED, *recipe.data}

    def expand(self, steps: list[dict[str, Any]], place: Place) -> Iterator[Step]:
        """The steps of a list, with the rounds of an ``iterate`` and the routes of a ``fork`` one after the other."""
        for position, given in enumerate(steps):
            here = msgspec.structs.replace(place, where=f"{place.where}.{position}")
            if given.get("operator") == ITERATE:
                yield from self._rounds(given, here)
            elif given.get("operator") == FORK:
                yield from self._routes(given, here)
            else:
                yield self._step(given, here)

    def _rounds(self, given: dict[str, Any], place: Place) -> Iterator[Step]:
        """The steps of an ``iterate``. Where its body trains a model, ``@last`` is the declared one until then."""
        if place.round:
            raise UserError(f"{place.where}: iterate inside of iterate is not possible")
        iterate = validate(Iterate, given, place.where)
        self._will_be_trained = {str(step["model"]).partition("@")[0] for step in iterate.steps if "model" in step}
        for number in range(1, iterate.rounds + 1):
            yield from self.expand(iterate.steps, place.below("steps", f"round-{number:02d}", number))
        self._will_be_trained = set()

    def _routes(self, given: dict[str, Any], place: Place) -> Iterator[Step]:
        """The steps of a ``fork``; what its routes make is known afterwards by the name of the route."""
        if place.round:
            raise UserError(f"{place.where}: fork inside of iterate is not possible; put the iterate into its routes")
        fork = validate(Fork, given, place.where)
        before, models_before = self._outputs, self._models
        after, models_after = dict(before), {name: dict(known) for name, known in models_before.items()}
        for route, steps in fork.routes.items():
            if route in (BASE, LAST):
                raise UserError(f"{place.where}: a route cannot be called {route!r}, which is a version of a model")
            self._name(route, place)
            self._outputs, self._models = dict(before), {name: dict(known) for name, known in models_before.items()}
            yield from self.expand(steps, place.below(f"routes.{route}", route))
            after |= {f"{route}/{name}": made for name, made in self._outputs.items() if made is not before.get(name)}
            for name, known in self._models.items():
                if known.get(LAST) is not models_before[name].get(LAST):
                    models_after[name][route] = known[LAST]
        self._outputs, self._models = after, models_after

    def _step(self, given: dict[str, Any], place: Place) -> Step:
        """One step; what it makes is known to the steps after it."""
        if not isinstance(given.get("operator"), str):
            raise UserError(f"{place.where}: a step needs an operator, for example operator: sample")
        operator = one_of(given["operator"], [*OPERATORS, ITERATE, FORK], "operator", place.where)
        where = f"{place.where} ({operator})"
        name = self._name(output_name(given), msgspec.structs.replace(place, where=where))
        parameters = {key: value for key, value in given.items() if key not in ("operator", "as")}
        stage: Stage = validate(OPERATORS.load(operator), parameters, where)
        step = Step(
            where=where,
            name=name,
            folder=self.run_dir / name,
            operator=operator,
            stage=stage,
            inputs={role: [self._output(each, where) for each in names] for role, names in stage.tables().items()},
            models={role: self._model(reference, where) for role, reference in stage.policies().items()},
            round=place.round,
            seed=derive_seed("step", self.recipe.seed, name),
        )
        self._learn(step, output_name(given))
        return step

    def _name(self, name: str, place: Place) -> str:
        """The name of a step or route in the run. Raises ``UserError`` if it cannot be one, or is taken."""
        if not NAME.fullmatch(name):
            raise UserError(
                f"{place.where}: {name!r} is no name; expected letters, digits, - and _, for example as: explored"
            )
        full = place.prefix + name
        if full in self._taken:
            raise UserError(f"{place.where}: the name {full!r} is taken; give this step another one with as: …")
        self._taken.add(full)
        return full

    def _output(self, name: str, where: str) -> Output:
        """What ``name`` refers to: the newest output of that name, or an entry of ``data``."""
        return self._outputs[one_of(name, self._outputs, "table", where)]

    def _model(self, reference: str, where: str) -> ModelConfig:
        """The model that ``NAME``, ``NAME@base``, ``NAME@last`` or, after a fork, ``NAME@ROUTE`` refers to."""
        name, _, version = reference.partition("@")
        known = self._models[one_of(name, self._models, "model", where)]
        version = one_of(version or BASE, {**known, LAST: None}, "version of a model", where)
        if version in known:
            return known[version]
        if name in self._will_be_trained:
            return known[BASE]
        raise UserError(
            f"{where}: no step before this one trains {name!r}; write {name}@{BASE} for the model as declared"
        )

    def _learn(self, step: Step, name: str) -> None:
        """Take note of what a step makes. Raises ``UserError`` if it cannot work on what it is given."""
        reads = {role: [output.record for output in outputs] for role, outputs in step.inputs.items()}
        try:
            record = step.stage.writes(reads)
            if not step.inputs:
                step.stage.seeds(StageContext(seed=step.seed, round=step.round))
        except UserError as error:
            raise UserError(f"{step.where}: {error}") from error
        self._outputs[name] = Output(name, step.folder, record)
        if record == MODEL:
            self._note_training(step)

    def _note_training(self, step: Step) -> None:
        """From now on ``@last`` of the model that ``step`` trains is what it makes."""
        references = {role: reference.partition("@")[0] for role, reference in step.stage.policies().items()}
        for role, reference in references.items():
            if not step.models[role].managed:
                use = "be trained" if role == "model" else f"be a {role}"
                expected = "expected policy: vllm with a model folder or bundled:…, and no endpoints"
                raise UserError(f"{step.where}: model {reference!r} cannot {use}; {expected}")
        learned = step.models["model"].model_copy(update={"model": str(step.folder)})
        self._models[references["model"]][LAST] = learned


def external(name: str, path: str) -> Output:
    """A table of ``data``. Raises ``UserError`` if there is none at ``path``."""
    try:
        table = Table.open(Path(path))
        return Output(name, Path(path), table.record_type.__name__)
    except UserError as error:
        raise UserError(f"data.{name}: {error}") from error
