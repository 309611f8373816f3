"""``selections`` of a step: which trajectories the tables of selections keep, one table or several together.

selections: picked                                      # what the table keeps
selections: [deduped, picked]                           # what each of the tables keeps that knows the trajectory
selections: {any: [short, solved]}                      # what one of them keeps
selections: {all: [deduped, picked], strict: true}      # and nothing that no table knows

A trajectory that no table knows stays, unless ``strict``: seeds of another source are not lost by a selection that was
made before they came in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import pyarrow.compute as pc
from pydantic import BeforeValidator, Field, model_validator

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
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Dropped, Selection
from agentmill.schemas.tables import Table
from agentmill.schemas.views.annotations import Annotations
from agentmill.schemas.views.view import Unused

COLUMNS = ["item", "reason"]


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
    """What tables of selections decide. Pickles as paths; each worker loads it once."""

    def __init__(self, tables: Iterable[Table], given: Selections) -> None:
        self._tables = [(str(table.folder), Shards([table], Selection, COLUMNS)) for table in tables]
        self._any = given.any is not None
        self._strict = given.strict
        self._reasons: dict[str, str | None] = {}

    def load(self) -> None:
        """Read the tables. Raises ``UserError`` for one that cannot be read, contradicts itself or selects steps."""
        self._reasons = {}
        for folder, shards in self._tables:
            for trajectory_id, reason in _decisions(folder, shards).items():
                if not self._decided(trajectory_id):
                    self._reasons[trajectory_id] = reason

    def _decided(self, trajectory_id: str) -> bool:
        """Whether no further table changes the decision: under ``any`` one that keeps, under ``all`` one that drops."""
        return self.knows(trajectory_id) and (self._reasons[trajectory_id] is None) is self._any

    def knows(self, trajectory_id: str) -> bool:
        """Whether any of the tables selects or drops it."""
        return trajectory_id in self._reasons

    def keeps(self, trajectory_id: str) -> bool:
        """Whether the tables select it, and keep it."""
        return self.knows(trajectory_id) and self._reasons[trajectory_id] is None

    def check(self, trajectory_id: str) -> None:
        """Raises ``Unused`` for a trajectory that is not kept."""
        if not self.knows(trajectory_id):
            if self._strict:
                raise Unused("not_selected", "no selection knows it (strict: true)")
            return
        reason = self._reasons[trajectory_id]
        if reason is not None:
            raise Unused("not_selected", reason)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reasons": {}}


def _decisions(folder: str, shards: Shards[Selection]) -> dict[str, str | None]:
    """Why a table does not keep a trajectory, ``None`` where it does. Selections of several names must all keep it."""
    rows: dict[tuple[str, str], Selection] = {}
    reasons: dict[str, str | None] = {}
    for row in shards:
        if row.item is not None:
            raise UserError(
                f"{folder} selects steps (item {row.item}); expected selections of whole trajectories",
                ErrorCode.SELECTION_OF_STEPS,
            )
        shards.put(rows, (row.trajectory_id, row.name), row, f"{row.name!r} of trajectory {row.trajectory_id}")
        reason = None if row.kept else row.reason or f"selection {row.name!r}"
        reasons[row.trajectory_id] = reasons.get(row.trajectory_id) or reason
    return reasons


def kept_notes(manifest: Manifest) -> list[str]:
    """A warning where a table of selections keeps nothing."""
    if not manifest.counts.written or manifest.metrics.get("kept", 0):
        return []
    return [f"warning: none of {manifest.counts.written:,} trajectories is kept; the reasons are in the table"]


def check_overlap(selections: Sequence[Table], trajectories: Sequence[Table]) -> None:
    """Raises ``UserError`` for a table of selections that knows none of the trajectories, and so would do nothing."""
    known = [ids_of(table) for table in trajectories]
    for table in selections:
        ids = ids_of(table).combine_chunks()
        if any(map(len, known)) and len(ids) and not any(pc.any(pc.is_in(own, ids)).as_py() for own in known):
            folders = " and ".join(str(each.folder) for each in trajectories)
            raise UserError(
                f"{table.folder} selects none of the trajectories in {folders}, but others\n"
                "name the selections that were made of these, or leave `selections` out",
                ErrorCode.SELECTION_OF_OTHERS,
            )


Where = Literal["all", "success", "failure"]


class FilterParameters(Operator):
    """Parameters of a stage that takes some trajectories of its tables."""

    verdicts: TableNames | None = Field(default=None, description="tables of verdicts on them, for where")
    labels: TableNames | None = Field(default=None, description="tables of labels of them or their steps")
    values: TableNames | None = Field(default=None, description="tables of values of them or their steps")
    quality: TableNames | None = Field(default=None, description="tables of counts of them, made by quality")
    selections: SelectionTables | None = Field(
        default=None, description="tables of selections of them; each that knows one must keep it, or {any: […]}"
    )
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
            if role in reads:
                expect(reads, role, record)
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

    def names_of(self, field: str) -> list[str]:
        """As ``Operator.names_of``; ``selections`` is a mapping."""
        if field == "selections":
            return [] if self.selections is None else self.selections.names
        return super().names_of(field)

    def provenance_config(self, context: StepContext) -> JsonObject:
        """As ``Operator.provenance_config``, with how selections go together."""
        rule = {} if self.selections is None else {"selections": self.selections.rule()}
        return {**super().provenance_config(context), **rule}

    def choice(self, inputs: Inputs) -> TrajectoryFilter:
        """Which trajectories are taken. Raises ``UserError`` for selections that are all of other trajectories."""
        selected = None
        if self.selections is not None:
            selections = tables_of(inputs, "selections")
            check_overlap(selections, [*tables_of(inputs, "of"), *tables_of(inputs, "from")])
            selected = Selected(selections, self.selections)
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
        unknown = self._selected is not None and not self._selected.knows(trajectory_id)
        return {"not_in_selections": 1} if unknown else {}

    def with_inherited(self, trajectory: Trajectory, annotations: Annotations, lineage: Lineage) -> Annotations:
        """``annotations`` with the annotations of the steps that the trajectory copied where they were taken first."""
        for ancestor_id, end in lineage.sources(trajectory):
            annotations = annotations.with_inherited(self._index.of(ancestor_id), end)
        return annotations

    def all_annotations(self, trajectory_id: str) -> Annotations:
        """The annotations of a trajectory, chosen or not."""
        return self._index.of(trajectory_id)

    def annotations(self, trajectory_id: str) -> Annotations:
        """The annotations of a trajectory that is chosen. Raises ``Unused`` for one that is left out."""
        annotations = self._index.of(trajectory_id)
        if self._selected is not None:
            self._selected.check(trajectory_id)
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
