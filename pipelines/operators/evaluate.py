"""``evaluate``: models side by side on the same held-out tasks, through the same rollout and verification stages.

Each model plays each split once, and once more with its answers constrained to admissible actions where ``constrained``
names it, so that skill is distinguished from format. How it plays is a rollout operator with parameters of its own, so
that an agent is evaluated as it acts: its roles, its context, its sampling. Tables are in
``SPLIT/MODEL/{trajectories,verdicts}``, what they come to in ``evaluation.json``.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
from pydantic import Field, model_validator

from agentmill.pipelines.diagnosis import group_lines
from agentmill.pipelines.evaluation import BY, METHOD, Episode, episodes_of, measure, paired_difference
from agentmill.pipelines.operators.agent import DEFAULT, OPERATOR, agent, collect, rollout_keys
from agentmill.pipelines.operators.annotations import check_constrained
from agentmill.pipelines.operators.bounds import Asked, Bounds, Rows, most, sum_asked, total
from agentmill.pipelines.operators.operator import Inputs, Name, StepContext, TableNames, expect
from agentmill.pipelines.operators.rollout import Acting
from agentmill.pipelines.operators.run_context import RunContext
from agentmill.pipelines.operators.selection_tables import NOT_SELECTED
from agentmill.pipelines.operators.splits import check_chosen
from agentmill.pipelines.operators.task_groups import TaskGroups, check_fields
from agentmill.pipelines.operators.task_step import StepResult, TaskStep
from agentmill.pipelines.operators.verify import Verify, operator_of
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.config import validate
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.records.manifest import write_atomically
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.tables import Counts, Manifest, Table
from agentmill.synthesis.verifiers.check_outcome import CheckOutcome

ACTOR = "actor"
TASKS, ENVIRONMENTS = "tasks", "environments"
RESULT = "evaluation.json"
CONSTRAINED = "_constrained"
DIFFERENCE = "paired_difference"


class Play(msgspec.Struct, frozen=True):
    """One model on one split; ``label`` is what the results call it."""

    split: str
    label: str
    model: str
    constrained: bool


class Evaluate(TaskStep):
    """Success, invalid actions, loops and costs of models on held-out tasks, and the paired difference of two."""

    result: ClassVar[str] = RESULT
    primary: ClassVar[str] = "tasks"
    verb: ClassVar[str | None] = "evaluate"
    table_roles: ClassVar[Sequence[str]] = ("tasks", "environments")

    models: Annotated[dict[Name, str], Field(min_length=1)] = Field(
        description="what to compare, by the names the results use; the last is compared with the first"
    )
    tasks: TableNames = Field(description="tables of tasks")
    environments: TableNames = Field(description="tables of the environments of these tasks")
    splits: Annotated[list[Name], Field(min_length=1)] = Field(
        ["held_out_tasks", "held_out_environments"], description="splits of the tasks to play"
    )
    constrained: list[str] = Field([], description="models to evaluate with admissible actions only, too")
    share: float = Field(1.0, gt=0, le=1, description="of these tasks only so many, chosen by their ids")
    by: list[str] = Field(
        [], description="fields of tasks (skills, difficulty …), for each of whose values there are measures, too"
    )
    rollout: dict[str, Any] = Field(
        {OPERATOR: DEFAULT},
        description="how the models act: `operator` (sample, expert, multi_agent or memory) and its parameters, for "
        "example k, temperature, context, roles; these may also be given in the step itself. By default `sample`, one "
        "episode per task, with the sampling of the models",
    )

    @model_validator(mode="before")
    @classmethod
    def _with_the_parameters_of_the_rollout(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        try:
            return collect(given, list(cls.model_fields))
        except UserError as error:
            raise ValueError(str(error)) from error

    @model_validator(mode="after")
    def _known_names(self) -> Evaluate:
        for name in self.constrained:
            if name not in self.models:
                raise ValueError(
                    f"`constrained` names {name!r}, which is not in `models`.{near_match(name, self.models)}"
                )
        for key, names in (("constrained", self.constrained), ("splits", self.splits), ("by", self.by)):
            if len(set(names)) < len(names):
                raise ValueError(f"`{key}` names one twice: {', '.join(names)}")
        taken = next((name for name in self.models if name.endswith(CONSTRAINED) or name == DIFFERENCE), None)
        if taken is not None:
            raise ValueError(
                f"`models` has {taken!r}: names ending in {CONSTRAINED} and {DIFFERENCE!r} are those of results; call"
                " the model otherwise"
            )
        try:
            free = self._agents()
            constrained = [self._agent(run) for run in self.runs() if run.constrained]
        except UserError as error:
            raise ValueError(f"rollout: {error}") from error
        if constrained and any(each.constrain == "admissible" for each in free.values()):
            raise ValueError("`constrained` adds what `constrain: admissible` of the rollout asks of all; give one")
        return self

    @classmethod
    def keys_with_defaults(cls, step: Mapping[str, Any]) -> set[str]:
        """Also those of the rollout, so that models are evaluated as they were sampled: with the same scaffold."""
        return super().keys_with_defaults(step) | rollout_keys(step.get("rollout", {}))

    def tables(self) -> dict[str, list[str]]:
        """Those of the step, and what else its rollout reads."""
        return {**self._any_agent().tables(), **super().tables()}

    def policies(self) -> dict[str, str]:
        """The models, by the names the results use; those of other roles of the rollout as ``rollout/ROLE``."""
        others = self._any_agent().policies()
        return {**self.models, **{f"rollout/{role}": name for role, name in others.items() if role != ACTOR}}

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """An evaluation, which is no table."""
        expect(reads, TASKS, "Task")
        check_fields(self.by)
        self._any_agent().writes(reads)
        return "Evaluation"

    def check_models(self, models: Mapping[str, ModelConfig]) -> None:
        """Those of each agent. Raises ``UserError`` for models that cannot play it."""
        for play in self.runs():
            try:
                self._agent(play).check_models(self.roles(play.model, models))
            except UserError as error:
                raise UserError(f"models.{play.model}: {error}", error.code) from error

    def bounds(self, rows: Mapping[str, Rows], models: Mapping[str, ModelConfig]) -> Bounds:
        """As ``Operator.bounds``: each model plays each split, and writes no table."""
        found = [self._agent(play).bounds(rows, self.roles(play.model, models)) for play in self.runs()]
        by_role: dict[str, list[Asked]] = {}
        for play, bounds in zip(self.runs(), found, strict=True):
            for role, asked in bounds.asked.items():
                by_role.setdefault(play.model if role == ACTOR else f"rollout/{role}", []).append(asked)
        asked_of_roles = {role: sum_asked(each) for role, each in by_role.items()}
        reads, episodes = total(each.reads for each in found), total(each.episodes for each in found)
        return Bounds(
            reads=reads,
            rows=Rows(n=0),
            episodes=episodes,
            asked=asked_of_roles,
            factors={"episodes": episodes, "turns": most(each.rows.turns for each in found)},
        )

    def wants_admissible(self) -> str | None:
        """As ``Operator.wants_admissible``, of ``constrained`` models or of the rollout."""
        constrained = f"constrained: {', '.join(self.constrained)}" if self.constrained else None
        return constrained or self._any_agent().wants_admissible()

    def check_inputs(self, inputs: Inputs) -> None:
        """Every split needs tasks to play; a constrained model needs environments that list admissible actions."""
        check_constrained(self, inputs)
        check_chosen(inputs[TASKS], self.splits, self.share)
        self._any_agent().check_inputs(inputs)

    def run(
        self, inputs: Inputs, models: Mapping[str, ModelConfig], context: StepContext, run: RunContext
    ) -> StepResult:
        """Play, judge and compare; the evaluation is split, then model, then measures."""
        plays = list(self.runs())
        arena = Arena(inputs=inputs, context=context, run=run, operator=self.rollout[OPERATOR])
        played = [arena.play(each, self._agent(each), self.roles(each.model, models)) for each in plays]
        # After all is played: a table without models stops the servers, which the next model or split may still need.
        judged = [arena.judge(each, self._verification()) for each in plays]
        tables = {each: arena.tables(each) for each in plays}
        groups = TaskGroups(self.by, inputs, TASKS, "evaluate") if self.by else None
        if groups is not None:
            groups.load()
        results = settle(context.folder, tables, list(self.models), groups)
        return StepResult(
            counts=sum_counts(played),
            reasons=sum_reasons(played),
            seconds=sum(manifest.seconds for manifest in [*played, *judged]),
            evaluation=results,
            notes=list(group_lines(results)),
        )

    def runs(self) -> Iterator[Play]:
        """What is played, one model after the other, so that each is served once."""
        for model in self.models:
            for constrained in (False, True) if model in self.constrained else (False,):
                for split in self.splits:
                    yield Play(split, model + CONSTRAINED * constrained, model, constrained)

    def roles(self, name: str, models: Mapping[str, ModelConfig]) -> dict[str, ModelConfig]:
        """The ``models`` of a rollout by role, with the one that is evaluated as ``name`` as its actor."""
        others = [role for role in self._any_agent().policies() if role != ACTOR]
        return {ACTOR: models[name], **{role: models[f"rollout/{role}"] for role in others}}

    def _agents(self) -> dict[str, Acting]:
        """The rollout of each model, on the first split."""
        return {name: self._agent(Play(self.splits[0], name, name, False)) for name in self.models}

    def _any_agent(self) -> Acting:
        """The rollout of the first model: they differ in their actor only."""
        return self._agent(next(self.runs()))

    def _agent(self, run: Play) -> Acting:
        """The rollout of one model on one split. Raises ``UserError`` for a mistake in its parameters."""
        constrain = {"constrain": "admissible"} if run.constrained else {}
        sources = {TASKS: self.tasks, ENVIRONMENTS: self.environments}
        step = {"policy": run.model, "split": run.split, "share": self.share, **sources}
        return agent({**self.rollout, **constrain}, **step)

    def _verification(self) -> Verify:
        """The verdicts on them."""
        given = {"of": ["trajectories"], "tasks": self.tasks, "environments": self.environments}
        return validate(operator_of(CheckOutcome), given, "evaluate")


class Arena(msgspec.Struct, frozen=True, kw_only=True):
    """Makes the tables of an evaluation. All models play with the same seed, so that they meet the same states."""

    inputs: Inputs
    context: StepContext
    run: RunContext
    operator: str

    def play(self, play: Play, agent: Acting, models: Mapping[str, ModelConfig]) -> Manifest:
        """Make the trajectories of one model on one split, or find them made."""
        context = self._context(play, "trajectories", self.operator)
        return self.run.make(agent, self.inputs, models, context)

    def judge(self, play: Play, verifier: Verify) -> Manifest:
        """Make the verdicts on these trajectories, or find them made."""
        inputs = {role: self.inputs[role] for role in (TASKS, ENVIRONMENTS)}
        played = [Table.open(self.folder(play, "trajectories"))]
        return self.run.make(verifier, {**inputs, "of": played}, {}, self._context(play, "verdicts", "check_outcome"))

    def _context(self, play: Play, table: str, operator: str) -> StepContext:
        name = f"{self.context.name}/{play.split}/{play.label}/{table}"
        return msgspec.structs.replace(self.context, operator=operator, name=name, folder=self.folder(play, table))

    def folder(self, play: Play, table: str) -> Path:
        """The folder of one of its tables."""
        return self.context.folder / play.split / play.label / table

    def tables(self, play: Play) -> tuple[Table, Table]:
        """The trajectories of one model on one split, and the verdicts on them."""
        return Table.open(self.folder(play, "trajectories")), Table.open(self.folder(play, "verdicts"))


def settle(
    folder: Path, tables: Mapping[Play, tuple[Table, Table]], models: Sequence[str], groups: TaskGroups | None = None
) -> JsonObject:
    """The results of ``tables``, read from ``evaluation.json`` if that was made from the same, and written there."""
    inputs = {f"{run.split}/{run.label}": [table.digest for table in pair] for run, pair in tables.items()}
    made_from = {"models": list(models), "inputs": inputs, "intervals": METHOD}
    made_from |= {} if groups is None else {BY: list(groups.by), "group_inputs": groups.digests}
    file = folder / RESULT
    held: JsonObject = {}
    # One that is damaged is made again: all that is in it comes from the tables.
    with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        held = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    if any(held.get(key) != made_from.get(key) for key in (*made_from, BY)):
        held = {**made_from, "splits": compare(tables, models, groups)}
        text = msgspec.json.format(msgspec.json.encode(held), indent=2)
        write_atomically(file, text + b"\n", folder)
    results: JsonObject = held["splits"]
    return results


def compare(
    tables: Mapping[Play, tuple[Table, Table]], models: Sequence[str], groups: TaskGroups | None = None
) -> JsonObject:
    """Split, then model, then its measures, with those of ``groups`` under ``by``; besides the models the paired
    difference of the last and the first."""
    results: JsonObject = {}
    for split in dict.fromkeys(run.split for run in tables):
        episodes = {
            run.label: episodes_of(trajectories.rows(), verdicts.rows())
            for run, (trajectories, verdicts) in tables.items()
            if run.split == split
        }
        begun = {run.label: begun_episodes(played) for run, (played, _) in tables.items() if run.split == split}
        results[split] = {
            label: msgspec.to_builtins(msgspec.structs.replace(measure(found), unscored=begun[label] - len(found)))
            for label, found in episodes.items()
        }
        if groups is not None:
            for label, found in episodes.items():
                results[split][label][BY] = measures_of_groups(found, groups.by, groups.of)
        reference, model = models[0], models[-1]
        difference = paired_difference(episodes[reference], episodes[model])
        if reference != model and difference is not None:
            sides = {"model": model, "reference": reference}
            results[split][DIFFERENCE] = {**msgspec.to_builtins(difference), **sides}
    return results


def begun_episodes(played: Table) -> int:
    """The episodes that were to be played, dropped ones, too; not those of tasks that no selection keeps."""
    manifest = played.manifest
    return manifest.counts.read - manifest.reasons.get(NOT_SELECTED, 0)


def measures_of_groups(
    episodes: Sequence[Episode], by: Sequence[str], groups: Mapping[str, Sequence[tuple[str, str]]]
) -> JsonObject:
    """Field, then value, then the measures of the tasks that have it; one of several values counts for each.

    ``groups`` has (field, value) by task, of the fields in ``by``.
    """
    grouped: dict[tuple[str, str], list[Episode]] = defaultdict(list)
    for episode in episodes:
        for each in groups.get(episode.task_id, ()):
            grouped[each].append(episode)
    found: JsonObject = {field: {} for field in by}
    for field, value in sorted(grouped):
        found[field][value] = msgspec.to_builtins(measure(grouped[field, value]))
    return found


def sum_counts(manifests: Sequence[Manifest]) -> Counts:
    """The counts of several tables together."""
    names = ("read", "used", "dropped", "written")
    return Counts(**{name: sum(getattr(manifest.counts, name) for manifest in manifests) for name in names})


def sum_reasons(manifests: Sequence[Manifest]) -> dict[str, int]:
    """The reasons of several tables together."""
    reasons: Counter[str] = Counter()
    for manifest in manifests:
        reasons.update(manifest.reasons)
    return dict(reasons)
