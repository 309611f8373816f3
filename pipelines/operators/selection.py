"""Operators that select, and operators that take what others selected: their parameters, results and counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from agentmill.pipelines.engine.operation import Blamed, RowOperation
from agentmill.pipelines.operators.annotations import AnnotationIndex, check_annotation_needs, unasked_notes
from agentmill.pipelines.operators.lineage import Lineage
from agentmill.pipelines.operators.operator import Inputs, Operator, StepContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.selection_tables import Selected, SelectionTables, check_overlap
from agentmill.schemas.conditions import AnnotationNeed, Condition
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.record_kinds import ANNOTATION_ROLES
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Dropped, Selection, TaskSelection, Verdict
from agentmill.schemas.tables import Table
from agentmill.schemas.views.annotations import Annotations
from agentmill.schemas.views.view import Unused

NO_ITEM = "annotations_of_no_item"
"""The count of annotations that name an item beyond the end of their trajectory."""
LEFT_OUT = "left_out."
"""Before the code of a reason in the metrics of a table of selections: so many records are not kept for it."""


class SelectionOperation(RowOperation[Trajectory, Selection]):
    """One selection per trajectory; the manifest counts those kept, and those left out by the code of the reason."""

    blamed: ClassVar[Blamed] = "curation"
    chunk_rows: ClassVar[int] = 5_000

    def __init__(self, name: str) -> None:
        super().__init__(name, Trajectory, Selection)

    def measures(self, output: Selection) -> Mapping[str, float]:
        """As ``selection_measures``."""
        return selection_measures(output)


def selection_measures(output: Selection | TaskSelection) -> Mapping[str, float]:
    """How many were kept, and why others were not."""
    return {"kept": 1} if output.kept else {"kept": 0, f"{LEFT_OUT}{reason_code(output.reason)}": 1}


def reason_code(reason: str | None) -> str:
    """The code of a reason, without the details that follow a colon."""
    return (reason or "no reason").partition(":")[0]


def selection_counts(manifest: Manifest) -> dict[str, Any]:
    """How many records a table of selections keeps, and how many not by reason; empty for other tables."""
    if manifest.record not in (Selection.__name__, TaskSelection.__name__):
        return {}
    reasons = {name.removeprefix(LEFT_OUT): int(n) for name, n in manifest.metrics.items() if name.startswith(LEFT_OUT)}
    return {"kept": int(manifest.metrics.get("kept", 0)), "left_out": reasons}


def kept_notes(manifest: Manifest) -> list[str]:
    """A warning where a table of selections keeps nothing."""
    if not manifest.counts.written or manifest.metrics.get("kept", 0):
        return []
    things = "tasks" if manifest.record == TaskSelection.__name__ else "trajectories"
    return [f"warning: none of {manifest.counts.written:,} {things} is kept; the reasons are in the table"]


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
            elif TaskSelection.__name__ in wrong:
                hint = "name selections of trajectories, as difficulty_band makes them where `of` names trajectories"
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


Where = Annotated[
    Annotated[Literal["all", "success", "failure"], Tag("literal[where]")]
    | Annotated[list[Condition], Tag("list[Condition]")],
    # By what is given, so that a mistake in a condition is shown as one.
    Discriminator(lambda given: "list[Condition]" if isinstance(given, list) else "literal[where]"),
]


class FilterParameters(SelectionParameters):
    """Parameters of a stage that takes some trajectories of its tables."""

    # Of a rollout that reads trajectories, too, which alone would take selections of tasks only.
    selectable: ClassVar[Sequence[str]] = SelectionParameters.selectable

    chosen_roles: ClassVar[Sequence[str]] = ("of", "from")
    """The roles of the trajectories that ``where`` and ``selections`` choose from."""

    verdicts: TableNames | None = Field(default=None, description="tables of verdicts on them, for where")
    labels: TableNames | None = Field(default=None, description="tables of labels of them or their steps")
    values: TableNames | None = Field(default=None, description="tables of values of them or their steps")
    quality: TableNames | None = Field(default=None, description="tables of counts of them, made by quality")
    where: Where = Field(
        default="all",
        description="which trajectories: all, success or failure by the verdict, or conditions on annotations",
    )
    verdict: str = Field(
        default="check_outcome", description="the verdict that where asks: whether it passed, not its score"
    )

    @model_validator(mode="after")
    def _verdicts_where_asked(self) -> FilterParameters:
        if self.where in ("success", "failure"):
            if not self.verdicts:
                raise ValueError(
                    f"`where: {self.where}` needs `verdicts`, tables of them (of a command: --verdicts TABLE)"
                )
            return self
        if "verdict" in self.model_fields_set:
            raise ValueError(f"`verdict: {self.verdict}` is asked by `where: success` or `failure` alone; leave it out")
        field = next((each.field for each in self.where if isinstance(each, Condition) and each.field), None)
        if field is not None:
            raise ValueError(
                f"`where` asks the field {field!r} here, and only annotations can be asked; select by fields in a step"
                " `filter`, and name it in `selections`"
            )
        if self.where == []:
            raise ValueError("`where` is empty; give conditions, or leave it out")
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
        if isinstance(self.where, str) and self.where != "all" and self.verdicts:
            yield AnnotationNeed(f"where: {self.where}", "verdict", self.verdict)

    def notes(self, manifest: Manifest) -> list[str]:
        """Warnings for tables of annotations that nothing asks, and for annotations of items that do not exist."""
        misplaced = manifest.metrics.get(NO_ITEM, 0)
        text = "verdicts, labels or values name items that their trajectories do not have, and were not used"
        return [*unasked_notes(self), *([f"warning: {misplaced:,.0f} {text}"] if misplaced else [])]

    def choice(self, inputs: Inputs) -> TrajectoryFilter:
        """Which trajectories are taken. Raises ``UserError`` for selections that are all of other trajectories."""
        trajectories = [table for role in self.chosen_roles for table in tables_of(inputs, role)]
        # Selections of tasks choose what a rollout plays, and do not concern the trajectories that it also reads.
        records = (Selection,) if self.primary == "tasks" else (Selection, TaskSelection)
        selected = self.selected(inputs, trajectories, *records)
        # A judge's words are in its evidence, and only critiques are made of them.
        index = AnnotationIndex(inputs, evidence=getattr(self, "critique", None) is not None)
        return TrajectoryFilter(self.where, self.verdict, index, selected)


NO_FIELDS = Trajectory(trajectory_id="", content=[])
"""What conditions on annotations alone are asked of."""


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

    def measures(self, trajectory_id: str, items: int | None = None) -> Mapping[str, float]:
        """Counts a trajectory that stays because no table of selections knows it, and, with the number of its
        ``items``, annotations of items that it does not have; for the manifest."""
        unknown = {} if self._selected is None else self._selected.measures(trajectory_id)
        misplaced = 0 if items is None else self._index.of(trajectory_id).outside(items)
        return {**unknown, **({NO_ITEM: misplaced} if misplaced else {})}

    def with_inherited(self, trajectory: Trajectory, annotations: Annotations, lineage: Lineage) -> Annotations:
        """``annotations`` with the annotations of the steps that the trajectory copied where they were taken first."""
        for ancestor_id, end in lineage.sources(trajectory):
            annotations = annotations.with_inherited(self._index.of(ancestor_id), end)
        return annotations

    def all_annotations(self, trajectory_id: str) -> Annotations:
        """The annotations of a trajectory, chosen or not."""
        return self._index.of(trajectory_id)

    def verdict(self, trajectory_id: str) -> Verdict | None:
        """The verdict on a trajectory, chosen or not, that ``where: success`` would ask."""
        return self._index.of(trajectory_id).verdict(self._verdict)

    def annotations(self, trajectory_id: str) -> Annotations:
        """The annotations of a trajectory that is chosen. Raises ``Unused`` for one that is left out."""
        annotations = self._index.of(trajectory_id)
        if self._selected is not None and (refusal := self._selected.refusal(trajectory_id)):
            raise refusal
        if self._where == "all":
            return annotations
        if isinstance(self._where, list):
            failed = next((each for each in self._where if not each.holds(NO_FIELDS, annotations)), None)
            if failed is not None:
                raise Unused(str(failed), f"the condition on {failed} does not hold")
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
