"""From a recipe to a plan: every step with its folder, its checked parameters, its inputs and its models.

Planning starts nothing and writes nothing; what it lets through can only fail for what happens while it runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentmill.pipelines.engine.operation import SIDES
from agentmill.pipelines.operators.annotations import check_annotation_needs, check_names, families_in, names_in
from agentmill.pipelines.operators.operator import NAME, Operator, StepContext
from agentmill.pipelines.operators.registry import OPERATORS
from agentmill.pipelines.operators.train import REWARD_MODEL, Training
from agentmill.pipelines.recipes.grammar import (
    ALL,
    BEST,
    OF_A_STEP,
    PREVIOUS,
    ROUND_NAME,
    Fork,
    Iterate,
    Recipe,
    named_steps,
    one_of,
    output_name,
    round_name,
)
from agentmill.pipelines.recipes.parts import WHOLE, Part, left_out
from agentmill.pipelines.recipes.short_forms import FORK, ITERATE
from agentmill.pipelines.recipes.step import Output, Step
from agentmill.pipelines.recipes.stopping import Decision, decide
from agentmill.pipelines.serving.models import ModelConfig, check_scorer
from agentmill.pipelines.sources.hub import pinned
from agentmill.schemas.config import validate
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.ids import derive_seed
from agentmill.schemas.tables import Table
from agentmill.synthesis.environments import check_admissible

BASE, LAST = "base", "last"
OF_ROUNDS = (f"@{ALL}", f"@{PREVIOUS}")
"""The ends of names that may mean several tables, or none."""

REVISIONS = "revisions.json"
"""The file of a run directory with the revisions of what the run reads from elsewhere."""

RESERVED = ("logs", "trainings")
"""Folders of a run directory that belong to no step."""


class Plan(msgspec.Struct, frozen=True):
    """A recipe and its steps in the order they run. ``revisions`` are of what it reads from elsewhere, by name.

    ``data`` are the folders of the tables that were made before; those on the Hub are downloaded. ``left_out`` are
    the steps that are not run, with reasons: those that are not in ``part``.
    """

    recipe: Recipe
    run_dir: Path
    steps: list[Step]
    revisions: dict[str, str] = {}
    data: dict[str, Path] = {}
    part: Part = WHOLE
    left_out: dict[str, str] = {}


class Place(msgspec.Struct, frozen=True):
    """Where steps are: ``where`` in the recipe, for messages, and ``prefix`` of their names in the run directory."""

    where: str
    prefix: str = ""
    round: int = 0

    def below(self, where: str, part: str, round_: int | None = None) -> Place:
        """The place of steps that a control step here repeats or runs under the name ``part``."""
        return Place(f"{self.where}.{where}", f"{self.prefix}{part}/", self.round if round_ is None else round_)


def make_plan(recipe: Recipe, part: Part = WHOLE) -> Plan:
    """The plan of ``recipe``, of which ``part`` is run. Raises ``UserError`` for the first mistake in it."""
    planner = Planner(recipe)
    steps = list(planner.expand(recipe.steps, Place("steps")))
    without = left_out(steps, part)
    for name, error in planner.untrainable.items():
        if name not in without:
            raise error
    return Plan(recipe, planner.run_dir, steps, planner.revisions, planner.data, part, without)


class Planner:
    """What is known while the steps are read from first to last."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.run_dir = Path(recipe.run_dir)
        self.revisions = revisions_of(self.run_dir)
        self._outputs = {name: external(name, path, self.revisions) for name, path in recipe.data.items()}
        self.data = {name: output.folder for name, output in self._outputs.items()}
        self._models = {name: {BASE: model.named(name)} for name, model in recipe.models.items()}
        self._will_be_trained: set[str] = set()
        self._in_the_loop: set[str] = set()
        self._versions_named = set(re.findall(r"@([a-z]+(?:-[0-9]+)?)", msgspec.json.encode(recipe.steps).decode()))
        self._adapters: set[str] = set()
        self.untrainable: dict[str, UserError] = {}
        """What is wrong with trainings of models that cannot be trained: they may be left out."""
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
        self._will_be_trained = {str(step["model"]).partition("@")[0] for step in iterate.steps if "model" in step}
        self._in_the_loop = {name for _, name in named_steps(iterate.steps)}
        self._forget_rounds()
        ended = len(decision.values) if decision.stops else iterate.rounds
        for number, folder in enumerate(folders[:ended], 1):
            yield from self.expand(iterate.steps, place.below("steps", folder, number))
        if iterate.until is not None:
            self._note_best(decision.best)
        self._will_be_trained = set()
        self._in_the_loop = set()

    def _decision(self, iterate: Iterate, folders: Sequence[str], place: Place) -> Decision:
        """Whether the loop has ended early, and its best round. Raises ``UserError`` if no evaluation tells."""
        if iterate.until is None:
            return Decision([], None, False)
        evaluations = [output_name(step) for step in iterate.steps if step.get("operator") == "evaluate"]
        one_of(iterate.until.step, evaluations, "evaluate step of this loop in `until.metric`:", place.where)
        return decide(iterate.until, [self.run_dir / f"{place.prefix}{folder}" for folder in folders])

    def _forget_rounds(self) -> None:
        """Tables of an earlier loop are called by their newest only, where this loop makes some of the same name."""
        self._outputs = {
            name: made
            for name, made in self._outputs.items()
            if "@" not in name or name.partition("@")[0].partition("/")[0] not in self._in_the_loop
        }

    def _note_best(self, best: int | None) -> None:
        """After a loop ``@best`` is the model of its best round; before it is known, which is no matter, its last."""
        for versions in (self._models[name] for name in self._will_be_trained if name in self._models):
            version = LAST if best is None else round_name(best)
            if version in versions:
                versions[BEST] = versions[version]

    def _routes(self, given: dict[str, Any], place: Place) -> Iterator[Step]:
        """The steps of a ``fork``; what its routes make is known afterwards by the name of the route."""
        if place.round:
            raise UserError(
                f"{place.where}: fork inside of iterate is not possible; put the iterate into its routes",
                ErrorCode.STEPS_NESTED,
            )
        fork = validate(Fork, given, place.where)
        before, models_before = self._outputs, self._models
        after, models_after = dict(before), {name: dict(known) for name, known in models_before.items()}
        for route, steps in fork.routes.items():
            if route in (BASE, LAST, BEST) or ROUND_NAME.fullmatch(route):
                raise UserError(
                    f"{place.where}: a route cannot be called {route!r}, which is a version of a model",
                    ErrorCode.NAME_TAKEN,
                )
            # A route is a folder of the run, too.
            self._name(route, place)
            self._outputs, self._models = dict(before), {name: dict(known) for name, known in models_before.items()}
            yield from self.expand(steps, place.below(f"routes.{route}", route))
            # By identity: a route may make anew what was there by the same name.
            after |= {f"{route}/{name}": made for name, made in self._outputs.items() if made is not before.get(name)}
            for name, known in self._models.items():
                earlier = models_before.get(name)
                if earlier is None or known[BASE] is not earlier[BASE]:
                    models_after[f"{route}/{name}"] = known
                elif known.get(LAST) is not earlier.get(LAST):
                    models_after[name][route] = known[LAST]
        self._outputs, self._models = after, models_after

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
        own = {key: value for key, value in given.items() if key not in OF_A_STEP}
        parameters: Operator = validate(OPERATORS.load(operator), own, where)
        try:
            parameters = parameters.pinned(self.revisions)
        except UserError as error:
            raise UserError(f"{where}: {error}", error.code) from error
        inputs = {role: self._tables(role, names, where, place) for role, names in parameters.tables().items()}
        of_rounds = {name for names in parameters.tables().values() for name in names if name.endswith(OF_ROUNDS)}
        step = Step(
            where=where,
            parameters=parameters.naming_rounds(
                {name: [each.name for each in self._named(name, where, place)] for name in sorted(of_rounds)}
            )
            if of_rounds
            else parameters,
            context=StepContext(
                operator=operator,
                name=name,
                folder=self.run_dir / name,
                # From its name, so that steps before it can come and go without changing what it makes.
                seed=derive_seed("step", self.recipe.seed, name),
                round=place.round,
            ),
            inputs=inputs,
            models={role: self._model(reference, where) for role, reference in parameters.policies().items()},
            min_used=share_of(given, where),
        )
        self._refuse_inputs_inside(step)
        self._learn(step, output_name(given))
        return step

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

    def _tables(self, role: str, names: Sequence[str], where: str, place: Place) -> list[Output]:
        """What the names of a role refer to. Raises ``UserError`` for one that is not known, and if there is none."""
        found = [output for name in names for output in self._named(name, where, place)]
        if not found:
            raise UserError(
                f"{where}: `{role}: {', '.join(names)}` is no table in round {place.round}, which has none before it\n"
                f"name another table with it, for example {role}: [seeds, {names[0]}]",
                ErrorCode.UNKNOWN_NAME,
            )
        return found

    def _named(self, name: str, where: str, place: Place) -> list[Output]:
        """What a name refers to: the newest output of that name, an entry of ``data``, or outputs of some rounds."""
        base, at, version = name.partition("@")
        rounds = self._rounds_of(base)
        if not at:
            return [self._outputs[one_of(base, self._whole(), "table", where)]]
        if not rounds and base not in self._in_the_loop:
            one_of(base, self._whole(), "table", where)
            raise UserError(
                f"{where}: {name!r} names a round, and no iterate makes {base!r}; write {base}",
                ErrorCode.UNKNOWN_NAME,
            )
        if version == ALL:
            return list(rounds.values())
        if version == PREVIOUS and place.round:
            return [rounds[place.round - 1]] if place.round - 1 in rounds else []
        known = [*map(str, rounds), ALL, *([PREVIOUS] if place.round else [])]
        return [rounds[int(one_of(version.removeprefix("round-").lstrip("0"), known, f"round of {base!r}", where))]]

    def _whole(self) -> list[str]:
        """The names of all tables, without those of rounds."""
        return [name for name in self._outputs if "@" not in name]

    def _rounds_of(self, name: str) -> dict[int, Output]:
        """The outputs of that name by round."""
        start = f"{name}@"
        return {int(each.removeprefix(start)): made for each, made in self._outputs.items() if each.startswith(start)}

    def _model(self, reference: str, where: str) -> ModelConfig:
        """The model that ``reference`` names, with the adapters that are served with it."""
        return self._beside_adapters(self._declared_or_trained(reference, where))

    def _declared_or_trained(self, reference: str, where: str) -> ModelConfig:
        """The model that ``NAME``, ``NAME@base``, ``NAME@last`` or, after a fork, ``NAME@ROUTE`` refers to.

        NAME is an entry of ``models`` or the output of a training.
        """
        name, _, version = reference.partition("@")
        known = self._models[one_of(name, self._models, "model", where)]
        version = one_of(version or BASE, {**known, LAST: None}, f"version of the model {name!r}:", where)
        if version in known:
            return known[version]
        if name in self._will_be_trained:
            return known[BASE]
        raise UserError(
            f"{where}: no step before this one trains {name!r}; write {name}@{BASE} for the model as declared",
            ErrorCode.MODEL_NOT_TRAINED_YET,
        )

    def _learn(self, step: Step, name: str) -> None:
        """Take note of what a step makes. Raises ``UserError`` if it cannot work on what it is given."""
        reads = {role: [output.record for output in outputs] for role, outputs in step.inputs.items()}
        try:
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
        for each in [Output(name, step.folder, record, names, families), *sides]:
            self._outputs[each.name] = each
            if step.context.round:
                of_round = f"{each.name}@{step.context.round}"
                self._outputs[of_round] = msgspec.structs.replace(each, name=of_round)
        if isinstance(step.parameters, Training):
            try:
                check_trainable(step)
            except UserError as error:
                self.untrainable[step.name] = error
            self._note_training(step, step.parameters, name)

    def _note_training(self, step: Step, training: Training, name: str) -> None:
        """From now on what ``step`` makes is a model by its ``name``, and ``@last`` of the model that it trains.

        A reward model goes by the name of its step alone: it does not act in the place of what it was trained from.
        """
        if name in self.recipe.models:
            raise UserError(
                f"{step.where}: {name!r} is a model of the recipe; give what is trained another name (as: …)",
                ErrorCode.NAME_TAKEN,
            )
        base = self._declared_or_trained(training.model, step.where)
        if step.name in self.untrainable:
            # Where this training is left out, what cannot be trained acts in the place of the trained model, too.
            self._models[name] = {BASE: base}
            if training.makes != REWARD_MODEL:
                self._note_newest(step, training, base)
            return
        scores = training.makes == REWARD_MODEL
        learned = base.trained(str(base.model if training.keeps_adapter else step.folder), scores)
        if training.keeps_adapter:
            learned = serving(learned, {**learned.server.lora, step.name: str(step.folder)}, step.name)
        if not scores:
            self._adapters |= {step.name} if training.keeps_adapter else set()
            self._note_newest(step, training, learned)
        self._models[name] = {BASE: learned}

    def _note_newest(self, step: Step, training: Training, learned: ModelConfig) -> None:
        """From now on ``learned`` is the newest model that is trained from what ``training`` starts from."""
        versions = self._models[training.model.partition("@")[0]]
        versions[LAST] = learned
        # Adapters that can be named are served, so a round is noted only where the recipe names it.
        if step.context.round and self._versions_named & {round_name(step.context.round), BEST}:
            versions[round_name(step.context.round)] = learned

    def _beside_adapters(self, config: ModelConfig) -> ModelConfig:
        """``config`` with all adapters of its model that can be named now, so that one server serves them all."""
        known = (each for versions in self._models.values() for each in versions.values())
        adapters = {
            each.adapter: each.server.lora[each.adapter]
            for each in known
            if each.managed and each.model == config.model and each.adapter in self._adapters
        }
        if not (config.managed and adapters):
            return config
        return serving(config, {**adapters, **config.server.lora}, config.adapter)


def check_families(step: Step) -> frozenset[str] | None:
    """The families of the environments that ``step`` writes, as far as they are known.

    Raises ``UserError`` where it wants admissible actions of families that do not list them.
    """
    parameter = step.parameters.wants_admissible()
    if parameter is not None:
        check_admissible(parameter, families_of(step.inputs.get("environments", ())) or ())
    return step.parameters.families(families_of(step.inputs.get(step.parameters.primary, ())))


def families_of(outputs: Sequence[Output]) -> frozenset[str] | None:
    """The families of all environments of some tables that are known; ``None`` if none is."""
    known = [each.families for each in outputs if each.families is not None]
    return frozenset[str]().union(*known) if known else None


def check_kinds(step: Step) -> None:
    """Raises ``UserError`` for a model that writes where one has to score, and for the reverse."""
    parameters = step.parameters
    # A reward model may be trained further as one.
    may_score = isinstance(parameters, Training) and parameters.makes == REWARD_MODEL
    for role, name in parameters.policies().items():
        if role in parameters.scorer_roles:
            check_scorer(step.models[role], name)
        elif step.models[role].scores and not may_score:
            raise UserError(
                f"model {name!r} is a reward model, which scores text and cannot act as `{role}`\n"
                "name a model that writes; reward models are for the step scorer and tree_search (value: scorer)",
                ErrorCode.MODEL_OF_WRONG_KIND,
            )


def check_trainable(step: Step) -> None:
    """Raises ``UserError`` for a model that the training ``step`` cannot start from, or be held to."""
    for role, reference in step.parameters.policies().items():
        name, config = reference.partition("@")[0], step.models[role]
        use = "be trained" if role == "model" else f"be a {role}"
        if not config.managed:
            expected = "expected policy: vllm with a model folder or bundled:…, and no endpoints"
            raise UserError(
                f"{step.where}: model {name!r} cannot {use}; {expected}\n"
                "to run everything but trainings and evaluations: agentmill run … --only data",
                ErrorCode.MODEL_OF_WRONG_KIND,
            )
        if config.adapter is not None:
            expected = "train it without lora.merge: false, or start from its base"
            raise UserError(
                f"{step.where}: model {reference!r} is an adapter and cannot {use}; {expected}",
                ErrorCode.MODEL_OF_WRONG_KIND,
            )


def serving(config: ModelConfig, adapters: dict[str, str], adapter: str | None) -> ModelConfig:
    """``config`` with ``adapters`` served with its model, of which ``adapter`` acts."""
    server = config.server.model_copy(update={"lora": adapters})
    return config.model_copy(update={"server": server, "adapter": adapter})


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


def external(name: str, path: str, revisions: dict[str, str]) -> Output:
    """A table of ``data``. Raises ``UserError`` if there is none at ``path``, a folder or an address on the Hub.

    ``revisions`` as for ``Operator.pinned``.
    """
    try:
        table = Table.open(pinned(path, revisions))
        record = table.record_type.__name__
        return Output(name, table.folder, record, names_in(table), families_in(table))
    except UserError as error:
        raise UserError(f"data.{name}: {error}", error.code) from error
