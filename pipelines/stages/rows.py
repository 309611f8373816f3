"""What the operators that make training rows share: which trajectories they take, and what they do with a view."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from pipelines.engine.operation import Blamed, Operation, Result, RowOperation, Unit
from pipelines.stages.lookup import Lookup
from pipelines.stages.said import Said
from pipelines.stages.stage import Inputs, Stage, StageContext, TableNames, expect, tables_of
from schemas.errors import UserError
from schemas.registry import Registry
from schemas.trajectory import Trajectory
from schemas.verdict import Dropped, Selection
from schemas.views import VIEWS
from schemas.views.evidence import Evidence
from schemas.views.view import Unused, View

Where = Literal["all", "success", "failure"]
SAID = {"verdicts": "Verdict", "labels": "Label", "values": "Value", "selections": "Selection"}


class Rows(Stage):
    """Training rows of trajectories. An operator inherits from this and from its view, whose parameters it has."""

    primary: ClassVar[str] = "from"
    table_roles: ClassVar[Sequence[str]] = ("from_", *SAID)
    views: ClassVar[Registry] = VIEWS
    """Where the view is registered."""

    view: ClassVar[str]
    """What the view is called."""

    from_: TableNames = Field(alias="from", description="tables of trajectories")
    verdicts: TableNames | None = Field(default=None, description="tables of verdicts on them, for where")
    labels: TableNames | None = Field(default=None, description="tables of labels of them or their steps")
    values: TableNames | None = Field(default=None, description="tables of values of them or their steps")
    selections: TableNames | None = Field(default=None, description="tables of selections of them")
    where: Where = Field(default="all", description="which trajectories, by the verdict")
    verdict: str = Field(default="check_outcome", description="the verdict that where asks")

    @model_validator(mode="after")
    def _verdicts_where_asked(self) -> Rows:
        if self.where != "all" and not self.verdicts:
            raise ValueError(f"`where: {self.where}` needs `verdicts`")
        return self

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """The rows of the view, from trajectories."""
        expect(reads, "from", "Trajectory")
        for role, record in SAID.items():
            if role in reads:
                expect(reads, role, record)
        for parameter, role in self._asked():
            if role in SAID and role not in reads:
                raise UserError(f"`{parameter}` needs `{role}`")
        kind: type[View] = self.views.load(self.view)
        return kind.record.__name__

    def operation(self, inputs: Inputs, context: StageContext) -> Operation:
        """The rows."""
        del context
        return Export(self.made_view(inputs), self.choice(inputs))

    def made_view(self, inputs: Inputs) -> View:
        """The view, with the parameters that this step has of it."""
        del inputs
        kind: Any = self.views.load(self.view)
        view: View = kind(**{name: getattr(self, name) for name in kind.model_fields})
        return view

    def _asked(self) -> Iterator[tuple[str, str]]:
        """Parameters that ask what is said of trajectories, and the role of the tables that may hold it."""
        for field in ("score", "weight"):
            criterion = getattr(self, field, None) or ""
            yield f"{field}: {criterion}", f"{criterion.partition(':')[0]}s"
        for condition in getattr(self, "steps", []):
            yield from (("steps", f"{name}s") for name in condition.model_fields_set & {"verdict", "label", "value"})

    def choice(self, inputs: Inputs) -> Choice:
        """Which trajectories are taken."""
        selections = Lookup(tables_of(inputs, "selections"), Selection, attrgetter("trajectory_id"))
        return Choice(self.where, self.verdict, Said(inputs), selections if self.selections else None)


class Choice:
    """Which trajectories are exported, and what is said of them. Pickles to workers."""

    def __init__(self, where: Where, verdict: str, said: Said, selections: Lookup[Selection] | None) -> None:
        self._where = where
        self._verdict = verdict
        self._said = said
        self._selections = selections

    def load(self) -> None:
        """Load what it rests on."""
        self._said.load()
        if self._selections is not None:
            self._selections.load()

    def evidence(self, trajectory_id: str) -> Evidence:
        """What is said of a trajectory that is chosen. Raises ``Unused`` for one that is left out."""
        evidence = self._said.of(trajectory_id)
        if self._selections is not None:
            selection = self._selections.get(trajectory_id)
            if selection is None or not selection.kept:
                raise Unused("not_selected", (selection and selection.reason) or "no selection")
        if self._where == "all":
            return evidence
        verdict = evidence.verdict(self._verdict)
        if verdict is None or verdict.passed is None:
            raise Unused("unscored", f"no scored verdict {self._verdict!r}")
        if verdict.passed is not (self._where == "success"):
            raise Unused(f"not_{self._where}", f"verdict {self._verdict!r}, score {verdict.score}")
        return evidence


class Export(RowOperation):
    """The training rows that a view makes of chosen trajectories; one that gives no row is dropped."""

    blamed: ClassVar[Blamed] = "curation"
    chunk_rows: ClassVar[int] = 5_000

    def __init__(self, view: View, choice: Choice) -> None:
        super().__init__(view.name, Trajectory, view.record)
        self._view = view
        self._choice = choice

    def open(self) -> None:
        """Load what the choice rests on."""
        self._choice.load()

    def process(self, record: Any, unit: Unit) -> Iterable[Result]:
        """The rows of a trajectory."""
        (input_id,) = unit
        try:
            rows = self._view.make_rows(record, self._choice.evidence(record.trajectory_id))
        except Unused as error:
            return [Result(input_id=input_id, dropped=left_out(input_id, self.name, record, error))]
        return [Result(input_id=input_id, outputs=rows)]


def left_out(input_id: str, stage: str, trajectory: Trajectory, why: Unused) -> Dropped:
    """The dead letter of a trajectory that gave no row."""
    reference = {"trajectory_id": trajectory.trajectory_id}
    return Dropped(
        input_id=input_id, stage=stage, reason=why.reason, blamed="curation", detail=str(why), input=reference
    )
