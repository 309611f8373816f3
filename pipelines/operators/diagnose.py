"""``diagnose``: at which skills, difficulties and environments a model is weak, and how its attempts fail there.

It selects the tasks that have a weak skill, for rollouts and proposals to come; the counts of all groups are in its
manifest (``agentmill.pipelines.diagnosis``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field, model_validator

from agentmill.pipelines.diagnosis import ATTEMPTS, Failed, Group, counts_of, failure_kinds, groups_of, metric
from agentmill.pipelines.engine import stop
from agentmill.pipelines.engine.operation import AnyOperation, Blamed, Result, RowOperation, Unit, identity
from agentmill.pipelines.evaluation import episode_of
from agentmill.pipelines.operators.annotations import COLUMNS as ANNOTATION_COLUMNS
from agentmill.pipelines.operators.annotations import AnnotationIndex, check_annotation_needs, score_within_time
from agentmill.pipelines.operators.difficulty_band import OTHERS, UNSCORED
from agentmill.pipelines.operators.lookup import ATTEMPTS as OF_TASKS
from agentmill.pipelines.operators.lookup import Shards
from agentmill.pipelines.operators.operator import Inputs, StepContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.selection import SelectionParameters, selection_measures
from agentmill.pipelines.operators.selection_tables import Selected
from agentmill.pipelines.operators.task_groups import DIFFICULTY, TaskGroups, check_fields
from agentmill.pipelines.operators.trajectory_index import stream
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.record_kinds import ANNOTATION_ROLES
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.verdict import TaskSelection, Verdict
from agentmill.schemas.views.annotations import Criterion

ROLES = ("verdicts", "quality")
ENVIRONMENT = "environment."
COLUMNS = ("trajectory_id", "task_id", "environment_id", "attempt", "content", "outcome", "usage")
MOST_VALUES = 100
"""Values of a field that are counted one by one, those with most attempts; the others are counted together."""

REST = "(others)"


class Diagnose(SelectionParameters):
    """A selection of the tasks at which a model is weak; success and failures by skill, difficulty or environment."""

    primary: ClassVar[str] = "of"
    verb: ClassVar[str | None] = "curate"
    table_roles: ClassVar[Sequence[str]] = ("of", "attempts", "environments", *ROLES, "selections")
    selectable: ClassVar[Sequence[str]] = (TaskSelection.__name__,)

    of: TableNames = Field(description="tables of tasks")
    attempts: TableNames = Field(description="tables of a model's trajectories on these tasks")
    environments: TableNames | None = Field(default=None, description="tables of environments, for environment.FIELD")
    verdicts: TableNames | None = Field(default=None, description="tables of verdicts on the attempts")
    quality: TableNames | None = Field(default=None, description="tables of counts of the attempts, made by quality")
    by: list[str] = Field(
        default=["skills", DIFFICULTY],
        min_length=1,
        description="fields of tasks: skills, difficulty (in fifths), environment_id, environment.family …",
    )
    score: Criterion = Field(default="outcome", description="success: outcome, or passed:NAME")
    weak: float = Field(default=0.5, gt=0, le=1, description="a group that succeeds less often is weak")
    min_attempts: int = Field(default=5, ge=1, description="a group with fewer attempts is not known to be weak")
    name: str = Field(default="diagnose", min_length=1, description="what the selection is called")

    @model_validator(mode="after")
    def _a_rate(self) -> Diagnose:
        if self.score != "outcome" and not self.score.startswith("passed:"):
            raise ValueError(f"`score: {self.score}` is no success; expected outcome or passed:NAME")
        if len(set(self.by)) < len(self.by):
            raise ValueError(f"`by` names a field twice: {', '.join(self.by)}")
        return self

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Selections of tasks. Raises ``UserError``, also for fields that tasks do not have."""
        expect(reads, "of", "Task")
        expect(reads, "attempts", "Trajectory")
        for role in (each for each in ROLES if each in reads):
            expect(reads, role, ANNOTATION_ROLES[role])
        check_fields(self.by)
        asks = any(field.startswith(ENVIRONMENT) for field in self.by)
        if asks and "environments" not in reads:
            raise UserError("`by` asks a field of environments and needs `environments`", ErrorCode.NEEDS_ANOTHER_KEY)
        if "environments" in reads:
            expect(reads, "environments", "EnvironmentSpec")
            if not asks:
                raise UserError(
                    "nothing asks `environments`; leave it out, or give `by: [environment.family]`",
                    ErrorCode.KEY_NOT_FOR_THIS,
                )
        self.check_selections(reads)
        check_annotation_needs(self, reads)
        return "TaskSelection"

    def annotations(self) -> Sequence[str]:
        """Its selections."""
        return [self.name]

    def check_inputs(self, inputs: Inputs) -> None:
        """Some attempts must be at these tasks. Raises ``UserError``."""
        OF_TASKS.check_some(inputs)

    def notes(self, manifest: Manifest) -> list[str]:
        """The weak groups, and warnings for attempts that do not count."""
        groups = groups_of(manifest.metrics)
        weak = [each for each in groups if self.is_weak(each)]
        few = sum(each.attempts < self.min_attempts for each in groups)
        lines = [f"weak at {each}" for each in weak]
        if not weak:
            lines = [f"weak at none of {len(groups):,} groups (weak: {self.weak:g})"]
        if few:
            lines.append(f"{few:,} groups have fewer attempts than min_attempts: {self.min_attempts}")
        counted = {UNSCORED: "attempts have no score", OTHERS: "attempts are at none of these tasks"}
        found = manifest.metrics
        lines += [
            f"warning: {found[name]:,.0f} {text}, and do not count" for name, text in counted.items() if found.get(name)
        ]
        return lines

    def is_weak(self, group: Group) -> bool:
        """Whether the model succeeds less often there than ``weak``, and enough attempts say so."""
        return group.attempts >= self.min_attempts and group.success < self.weak

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The selections."""
        del context
        chosen = self.selected(inputs, tables_of(inputs, "of"), TaskSelection)
        return Diagnosing(self, inputs, chosen, OF_TASKS.of_others(inputs))


class Diagnosing(RowOperation[Task, TaskSelection]):
    """One selection per task. Every worker reads through the attempts once and keeps counts by task."""

    blamed: ClassVar[Blamed] = "curation"
    chunk_rows: ClassVar[int] = 5_000

    def __init__(self, parameters: Diagnose, inputs: Inputs, chosen: Selected | None, others: int) -> None:
        super().__init__("diagnose", Task, TaskSelection)
        self._parameters = parameters
        self._paths = [path for table in tables_of(inputs, "attempts") for path in table.shards()]
        self._index = AnnotationIndex(inputs, ROLES)
        self._verdicts = Shards(tables_of(inputs, "verdicts"), Verdict, [*ANNOTATION_COLUMNS["verdicts"], "evidence"])
        self._groups = TaskGroups(parameters.by, inputs, "of", "diagnose")
        self._chosen = chosen
        self._others = others
        self._counts: dict[str, Counter[str]] = {}
        self._named: set[tuple[str, str]] = set()
        self._known: dict[tuple[str, str], Group] = {}

    def open(self) -> None:
        """Count the attempts of each task and each group. Raises ``UserError`` for tables that cannot be read."""
        self._index.load()
        self._groups.load()
        if self._chosen is not None:
            self._chosen.load()
        failed = self._failed()
        self._counts = defaultdict(Counter)
        for _, attempt in stream(self._paths, COLUMNS):
            stop.check()
            if attempt.task_id is None:
                continue
            annotations = self._index.of(attempt.trajectory_id)
            found = score_within_time(self._parameters.score, attempt, annotations)
            if found is None:
                self._counts[attempt.task_id][UNSCORED] += 1
            else:
                kinds = failure_kinds(attempt, failed.get(attempt.trajectory_id, ()), annotations.quality)
                self._counts[attempt.task_id] += counts_of(episode_of(attempt, found >= 1), kinds)
        self._known = self._totals()

    def process(self, record: Task, unit: Unit) -> Iterable[Result]:
        """The selection of a task: kept if one of its groups is weak; its score is the least success of these."""
        task_id = identity(record)
        refusal = None if self._chosen is None else self._chosen.refusal(task_id)
        counts = Counter(self._counts.get(task_id, ())) if refusal is None else Counter[str]()
        own = self._own(task_id)
        unscored = counts.pop(UNSCORED, 0)
        measures = {metric(by, value, name): float(n) for by, value in own for name, n in counts.items() if n}
        measures |= {UNSCORED: float(unscored)} if unscored else {}
        measures |= {} if self._chosen is None else self._chosen.measures(task_id)
        known = [self._known[each] for each in own if each in self._known]
        weakest = min(known, key=lambda each: (not self._parameters.is_weak(each), each.success), default=None)
        kept = refusal is None and weakest is not None and self._parameters.is_weak(weakest)
        least = None if weakest is None else weakest.success
        if kept and weakest is not None:
            reason = f"weak: {weakest.by} {weakest.value}"
        else:
            reason = refusal.reason if refusal is not None else "not_measured" if weakest is None else "not_weak"
        selection = TaskSelection(task_id=task_id, name=self._parameters.name, kept=kept, reason=reason, score=least)
        return [Result(input_id=unit[0], outputs=[selection], measures=measures)]

    def measures(self, output: TaskSelection) -> Mapping[str, float]:
        """As ``selection_measures``."""
        return selection_measures(output)

    def summed(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """With the attempts of other tasks."""
        return {**metrics, **({OTHERS: self._others} if self._others else {})}

    def _failed(self) -> dict[str, set[Failed]]:
        """Why verdicts on whole trajectories did not pass; their evidence is not kept, since it may be large."""
        found: dict[str, set[Failed]] = defaultdict(set)
        for each in self._verdicts:
            # Parts (NAME/PART) are named by the verdict on the whole.
            failed = each.passed is False or each.status == "error"
            if each.item is None and failed and "/" not in each.name:
                found[each.trajectory_id].add(Failed.of(each))
        return found

    def _own(self, task_id: str) -> list[tuple[str, str]]:
        """The groups of a task; values beyond ``MOST_VALUES`` are one."""
        found = self._groups.of.get(task_id, [])
        return list(dict.fromkeys(each if each in self._named else (each[0], REST) for each in found))

    def _totals(self) -> dict[tuple[str, str], Group]:
        """The groups over all tasks that are chosen."""
        chosen = [each for each in self._groups.of if self._chosen is None or not self._chosen.refusal(each)]
        sizes: dict[str, Counter[str]] = defaultdict(Counter)
        for task_id in chosen:
            for by, value in self._groups.of[task_id]:
                sizes[by][value] += self._counts.get(task_id, Counter())[ATTEMPTS]
        self._named = {
            (by, value)
            for by, counts in sizes.items()
            for value in sorted(counts, key=lambda each: (-counts[each], each))[:MOST_VALUES]
        }
        totals: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for task_id in chosen:
            for own in self._own(task_id):
                totals[own] += self._counts.get(task_id, Counter())
        return {own: Group(*own, counts) for own, counts in totals.items() if counts[ATTEMPTS]}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_counts": {}, "_known": {}}
