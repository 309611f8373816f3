"""``decontaminate``: trajectories or tasks that are in a benchmark are left out, with what matched as evidence.

Every worker reads the benchmarks, and the tables once through to know which features are common, so that the result
does not depend on which rows the step takes, nor on the order of tables. Memory of a worker is that of the entries and
their index: 24 bytes for each run of words, each action and each fact of the benchmarks, and while the tables are read
16 more for each of the ``common`` instructions that it comes with, in addition to one row group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pydantic import Field, model_validator

from agentmill.pipelines.benchmark_entries import COLUMNS, BenchmarkFields, entry_of, file_entries, sample_of
from agentmill.pipelines.contamination import BenchmarkIndex, Test
from agentmill.pipelines.engine import stop
from agentmill.pipelines.engine.operation import AnyOperation, Blamed, Result, RowOperation, Unit
from agentmill.pipelines.leak_features import Entry, Sample
from agentmill.pipelines.operators.operator import Inputs, StepContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.selection import (
    FilterParameters,
    TrajectoryFilter,
    kept_notes,
    selection_measures,
)
from agentmill.pipelines.operators.selection_tables import Selected
from agentmill.pipelines.operators.trajectory_index import stream
from agentmill.pipelines.sources import hub
from agentmill.pipelines.sources.files import RawFile, find
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import file_sha256
from agentmill.schemas.record_kinds import ANNOTATION_ROLES
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Selection, TaskSelection, Verdict
from agentmill.schemas.tables import Table, read_shard
from agentmill.schemas.views.view import Unused

JUDGE = "decontaminate"
VERDICTS = "verdicts"
COMPARED = "compared"
CONTAMINATED = "contaminated."
NOT_COMPARED = "not_compared."
"""Before a test: rows that it found, and rows that it had nothing to compare of."""

THRESHOLDS: tuple[Test, ...] = ("instruction", "answer", "actions", "renamed")
"""The tests with a threshold, which are fields.

The share of an instruction or an answer from which on it counts is that of Llama 2 (Touvron et al. 2023,
arXiv:2307.09288, appendix A.6), where a sample is dirty if 80 % of its tokens are in n-grams of the training data.
"""

SUSPICIOUS_SHARE = 0.5
"""A benchmark that finds more than this share of the rows is hardly one of other data."""


def _share(default: float, what: str) -> Any:
    return Field(default=default, gt=0, le=1, description=f"least share of {what}; null: not compared")


class Decontaminate(FilterParameters):
    """A selection per trajectory: left out if it is in a benchmark by task, words, answers, actions or renamed.

    Tasks may be given instead of trajectories; the selections are then of tasks.
    """

    primary: ClassVar[str] = "of"
    verb: ClassVar[str | None] = "curate"
    table_roles: ClassVar[Sequence[str]] = ("of", "against", *ANNOTATION_ROLES)
    sides: ClassVar[Sequence[str]] = (VERDICTS,)
    incidental: ClassVar[Sequence[str]] = ("benchmarks",)

    of: TableNames = Field(description="tables of trajectories, or of tasks")
    against: TableNames | None = Field(default=None, description="benchmarks as tables, of tasks or of trajectories")
    benchmarks: list[str] = Field(
        default=[], description="benchmarks as files, here or on the Hub: .jsonl, .json, .csv, .parquet"
    )
    fields: BenchmarkFields = Field(default=BenchmarkFields(), description="what the rows of these files are called")
    same_task: bool = Field(default=True, description="compare the ids of tasks")
    instruction: float | None = _share(0.8, "the 13-grams of an instruction that is in the prompt")
    answer: float | None = _share(0.8, "the 13-grams of the answers that agent or environment say")
    actions: float | None = _share(0.9, "the actions with arguments that are done in the same order")
    renamed: float | None = _share(0.8, "instruction, actions and initial state that are the same but for names")
    common: int = Field(
        default=10, ge=1, description="what comes with more different instructions is common, and no evidence"
    )
    name: str = Field(default="decontaminate", min_length=1, description="what the selection and verdicts are called")

    @model_validator(mode="after")
    def _something_to_compare(self) -> Decontaminate:
        if not self.against and not self.benchmarks:
            raise ValueError("expected `against` (tables) or `benchmarks` (files) to compare with")
        if not self.benchmarks and "fields" in self.model_fields_set:
            raise ValueError("`fields` names fields of files; give `benchmarks`, or leave it out")
        if not self.thresholds():
            raise ValueError("every test is switched off, so nothing would be found; leave one of them on")
        return self

    def thresholds(self) -> dict[Test, float]:
        """The least score of each test that is made."""
        given: dict[Test, float | None] = {test: getattr(self, test) for test in THRESHOLDS}
        same: dict[Test, float] = {"task": 1.0} if self.same_task else {}
        return {**same, **{test: value for test, value in given.items() if value is not None}}

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Selections, of trajectories or tasks. Raises ``UserError``, also for files that are no benchmark."""
        record = expect(reads, "of", "Trajectory", "Task")
        for each in sorted(set(reads.get("against", ()))):
            expect({"against": [each]}, "against", "Trajectory", "Task")
        self.check_filter_needs(reads)
        if record == "Task":
            roles = {*ANNOTATION_ROLES, "where"} - {"selections"}
            asked = next((role for role in sorted(roles) if role in self.model_fields_set), None)
            if asked is not None:
                raise UserError(
                    f"`{asked}` chooses trajectories, and `of` holds tasks; leave it out", ErrorCode.KEY_NOT_FOR_THIS
                )
            if "selections" in reads:
                expect(reads, "selections", TaskSelection.__name__)
        for _ in self.entries_of_files(local_only=True):
            pass
        return (TaskSelection if record == Task.__name__ else Selection).__name__

    def annotations(self) -> Sequence[str]:
        """Its selections and verdicts."""
        return [self.name]

    def pinned(self, revisions: MutableMapping[str, str]) -> Self:
        """The same with every address on the Hub at a commit, that of the run's first start."""
        return self.model_copy(update={"benchmarks": [hub.pinned(each, revisions) for each in self.benchmarks]})

    def provenance_config(self, context: StepContext) -> JsonObject:
        """As ``FilterParameters.provenance_config``, with the files by what is in them."""
        files = [
            each if hub.is_address(each) else [file_sha256(Path(f.path)) for f in _found(each)]
            for each in self.benchmarks
        ]
        return {**super().provenance_config(context), "benchmarks": files}

    def check_inputs(self, inputs: Inputs) -> None:
        """Raises ``UserError`` for a benchmark without rows, and for one that is the data themselves."""
        data = {table.folder.resolve(): table for table in tables_of(inputs, "of")}
        for table in tables_of(inputs, "against"):
            if table.folder.resolve() in data:
                raise UserError(
                    f"{table.folder} is in `of` and in `against`, so every row would be in the benchmark\n"
                    "name a table of other tasks or trajectories in `against`",
                    ErrorCode.GIVEN_TWICE,
                )
            if not table.manifest.counts.written:
                raise UserError(
                    f"{table.folder} holds no rows, so nothing can be compared with it\n"
                    "name a table with rows in `against`, or leave it out",
                    ErrorCode.NO_RECORDS,
                )

    def entries_of_files(self, local_only: bool = False) -> Iterator[Entry]:
        """The entries of ``benchmarks``. Raises ``UserError`` as ``file_entries`` does."""
        for pattern in self.benchmarks:
            if not (local_only and hub.is_address(pattern)):
                for file in _found(pattern):
                    yield from _entries(file, self.fields.model_dump_json())

    def notes(self, manifest: Manifest) -> list[str]:
        """Warnings where nothing is kept, most is found, or a test has nothing to compare, too."""
        found, compared = manifest.metrics, manifest.metrics.get(COMPARED, 0)
        notes = [*super().notes(manifest), *kept_notes(manifest)]
        contaminated = sum(n for name, n in found.items() if name.startswith(CONTAMINATED))
        if contaminated > SUSPICIOUS_SHARE * compared:
            notes.append(
                f"warning: {contaminated:,.0f} of {compared:,.0f} rows are in the benchmarks; are these other data"
                " than `of`? If so, see the evidence, and raise the thresholds of the tests that find too much"
            )
        silent = [test for test in self.thresholds() if compared and found.get(f"{NOT_COMPARED}{test}") == compared]
        if silent:
            notes.append(
                f"warning: {', '.join(silent)}: the benchmarks, or all of {compared:,.0f} rows, have nothing that could"
                " be compared; give it in `fields`, or set the test to null"
            )
        return notes

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The selections."""
        del context
        of = tables_of(inputs, "of")
        if any(table.record_type is Task for table in of):
            return TaskDecontamination(self, inputs, self.selected(inputs, of, TaskSelection))
        return TrajectoryDecontamination(self, inputs, self.choice(inputs))


@lru_cache(maxsize=64)
def _entries(file: RawFile, fields: str) -> list[Entry]:
    return list(file_entries(file, BenchmarkFields.model_validate_json(fields)))


def _found(pattern: str) -> list[RawFile]:
    return find([pattern])


S = TypeVar("S", bound=Trajectory | Task)


class Decontamination(RowOperation[S, Any]):
    """A selection for each trajectory or task; ``score`` is the share of the entry that was found."""

    blamed: ClassVar[Blamed] = "curation"
    chunk_rows: ClassVar[int] = 5_000
    sides = (VERDICTS,)

    def __init__(self, parameters: Decontaminate, inputs: Inputs, reads: type[S], writes: type[Record]) -> None:
        super().__init__(JUDGE, reads, writes)
        self._parameters = parameters
        self._of = tables_of(inputs, "of")
        self._against = tables_of(inputs, "against")
        self._index: BenchmarkIndex | None = None
        self._silent: set[Test] = set()

    def open(self) -> None:
        """Read the benchmarks, and count what is common. Raises ``UserError`` for what cannot be read."""
        entries = [*self._parameters.entries_of_files()]
        for table in self._against:
            entries += [entry_of(table.manifest.table, record) for record in _records(table)]
        # Of entries that match equally the first is named, whatever the order of the tables.
        entries.sort(key=lambda each: (each.benchmark, each.entry_id, each.instruction))
        index = BenchmarkIndex(entries, self._parameters.thresholds(), self._parameters.common)
        for table in self._of:
            for record in _records(table):
                stop.check()
                index.observe(sample_of(record))
        index.close()
        self._index = index
        self._silent = {test for test, n in index.comparable().items() if not n}

    def process(self, record: S, unit: Unit) -> Iterable[Result]:
        """The selection, and the verdict on a trajectory that is compared."""
        assert self._index is not None
        measures, refusal = self.chosen(record)
        if refusal is not None:
            return [Result(input_id=unit[0], outputs=[self.selection(record, refusal, None)], measures=measures)]
        sample = sample_of(record)
        matches = self._index.match(sample)
        missing = [test for test in self._parameters.thresholds() if test in self._silent or not _has(sample, test)]
        measures = {**measures, COMPARED: 1, **{f"{NOT_COMPARED}{test}": 1 for test in missing}}
        reason, share = None, None
        if matches:
            test, share = matches[0].test, matches[0].score
            entry = self._index.entries[matches[0].entry]
            reason = f"contaminated: {entry.benchmark}/{entry.entry_id}, {test} {share:.2f}"
            measures[f"{CONTAMINATED}{test}"] = 1
        evidence: JsonObject = {"matches": [self._index.evidence(each, sample) for each in matches]} if matches else {}
        verdicts = self.verdicts(record, share, evidence)
        sides = {VERDICTS: verdicts} if verdicts else {}
        return [
            Result(input_id=unit[0], outputs=[self.selection(record, reason, share)], sides=sides, measures=measures)
        ]

    def measures(self, output: Any) -> Mapping[str, float]:
        """As ``selection_measures``."""
        return selection_measures(output)

    def chosen(self, record: S) -> tuple[Mapping[str, float], str | None]:
        """Figures of the choice of a record, and why it is not compared, if it is not."""
        raise NotImplementedError

    def selection(self, record: S, reason: str | None, share: float | None) -> Selection | TaskSelection:
        """The selection of a record, kept without a ``reason``."""
        raise NotImplementedError

    def verdicts(self, record: S, share: float | None, evidence: JsonObject) -> list[Verdict]:
        """The verdict on a record, of which ``share`` of an entry was found; none on a task."""
        del record, share, evidence
        return []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_index": None}


class TrajectoryDecontamination(Decontamination[Trajectory]):
    """Selections of trajectories, and verdicts with the evidence."""

    def __init__(self, parameters: Decontaminate, inputs: Inputs, choice: TrajectoryFilter) -> None:
        super().__init__(parameters, inputs, Trajectory, Selection)
        self._choice = choice

    def open(self) -> None:
        """As ``Decontamination.open``, with the choice."""
        self._choice.load()
        super().open()

    def chosen(self, record: Trajectory) -> tuple[Mapping[str, float], str | None]:
        """As ``Decontamination.chosen``."""
        measures = self._choice.measures(record.trajectory_id)
        try:
            self._choice.annotations(record.trajectory_id)
        except Unused as error:
            return measures, error.reason
        return measures, None

    def selection(self, record: Trajectory, reason: str | None, share: float | None) -> Selection:
        """As ``Decontamination.selection``."""
        name, kept = self._parameters.name, reason is None
        return Selection(trajectory_id=record.trajectory_id, name=name, kept=kept, reason=reason, score=share)

    def verdicts(self, record: Trajectory, share: float | None, evidence: JsonObject) -> list[Verdict]:
        """As ``Decontamination.verdicts``."""
        name, score = self._parameters.name, share or 0.0
        return [
            Verdict(
                trajectory_id=record.trajectory_id,
                name=name,
                status="scored",
                judge=JUDGE,
                score=score,
                passed=share is None,
                evidence=evidence,
            )
        ]


class TaskDecontamination(Decontamination[Task]):
    """Selections of tasks."""

    def __init__(self, parameters: Decontaminate, inputs: Inputs, selected: Selected | None) -> None:
        super().__init__(parameters, inputs, Task, TaskSelection)
        self._selected = selected

    def open(self) -> None:
        """As ``Decontamination.open``, with the selections."""
        if self._selected is not None:
            self._selected.load()
        super().open()

    def chosen(self, record: Task) -> tuple[Mapping[str, float], str | None]:
        """As ``Decontamination.chosen``."""
        if self._selected is None:
            return {}, None
        refusal = self._selected.refusal(record.task_id)
        return self._selected.measures(record.task_id), None if refusal is None else refusal.reason

    def selection(self, record: Task, reason: str | None, share: float | None) -> TaskSelection:
        """As ``Decontamination.selection``."""
        name, kept = self._parameters.name, reason is None
        return TaskSelection(task_id=record.task_id, name=name, kept=kept, reason=reason, score=share)


def _has(sample: Sample, test: Test) -> bool:
    """Whether a sample has what a test compares."""
    compared: Mapping[Test, Any] = {
        "task": sample.task_id,
        "instruction": sample.prompt,
        "answer": sample.shown,
        "actions": sample.acts,
        "renamed": sample.asked,
    }
    return bool(compared[test])


def _records(table: Table) -> Iterator[Any]:
    """The rows of a table of tasks or trajectories, of trajectories with the columns that are compared."""
    if table.record_type is Trajectory:
        yield from (trajectory for _, trajectory in stream(table.shards(), COLUMNS))
    else:
        for path in table.shards():
            yield from read_shard(path, Task)
