"""From a recipe to a plan: every step with its folder, its checked parameters, its inputs and its models.

Planning starts nothing and writes nothing; what it lets through can only fail for what happens while it runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from agentmill.pipelines.engine.operation import SIDES
from agentmill.pipelines.operators.annotations import check_annotation_needs, check_names
from agentmill.pipelines.operators.evaluate import Evaluate
from agentmill.pipelines.operators.operator import NAME, Operator, StepContext
from agentmill.pipelines.operators.registry import OPERATORS
from agentmill.pipelines.operators.train import Training
from agentmill.pipelines.recipes.grammar import (
    BEST,
    ROUND_NAME,
    Fork,
    Iterate,
    Recipe,
    one_of,
    output_name,
    parameters_of,
    round_name,
)
from agentmill.pipelines.recipes.known_models import BASE, LAST, KnownModels, check_kinds, check_trainable
from agentmill.pipelines.recipes.known_tables import OF_ROUNDS, KnownTables, external
from agentmill.pipelines.recipes.parts import WHOLE, Part, left_out
from agentmill.pipelines.recipes.short_forms import FORK, ITERATE
from agentmill.pipelines.recipes.step import Output, Step
from agentmill.pipelines.recipes.stopping import Decision, check_watched, decide
from agentmill.schemas.config import validate
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.ids import derive_seed
from agentmill.synthesis.environments import check_admissible

REVISIONS = "revisions.json"
"""The file of a run directory with the revisions of what the run reads from elsewhere."""

RESERVED = ("logs", "trainings")
"""Folders of a run directory that belong to no step."""


class Plan(msgspec.Struct, frozen=True):
    """A recipe and its steps in the order they run. ``revisions`` are of what it reads from elsewhere, by name.

    ``data`` are the folders of the tables that were made before; those on the Hub are downloaded. ``left_out`` are
    the steps that are not run, with reasons: those that are not in ``part``. ``undecided`` are the rounds whose measure
    for ``until`` is not known, and which it does not count.
    """

    recipe: Recipe
    run_dir: Path
    steps: list[Step]
    revisions: dict[str, str] = {}
    data: dict[str, Path] = {}
    part: Part = WHOLE
    left_out: dict[str, str] = {}
    undecided: Sequence[str] = ()


class Place(msgspec.Struct, frozen=True):
    """Where steps are: ``where`` in the recipe, for messages, and ``prefix`` of their names in the run directory."""

    where: str
    prefix: str = ""
    round: int = 0

    def below(self, where: str, part: str, round_: int | None = None) -> Place:
        """The place of steps that a control step here repeats or runs under the name ``part``."""
        return Place(f"{self.where}.{where}", f"{self.prefix}{part}/", self.round if round_ is None else round_)


def make_plan(recipe: Recipe, part: Part = WHOLE, revisions: Mapping[str, str] | None = None) -> Plan:
    """The plan of ``recipe``, of which ``part`` is run. Raises ``UserError`` for the first mistake in it.

    ``revisions`` of what it reads from elsewhere are by default those that its run began with.
    """
    planner = Planner(recipe, revisions)
    steps = list(planner.expand(recipe.steps, Place("steps")))
    without = left_out(steps, part, planner.unreached)
    for name, error in planner.models.untrainable.items():
        if name not in without:
            raise error
    return Plan(
        recipe, planner.run_dir, steps, planner.revisions, planner.data, part, without, tuple(planner.undecided)
    )


class Planner:
    """What is known while the steps are read from first to last."""

    def __init__(self, recipe: Recipe, revisions: Mapping[str, str] | None = None) -> None:
        self.recipe = recipe
        self.run_dir = recipe.folder
        self.revisions = revisions_of(self.run_dir) if revisions is None else dict(revisions)
        made_elsewhere = {name: external(name, path, self.revisions) for name, path in recipe.places.items()}
        self.data = {name: output.folder for name, output in made_elsewhere.items()}
        self._tables = KnownTables(made_elsewhere)
        self.models = KnownModels(recipe, self.revisions)
        self.undecided: list[str] = []
        self.unreached: dict[str, str] = {}
        """The steps of rounds that are left out since ``until`` has ended their loop, each with its last step."""
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
            raise UserError(f"{place.where}: iterate inside of iterate is not possible", ErrorCode.STEPS_NESTED)
        iterate = validate(Iterate, given, place.where)
        if iterate.as_ is not None:
            self._name(iterate.as_, place)
        folders = [f"{iterate.prefix}{round_name(number)}" for number in range(1, iterate.rounds + 1)]
        decision = self._decision(iterate, folders, place)
        self.models.enter_loop(iterate.steps, iterate.certain)
        self._tables.enter_loop(iterate.steps, iterate.certain)
        ended = len(decision.values) if decision.stops else iterate.rounds
        for number, folder in enumerate(folders[:ended], 1):
            yield from self.expand(iterate.steps, place.below("steps", folder, number))
        in_rounds = [[f"{place.prefix}{folder}/{output_name(step)}" for step in iterate.steps] for folder in folders]
        self.unreached |= dict.fromkeys(chain(*in_rounds[ended:]), in_rounds[ended - 1][-1])
        self.models.leave_loop(decision if iterate.until is not None else None)
        self._tables.leave_loop()

    def _decision(self, iterate: Iterate, folders: Sequence[str], place: Place) -> Decision:
        """Whether the loop has ended early, and its best round. Raises ``UserError`` without such an evaluation."""
        if iterate.until is None:
            return Decision([], None, False)
        evaluations = {output_name(step): step for step in iterate.steps if step.get("operator") == "evaluate"}
        name = one_of(iterate.until.step, evaluations, "evaluate step of this loop in `until.metric`:", place.where)
        where = f"{place.prefix}{name} (evaluate, {place.where})"
        check_watched(iterate.until, validate(Evaluate, parameters_of(evaluations[name]), where), place.where)
        decision = decide(iterate.until, [self.run_dir / f"{place.prefix}{folder}" for folder in folders])
        unknown = [folder for folder, value in zip(folders, decision.values, strict=False) if value is None]
        self.undecided += [f"{place.prefix}{folder}: {iterate.until.metric}" for folder in unknown]
        return decision

    def _routes(self, given: dict[str, Any], place: Place) -> Iterator[Step]:
        """The steps of a ``fork``; what its routes make is known afterwards by the name of the route."""
        if place.round:
            raise UserError(
                f"{place.where}: fork inside of iterate is not possible; put the iterate into its routes",
                ErrorCode.STEPS_NESTED,
            )
        fork = validate(Fork, given, place.where)
        tables, models = self._tables.copied(), self.models.copied()
        tables_after, models_after = self._tables.copied(), self.models.copied()
        for route, steps in fork.routes.items():
            if route in (BASE, LAST, BEST) or ROUND_NAME.fullmatch(route):
                raise UserError(
                    f"{place.where}: a route cannot be called {route!r}, which is a version of a model",
                    ErrorCode.NAME_TAKEN,
                )
            # A route is a folder of the run, too.
            self._name(route, place)
            self._tables.restore(tables)
            self.models.restore(models)
            yield from self.expand(steps, place.below(f"routes.{route}", route))
            tables_after |= self._tables.made_in(route, tables)
            self.models.made_in(route, models, models_after)
        self._tables.restore(tables_after)
        self.models.restore(models_after)

    def _step(self, given: dict[str, Any], place: Place) -> Step:
        """One step; what it makes is known to the steps after it."""
        if not isinstance(given.get("operator"), str):
            near = near_match(str(next(iter(given), "")), [*OPERATORS, ITERATE, FORK])
            raise UserError(
                f"{place.where}: a step needs an operator, for example {{sample: explored, …}}.{near}",
                ErrorCode.MISSING_KEY,
            )
        operator = one_of(given["operator"], [*OPERATORS, ITERATE, FORK], "operator", place.where)
        where = f"{place.prefix}{output_name(given)} ({operator}, {place.where})"
        name = self._name(output_name(given), msgspec.structs.replace(place, where=where))
        parameters: Operator = validate(OPERATORS.load(operator), parameters_of(given), where)
        try:
            parameters = parameters.pinned(self.revisions)
        except UserError as error:
            raise UserError(f"{where}: {error}", error.code) from error
        inputs = {
            role: self._tables.of_role(role, names, where, place.round) for role, names in parameters.tables().items()
        }
        step = Step(
            where=where,
            parameters=self._one_name_a_table(parameters, where, place),
            context=StepContext(
                operator=operator,
                name=name,
                folder=self.run_dir / name,
                # From its name, so that steps before it can come and go without changing what it makes.
                seed=derive_seed("step", self.recipe.seed, name),
                round=place.round,
            ),
            inputs=inputs,
            models={role: self.models.named(reference, where) for role, reference in parameters.policies().items()},
            min_used=share_of(given, where),
        )
        self._refuse_inputs_inside(step)
        self._learn(step, output_name(given))
        return step

    def _one_name_a_table(self, parameters: Operator, where: str, place: Place) -> Operator:
        """The same parameters with names that mean several tables, or none, replaced by those of the tables."""
        names = {name for named in parameters.tables().values() for name in named if name.endswith(OF_ROUNDS)}
        if not names:
            return parameters
        rounds = {name: [each.name for each in self._tables.named(name, where, place.round)] for name in names}
        return parameters.naming_rounds(rounds)

    def _refuse_inputs_inside(self, step: Step) -> None:
        """Raises ``UserError`` if a table of ``data`` lies where the step would write, and may remove what is there."""
        folder = step.folder.resolve()
        for name, held in self.data.items():
            if held.resolve().is_relative_to(folder):
                raise UserError(
                    f"{step.where}: it would write into {step.folder}, where data.{name} lies\n"
                    "give the step another name with as: …, or the run another run_dir",
                    ErrorCode.WRITES_INTO_ITS_INPUT,
                )

    def _name(self, name: str, place: Place) -> str:
        """The name of a step or route in the run. Raises ``UserError`` if it cannot be one, or is taken."""
        if not NAME.fullmatch(name):
            raise UserError(
                f"{place.where}: {name!r} is no name; expected letters, digits, - and _, for example as: explored",
                ErrorCode.NAME_MALFORMED,
            )
        full = place.prefix + name
        if full in self._taken or ROUND_NAME.fullmatch(full):
            raise UserError(
                f"{place.where}: the name {full!r} is taken; give this step another one with as: …",
                ErrorCode.NAME_TAKEN,
            )
        self._taken.add(full)
        return full

    def _learn(self, step: Step, name: str) -> None:
        """Take note of what a step makes. Raises ``UserError`` if it cannot work on what it is given."""
        reads = {role: [output.record for output in outputs] for role, outputs in step.inputs.items()}
        try:
            check_given_once(step)
            record = step.parameters.writes(reads)
            check_kinds(step)
            step.parameters.check_models(step.models)
            check_annotation_needs(step.parameters, reads)
            check_names(
                step.parameters, {role: [each.names for each in outputs] for role, outputs in step.inputs.items()}
            )
            families = check_families(step)
            # A step with inputs looks at them once they are there (``check_inputs``).
            if not step.inputs:
                step.parameters.precheck(step.context)
        except UserError as error:
            raise UserError(f"{step.where}: {error}", error.code) from error
        annotations = step.parameters.annotations()
        names = None if annotations is None else frozenset(annotations)
        families = families if record == "EnvironmentSpec" else None
        sides = [Output(f"{name}/{side}", step.folder / side, SIDES[side].__name__) for side in step.parameters.sides]
        self._tables.add([Output(name, step.folder, record, names, families), *sides], step.context.round)
        if isinstance(step.parameters, Training):
            try:
                check_trainable(step)
            except UserError as error:
                self.models.untrainable[step.name] = error
            self.models.note_training(step, step.parameters, name)


def check_given_once(step: Step) -> None:
    """Raises ``UserError`` for a table that ``step`` is to work on twice, as one of ``NAME@all`` may be."""
    role = step.parameters.primary
    folders = Counter(each.folder.resolve() for each in step.inputs.get(role, ()))
    twice = next((folder for folder, n in folders.items() if n > 1), None)
    if twice is not None:
        raise UserError(f"the table {twice} is given twice in {role}", ErrorCode.GIVEN_TWICE)


def check_families(step: Step) -> frozenset[str] | None:
    """The families of the environments that ``step`` writes, as far as they are known.

    Raises ``UserError`` for families that it cannot work on, and where it wants admissible actions of families that do
    not list them.
    """
    environments = step.inputs.get("environments", ())
    if all(each.families is not None for each in environments):
        step.parameters.check_families(families_of(environments) or frozenset())
    parameter = step.parameters.wants_admissible()
    if parameter is not None:
        check_admissible(parameter, families_of(environments) or ())
    return step.parameters.families(families_of(step.inputs.get(step.parameters.primary, ())))


def families_of(outputs: Sequence[Output]) -> frozenset[str] | None:
    """The families of all environments of some tables that are known; ``None`` if none is."""
    known = [each.families for each in outputs if each.families is not None]
    return frozenset[str]().union(*known) if known else None


def revisions_of(run_dir: Path) -> dict[str, str]:
    """What a run began with, so that it goes on with the same; empty for a new one. Raises ``UserError``."""
    path = run_dir / REVISIONS
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(
            f"{path} is damaged ({error}); remove it to read the newest revisions", ErrorCode.DAMAGED_FILE
        ) from error


def share_of(given: Mapping[str, Any], where: str) -> float:
    """``min_used`` of a step, a share. Raises ``UserError`` for anything else."""
    share = given.get("min_used", 0.0)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise UserError(
            f"{where}: min_used is {share!r}, expected a share of the inputs from 0 to 1", ErrorCode.NUMBER_OUT_OF_RANGE
        )
    return float(share)
