"""``selections`` of a step: which records the tables of selections keep, one table or several together.

selections: picked                                      # what the table keeps
selections: [deduped, picked]                           # what each of the tables keeps that knows the trajectory
selections: {any: [short, solved]}                      # what one of them keeps
selections: {all: [deduped, picked], strict: true}      # and nothing that no table knows

A trajectory that no table knows stays, unless ``strict``: seeds of another source are not lost by a selection that was
made before they came in. The same holds of tasks, which rollouts select. Where trajectories are read, a selection of
tasks decides about those of each task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pyarrow.compute as pc
from pydantic import BeforeValidator, Field, model_validator

from agentmill.pipelines.engine.operation import key_of
from agentmill.pipelines.operators.annotations import AnnotationIndex, check_annotation_needs, unasked_notes
from agentmill.pipelines.operators.lineage import Lineage
from agentmill.pipelines.operators.lookup import Shards, ids_of
from agentmill.pipelines.operators.operator import Inputs, Operator, StepContext, TableNames, expect, tables_of
from agentmill.schemas.conditions import AnnotationNeed
from agentmill.schemas.config import Config
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.record_kinds import ANNOTATION_ROLES
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Dropped, Selection, TaskSelection
from agentmill.schemas.tables import Table, read_columns
from agentmill.schemas.views.annotations import Annotations
from agentmill.schemas.views.view import Unused

COLUMNS: Mapping[type[Selection | TaskSelection], list[str]] = {
    Selection: ["item", "reason"],
    TaskSelection: ["reason"],
}
"""The records of selections, and the columns that are read of each besides the required ones."""


class Selections(Config):
    """Tables of selections and how they go together: ``all`` that know a trajectory keep it, or ``any`` of them."""

    all: TableNames | None = Field(default=None, description="each table that knows a trajectory must keep it")
    any: TableNames | None = Field(default=None, description="one table that keeps a trajectory is enough")
    strict: bool = Field(default=False, description="what no table knows is dropped; otherwise it stays")

    @model_validator(mode="after")
    def _one_list(self) -> Selections:
        if (self.all is None) == (self.any is None):
            raise ValueError("expected one of `all` and `any`, for example {any: [short, solved]}")
        return self

    @property
    def names(self) -> list[str]:
        """The tables."""
        return list(self.all or self.any or ())

    def rule(self) -> JsonObject:
        """How the tables go together, without their names."""
        return {"keep": "all" if self.any is None else "any", "strict": self.strict}


def _as_mapping(value: Any) -> Any:
    return {"all": value} if isinstance(value, str | list) else value


SelectionTables = Annotated[Selections, BeforeValidator(_as_mapping)]
"""``Selections``; the name of a table, or a list of them, is short for ``all``."""


class Selected:
    """What tables of selections decide about the records of some tables. Pickles as paths; read when first asked.

    Of trajectories, ``of`` are their tables: selections of tasks decide about those of each task.
    """

    def __init__(self, tables: Iterable[Table], given: Selections, of: Iterable[Table]) -> None:
        kinds = [(table, next(kind for kind in COLUMNS if kind is table.record_type)) for table in tables]
        self._tables = [(str(table.folder), kind, Shards([table], kind, COLUMNS[kind])) for table, kind in kinds]
        self._of = [str(path) for table in of if table.record_type is Trajectory for path in table.shards()]
        self._any = given.any is not None
        self._strict = given.strict
        self._known: dict[str, str | None] | None = None

    def load(self) -> None:
        """Read the tables. Raises ``UserError`` for one that cannot be read, contradicts itself or selects steps."""
        reasons: dict[str, str | None] = {}
        for folder, kind, shards in self._tables:
            decisions = _decisions(folder, shards)
            by_task = self._of and kind is TaskSelection
            for record_id, reason in self._of_trajectories(decisions) if by_task else decisions.items():
                # Under ``any`` one table that keeps a record decides, under ``all`` one that does not.
                if record_id not in reasons or (reasons[record_id] is None) is not self._any:
                    reasons[record_id] = reason
        self._known = reasons

    def knows(self, record_id: str) -> bool:
        """Whether any of the tables keeps it or not. Raises as ``load``."""
        return record_id in self._reasons

    def refusal(self, record_id: str) -> Unused | None:
        """Why a record is not kept; ``None`` if it is. Raises ``UserError`` as ``load``."""
        if not self.knows(record_id):
            return Unused("not_selected", "no selection knows it (strict: true)") if self._strict else None
        reason = self._reasons[record_id]
        return None if reason is None else Unused("not_selected", reason)

    def measures(self, record_id: str) -> Mapping[str, float]:
        """Counts a record that no table knows; for the manifest."""
        return {} if self.knows(record_id) else {"not_in_selections": 1}

    @property
    def _reasons(self) -> dict[str, str | None]:
        """Why records are not kept, ``None`` for those that are."""
        if self._known is None:
            self.load()
        assert self._known is not None
        return self._known

    def _of_trajectories(self, decisions: Mapping[str, str | None]) -> Iterator[tuple[str, str | None]]:
        """Decisions about tasks as decisions about the trajectories of these."""
        for path in self._of:
            for row in read_columns(Path(path), Trajectory, ["trajectory_id", "task_id"]).to_pylist():
                if row["task_id"] in decisions:
                    yield row["trajectory_id"], decisions[row["task_id"]]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": None}


def _decisions(folder: str, shards: Shards[Selection | TaskSelection]) -> dict[str, str | None]:
    """Why a table does not keep a record, ``None`` where it does. Selections of several names must all keep it."""
    rows: dict[tuple[str, str], Selection | TaskSelection] = {}
    reasons: dict[str, str | None] = {}
    for row in shards:
        if isinstance(row, Selection) and row.item is not None:
            raise UserError(
                f"{folder} selects steps (item {row.item}); expected selections of whole trajectories",
                ErrorCode.SELECTION_OF_STEPS,
            )
        record_id = row.task_id if isinstance(row, TaskSelection) else row.trajectory_id
        kind = "task" if isinstance(row, TaskSelection) else "trajectory"
        shards.put(rows, (record_id, row.name), row, f"{row.name!r} of {kind} {record_id}")
        reason = None if row.kept else row.reason or f"selection {row.name!r}"
        reasons[record_id] = reasons.get(record_id) or reason
    return reasons


def kept_notes(manifest: Manifest) -> list[str]:
    """A warning where a table of selections keeps nothing."""
    if not manifest.counts.written or manifest.metrics.get("kept", 0):
        return []
    things = "tasks" if manifest.record == TaskSelection.__name__ else "trajectories"
    return [f"warning: none of {manifest.counts.written:,} {things} is kept; the reasons are in the table"]


def check_overlap(selections: Sequence[Table], records: Sequence[Table]) -> None:
    """Raises ``UserError`` for a table of selections that knows none of the trajectories, tasks, or tasks of the
    trajectories in ``records``, and so would do nothing."""
    for table in selections:
        key = key_of(table.record_type)
        known = [ids_of(each, key) for each in records]
        ids = ids_of(table).combine_chunks()
        if any(map(len, known)) and len(ids) and not any(pc.any(pc.is_in(own, ids)).as_py() for own in known):
            folders = " and ".join(str(each.folder) for each in records)
            things = "trajectories" if key == "trajectory_id" else "tasks"
            raise UserError(
                f"{table.folder} selects none of the {things} in {folders}, but others\n"
                "name the selections that were made of these, or leave `selections` out",
                ErrorCode.SELECTION_OF_OTHERS,
            )


class SelectionParameters(Operator):
    """Parameters of an operator that takes some of its records, by tables of selections."""

    selectable: ClassVar[Sequence[str]] = (Selection.__name__, TaskSelection.__name__)
    """The records that its tables of selections may hold."""

    selections: SelectionTables | None = Field(
        default=None,
        description="tables of selections of trajectories or of tasks; each that knows one must keep it, or {any: […]}",
    )

    def check_selections(self, reads: Mapping[str, Sequence[str]]) -> None:
        """Raises ``UserError`` for tables of ``selections`` that are no selections of what this step reads."""
        wrong = sorted({*reads.get("selections", ())} - {*self.selectable})
        if wrong:
            hint = "name tables that filter, pick, dedup or difficulty_band made"
            if Selection.__name__ not in self.selectable:
                hint = "name selections of tasks, as difficulty_band makes them; others are for steps on trajectories"
            raise UserError(
                f"selections holds {' and '.join(wrong)} records, expected {' or '.join(self.selectable)}\n{hint}",
                ErrorCode.WRONG_RECORD_TYPE,
            )

    def names_of(self, field: str) -> list[str]:
        """As ``Operator.names_of``; ``selections`` is a mapping."""
        if field == "selections":
            return [] if self.selections is None else self.selections.names
        return super().names_of(field)

    def provenance_config(self, context: StepContext) -> JsonObject:
        """As ``Operator.provenance_config``, with how selections go together."""
        rule = {} if self.selections is None else {"selections": self.selections.rule()}
        return {**super().provenance_config(context), **rule}

    def selected(self, inputs: Inputs, of: Sequence[Table], *records: type[Record]) -> Selected | None:
        """What the selections that are ``records`` decide about the rows of the tables ``of``; ``None`` without any.

        Raises ``UserError`` for a table that selects others only.
        """
        names = {record.__name__ for record in records}
        tables = [table for table in tables_of(inputs, "selections") if table.manifest.record in names]
        if self.selections is None or not tables:
            return None
        check_overlap(tables, of)
        return Selected(tables, self.selections, of)


Where = Literal["all", "success", "failure"]


class FilterParameters(SelectionParameters):
    """Parameters of a stage that takes some trajectories of its tables."""

    # Of a rollout that reads trajectories, too, which alone would take selections of tasks only.
    selectable: ClassVar[Sequence[str]] = SelectionParameters.selectable

    verdicts: TableNames | None = Field(default=None, description="tables of verdicts on them, for where")
    labels: TableNames | None = Field(default=None, description="tables of labels of them or their steps")
    values: TableNames | None = Field(default=None, description="tables of values of them or their steps")
    quality: TableNames | None = Field(default=None, description="tables of counts of them, made by quality")
    where: Where = Field(default="all", description="which trajectories, by the verdict")
    verdict: str = Field(
        default="check_outcome", description="the verdict that where asks: whether it passed, not its score"
    )

    @model_validator(mode="after")
    def _verdicts_where_asked(self) -> FilterParameters:
        if self.where != "all" and not self.verdicts:
            raise ValueError(f"`where: {self.where}` needs `verdicts`")
        if self.where == "all" and "verdict" in self.model_fields_set:
            raise ValueError(f"`verdict: {self.verdict}` is asked by `where: success` or `failure`; `all` asks nothing")
        return self

    def check_filter_needs(self, reads: Mapping[str, Sequence[str]]) -> None:
        """Raises ``UserError`` for tables that do not say what their role promises, and for a role that is missing."""
        for role, record in ANNOTATION_ROLES.items():
            if role in reads and role != "selections":
                expect(reads, role, record)
        self.check_selections(reads)
        check_annotation_needs(self, reads)

    def annotation_needs(self) -> Iterator[AnnotationNeed]:
        """As ``Operator.annotation_needs``, with the verdict that ``where`` asks."""
        yield from super().annotation_needs()
        if self.where != "all" and self.verdicts:
            yield AnnotationNeed(f"where: {self.where}", "verdict", self.verdict)

    def notes(self, manifest: Manifest) -> list[str]:
        """A warning for tables of annotations that nothing asks."""
        del manifest
        return unasked_notes(self)

    def choice(self, inputs: Inputs) -> TrajectoryFilter:
        """Which trajectories are taken. Raises ``UserError`` for selections that are all of other trajectories."""
        trajectories = [*tables_of(inputs, "of"), *tables_of(inputs, "from")]
        # Selections of tasks say which ones a rollout plays, and nothing of the trajectories that it reads besides.
        records = (Selection,) if self.primary == "tasks" else (Selection, TaskSelection)
        selected = self.selected(inputs, trajectories, *records)
        return TrajectoryFilter(self.where, self.verdict, AnnotationIndex(inputs), selected)


class TrajectoryFilter:
    """Which trajectories are taken, and their annotations. Pickles to workers."""

    def __init__(self, where: Where, verdict: str, index: AnnotationIndex, selected: Selected | None) -> None:
        self._where = where
        self._verdict = verdict
        self._index = index
        self._selected = selected

    def load(self) -> None:
        """Load what it rests on."""
        self._index.load()
        if self._selected is not None:
            self._selected.load()

    def measures(self, trajectory_id: str) -> Mapping[str, float]:
        """Counts a trajectory that stays because no table of selections knows it; for the manifest."""
        return {} if self._selected is None else self._selected.measures(trajectory_id)

    def with_inherited(self, trajectory: Trajectory, annotations: Annotations, lineage: Lineage) -> Annotations:
        """``annotations`` with the annotations of the steps that the trajectory copied where they were taken first."""
        for ancestor_id, end in lineage.sources(trajectory):
            annotations = annotations.with_inherited(self._index.of(ancestor_id), end)
        return annotations

    def annotations(self, trajectory_id: str) -> Annotations:
        """The annotations of a trajectory that is chosen. Raises ``Unused`` for one that is left out."""
        annotations = self._index.of(trajectory_id)
        if self._selected is not None and (refusal := self._selected.refusal(trajectory_id)):
            raise refusal
        if self._where == "all":
            return annotations
        verdict = annotations.verdict(self._verdict)
        if verdict is None or verdict.passed is None:
            raise Unused("unscored", f"no scored verdict {self._verdict!r}")
        if verdict.passed is not (self._where == "success"):
            raise Unused(f"not_{self._where}", f"verdict {self._verdict!r}, score {verdict.score}")
        return annotations


def left_out(input_id: str, stage: str, trajectory: Trajectory, why: Unused) -> Dropped:
    """The dead letter of a trajectory that was not taken, or gave nothing."""
    reference = {"trajectory_id": trajectory.trajectory_id}
    return Dropped(
        input_id=input_id, stage=stage, reason=why.reason, blamed="curation", detail=str(why), input=reference
    )
