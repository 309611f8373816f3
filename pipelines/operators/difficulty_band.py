"""``difficulty_band``: the tasks that are neither too easy nor too hard for a solver, by its attempts at them.

A task is measured by the mean score of its attempts, which of successes is the pass rate, or by the share of the most
frequent answer. WebRL (arXiv:2411.02337) selects by the score of a critic, Chain-of-Agents (arXiv:2508.13167) by the
pass rate without tools, SPICE (arXiv:2510.24684) prefers tasks that are solved half of the time: these differ in the
attempts, in the score and in the band.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec
from pydantic import Field, model_validator

from agentmill.pipelines.engine import stop
from agentmill.pipelines.engine.operation import AnyOperation, Blamed, Result, RowOperation, Unit, identity
from agentmill.pipelines.operators.annotations import (
    AnnotationIndex,
    check_annotation_needs,
    score_within_time,
    unasked_notes,
)
from agentmill.pipelines.operators.combine import ROLES
from agentmill.pipelines.operators.lookup import ATTEMPTS
from agentmill.pipelines.operators.operator import Inputs, StepContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.selection import LEFT_OUT, SelectionParameters, kept_notes, selection_measures
from agentmill.pipelines.operators.selection_tables import Selected
from agentmill.pipelines.operators.trajectory_index import CONTENT, stream
from agentmill.schemas.conditions import exceeds, reaches
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.record_kinds import ANNOTATION_ROLES
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Selection, TaskSelection
from agentmill.schemas.tables import Table, read_columns
from agentmill.schemas.views.annotations import Criterion
from agentmill.synthesis.verifiers.action_pattern import ActionPattern
from agentmill.synthesis.verifiers.answer_match import answer_key, answer_of

UNKNOWN = TOO_FEW, NO_TASK = "too_few_attempts", "no_task"
"""The reasons why it is not known how hard a task is."""

KEPT = "kept."
"""Before one of these: so many are kept all the same."""

MISSES = TOO_EASY, TOO_HARD = "too_easy", "too_hard"

UNSCORED, NOT_SELECTED, OTHERS = "attempts_unscored", "attempts_not_selected", "attempts_of_other_tasks"
"""Counts of attempts that measure no task, in the manifest."""

TOO_COARSE = "rates_too_coarse"
"""Counts tasks whose band is narrower than the difference that one attempt makes to their rate."""


class DifficultyBand(SelectionParameters):
    """A selection per task, or per trajectory by its task: kept if it is as hard for a solver as is asked.

    There is no ``where``: attempts that were chosen by their success would decide the rate.
    """

    primary: ClassVar[str] = "of"
    verb: ClassVar[str | None] = "curate"
    table_roles: ClassVar[Sequence[str]] = ("of", "attempts", *ROLES, "selections")

    of: TableNames = Field(description="tables of tasks, or of trajectories")
    attempts: TableNames | None = Field(
        default=None,
        description="tables of a solver's trajectories on these tasks; by default the trajectories of `of`",
    )
    verdicts: TableNames | None = Field(default=None, description="tables of verdicts on the attempts")
    values: TableNames | None = Field(default=None, description="tables of values of the attempts")
    by: Literal["score", "vote"] = Field(
        default="score", description="the mean score of the attempts, or the share of the most frequent answer"
    )
    score: Criterion = Field(
        default="outcome", description="by score: the mean of outcome or passed:NAME is the pass rate"
    )
    answer: ActionPattern | None = Field(
        default=None, description="by vote: the action that answers, as {tool: submit}; by default the agent's last one"
    )
    at_least: float | None = Field(default=None, description="a task below this is too hard")
    at_most: float | None = Field(default=None, description="a task above this is too easy")
    min_attempts: int = Field(default=1, ge=1, description="a task with fewer scored attempts is not known")
    unknown: Literal["drop", "keep"] = Field(default="drop", description="what happens to tasks that are not known")
    name: str = Field(default="difficulty_band", min_length=1, description="what the selection is called")

    @model_validator(mode="after")
    def _a_band(self) -> DifficultyBand:
        ends = [end for end in (self.at_least, self.at_most) if end is not None]
        if not ends:
            raise ValueError("without `at_least` and `at_most` all tasks would be kept; give one of them, or both")
        if ends != sorted(ends):
            raise ValueError(f"no number is at least {ends[0]:g} and at most {ends[1]:g}")
        outside = next((end for end in ends if self.is_rate and not 0 <= end <= 1), None)
        if outside is not None:
            raise ValueError(f"{outside:g} is no rate; expected a number from 0 to 1, such as 0.25 for one of four")
        return self

    @model_validator(mode="after")
    def _what_fits(self) -> DifficultyBand:
        if self.by == "vote" and "score" in self.model_fields_set:
            raise ValueError(f"`by: vote` asks no score, so leave `score: {self.score}` out")
        if self.by != "vote" and self.answer is not None:
            raise ValueError("`answer` goes with `by: vote`; `by: score` compares no answers, so leave it out")
        return self

    @property
    def is_rate(self) -> bool:
        """Whether n attempts give a multiple of 1/n."""
        return self.by == "vote" or self.score == "outcome" or self.score.startswith("passed:")

    def is_too_coarse(self, attempts: int) -> bool:
        """Whether the band is narrower than the difference that one of so many attempts makes."""
        low, high = (0.0 if self.at_least is None else self.at_least), (1.0 if self.at_most is None else self.at_most)
        return self.is_rate and not reaches(high - low, 1 / attempts)

    def misses(self, rate: TaskRate) -> str | None:
        """Why a task of this rate is not in the band; ``None`` if it is."""
        if rate.value is None or rate.n < self.min_attempts:
            return TOO_FEW
        if self.at_least is not None and not reaches(rate.value, self.at_least):
            return TOO_HARD
        return TOO_EASY if self.at_most is not None and exceeds(rate.value, self.at_most) else None

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Selections of what ``of`` holds. Raises ``UserError`` for other tables, and for tasks without attempts."""
        record = expect(reads, "of", Task.__name__, Trajectory.__name__)
        if "attempts" in reads:
            expect(reads, "attempts", Trajectory.__name__)
        elif record == Task.__name__:
            raise UserError(
                "difficulty_band of tasks needs `attempts`, by which they are measured\n"
                "name tables of a solver's trajectories on these tasks, such as sample makes",
                ErrorCode.NEEDS_ANOTHER_KEY,
            )
        for role in ROLES:
            if role in reads:
                expect(reads, role, ANNOTATION_ROLES[role])
        self.check_selections(reads)
        check_annotation_needs(self, reads)
        return (TaskSelection if record == Task.__name__ else Selection).__name__

    def annotations(self) -> Sequence[str]:
        """Its selections."""
        return [self.name]

    def check_inputs(self, inputs: Inputs) -> None:
        """Attempts must be there, and some of them at these tasks. Raises ``UserError``."""
        ATTEMPTS.check_some(inputs)

    def notes(self, manifest: Manifest) -> list[str]:
        """Warnings for tasks of which too little is known, and for attempts that do not count."""
        found, kept = manifest.metrics, "kept" if self.unknown == "keep" else "not kept"
        before = KEPT if self.unknown == "keep" else LEFT_OUT
        answers = "answer" if self.by == "vote" else "score"
        unknown = f"of {manifest.counts.written:,} {{}}, and are {kept} (unknown: {self.unknown})"
        warnings = {
            TOO_COARSE: "rates are of so few attempts that the band is narrower than the difference that one attempt "
            "makes; make more attempts (k), or widen the band",
            f"{before}{TOO_FEW}": unknown.format(f"have fewer scored attempts than min_attempts: {self.min_attempts}"),
            f"{before}{NO_TASK}": unknown.format("have no task"),
            UNSCORED: f"attempts have no {answers}, and do not count",
            OTHERS: "attempts are at none of these tasks, and do not count",
        }
        counted = [f"warning: {found[name]:,.0f} {text}" for name, text in warnings.items() if found.get(name)]
        return [*unasked_notes(self), *kept_notes(manifest), *counted]

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The selections."""
        del context
        self.check_inputs(inputs)
        of, attempts = tables_of(inputs, "of"), tables_of(inputs, "attempts")
        if any(table.manifest.record == Trajectory.__name__ for table in of):
            chosen = counted = self.selected(inputs, [*of, *attempts], Selection, TaskSelection)
        else:
            chosen = self.selected(inputs, of, TaskSelection)
            counted = self.selected(inputs, attempts, Selection)
        rates = TaskRates(self, attempts or of, AnnotationIndex(inputs, ROLES), counted)
        return Banding(self, of, rates, chosen, ATTEMPTS.of_others(inputs))


class TaskRate(msgspec.Struct, frozen=True):
    """How a solver does at a task: ``value``, of ``n`` attempts; ``None`` without any that has a score."""

    value: float | None = None
    n: int = 0
    unscored: int = 0
    not_selected: int = 0

    def measures(self) -> Mapping[str, float]:
        """Its attempts, for the manifest."""
        counts = {"attempts": self.n, UNSCORED: self.unscored, NOT_SELECTED: self.not_selected}
        return {name: n for name, n in counts.items() if n}


class Tally:
    """The attempts at one task while they are read: their scores, or the votes for each answer."""

    def __init__(self) -> None:
        self.scores = array("d")
        self.votes = Counter[str]()
        self.unscored = 0
        self.not_selected = 0

    def add_score(self, found: float | None) -> None:
        """One more attempt; ``None`` is one without a score."""
        self.scores.extend([] if found is None else [found])
        self.unscored += found is None

    def rate(self) -> TaskRate:
        """The mean score, or the share of the most frequent answer."""
        n = len(self.scores) or self.votes.total()
        # An exact sum, so that the order of the attempts decides nothing.
        total = math.fsum(self.scores) if self.scores else max(self.votes.values(), default=0)
        return TaskRate(total / n if n else None, n, self.unscored, self.not_selected)


class TaskRates:
    """The rate of each task, by the attempts in some tables. Pickles as paths; each worker loads it once."""

    def __init__(
        self, parameters: DifficultyBand, attempts: Sequence[Table], index: AnnotationIndex, selected: Selected | None
    ) -> None:
        self._parameters = parameters
        self._paths = [path for table in attempts for path in table.shards()]
        self._index = index
        self._selected = selected
        self._rates: dict[str, TaskRate] = {}

    def load(self) -> None:
        """Read through the attempts. Raises ``UserError`` for a file that cannot be read."""
        self._index.load()
        votes = self._parameters.by == "vote"
        tallies: dict[str, Tally] = defaultdict(Tally)
        for _, attempt in stream(self._paths, ["trajectory_id", "task_id", CONTENT if votes else "outcome"]):
            stop.check()
            if attempt.task_id is not None:
                self._count(attempt, tallies[attempt.task_id])
        self._rates = {task_id: tally.rate() for task_id, tally in tallies.items()}

    def of(self, task_id: str) -> TaskRate:
        """The rate of a task; without a value if there is no attempt at it."""
        return self._rates.get(task_id, TaskRate())

    def _count(self, attempt: Trajectory, tally: Tally) -> None:
        if self._selected is not None and self._selected.refusal(attempt.trajectory_id):
            tally.not_selected += 1
            return
        if self._parameters.by == "vote":
            answer = answer_key(answer_of(attempt.content, self._parameters.answer)[1] or "")
            tally.votes.update([] if answer is None else [answer])
            tally.unscored += answer is None
            return
        tally.add_score(score_within_time(self._parameters.score, attempt, self._index.of(attempt.trajectory_id)))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rates": {}}


class Banding(RowOperation[Task | Trajectory, Selection | TaskSelection]):
    """One selection per task, or per trajectory. Every worker reads through the attempts once."""

    blamed: ClassVar[Blamed] = "curation"
    chunk_rows: ClassVar[int] = 5_000

    def __init__(
        self, parameters: DifficultyBand, of: Sequence[Table], rates: TaskRates, chosen: Selected | None, others: int
    ) -> None:
        by_trajectory = any(table.manifest.record == Trajectory.__name__ for table in of)
        kinds = (Trajectory, Selection) if by_trajectory else (Task, TaskSelection)
        super().__init__("difficulty_band", *kinds)
        self._parameters = parameters
        self._paths = [str(path) for table in of for path in table.shards()] if by_trajectory else []
        self._rates = rates
        self._chosen = chosen
        self._others = others
        self._first: dict[str, str] = {}

    def open(self) -> None:
        """Measure the tasks. Raises ``UserError`` for tables that cannot be read."""
        self._rates.load()
        self._first = {}
        for path in self._paths:
            for row in read_columns(Path(path), Trajectory, ["task_id", "trajectory_id"]).to_pylist():
                task_id, name = row["task_id"], row["trajectory_id"]
                self._first[task_id] = min(name, self._first.get(task_id, name))

    def process(self, record: Task | Trajectory, unit: Unit) -> Iterable[Result]:
        """The selection of a task or a trajectory."""
        record_id, task_id, name = identity(record), record.task_id, self._parameters.name
        rate = TaskRate() if task_id is None else self._rates.of(task_id)
        # The attempts at a task are counted once, with the first of its trajectories.
        measures = dict(rate.measures()) if task_id and self._first.get(task_id, record_id) == record_id else {}
        left_out = None if self._chosen is None else self._chosen.refusal(record_id)
        reason = NO_TASK if task_id is None else self._parameters.misses(rate)
        reason = reason if left_out is None else left_out.reason
        kept = reason is None or (self._parameters.unknown == "keep" and reason in UNKNOWN)
        if reason in (None, *MISSES) and self._parameters.is_too_coarse(rate.n):
            measures[TOO_COARSE] = 1
        if self._chosen is not None:
            measures |= self._chosen.measures(record_id)
        selection: Selection | TaskSelection
        if isinstance(record, Task):
            selection = TaskSelection(task_id=record_id, name=name, kept=kept, reason=reason, score=rate.value)
        else:
            selection = Selection(trajectory_id=record_id, name=name, kept=kept, reason=reason, score=rate.value)
        return [Result(input_id=unit[0], outputs=[selection], measures=measures)]

    def measures(self, output: Selection | TaskSelection) -> Mapping[str, float]:
        """As ``selection_measures``, with why one that is kept is not known."""
        kept = {f"{KEPT}{output.reason}": 1} if output.kept and output.reason is not None else {}
        return {**selection_measures(output), **kept}

    def summed(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """With the attempts of other tasks."""
        return {**metrics, **({OTHERS: self._others} if self._others else {})}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_first": {}}
