"""``sft``: training rows for supervised fine-tuning, from the trajectories that are chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from pipelines.engine.operation import Blamed, Operation, Result, RowOperation, Unit
from pipelines.stages.lookup import Lookup
from pipelines.stages.said import Said
from pipelines.stages.stage import Inputs, Stage, StageContext, TableNames, expect, tables_of
from schemas.trajectory import Trajectory
from schemas.verdict import Dropped, Selection, Verdict
from schemas.views.sft import Loss
from schemas.views.sft import Sft as SftView

Where = Literal["all", "success", "failure"]


class Sft(Stage):
    """Training rows of trajectories: conversations whose assistant turns carry loss."""

    primary: ClassVar[str] = "from"
    table_roles: ClassVar[Sequence[str]] = ("from_", "verdicts", "selections")

    from_: TableNames = Field(alias="from", description="tables of trajectories")
    verdicts: TableNames | None = Field(default=None, description="tables of verdicts on them, for where")
    selections: TableNames | None = Field(default=None, description="tables of selections of them")
    where: Where = Field(default="all", description="which trajectories, by the verdict")
    verdict: str = Field(default="check_outcome", description="the verdict that where asks")
    rows: Literal["trajectory", "step"] = Field(default="trajectory", description="one row per trajectory, or per step")
    loss: Loss = Field(default="all", description="which assistant turns carry loss")

    @model_validator(mode="after")
    def _verdicts_where_asked(self) -> Sft:
        if self.where != "all" and not self.verdicts:
            raise ValueError(f"`where: {self.where}` needs `verdicts`")
        return self

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Rows for supervised fine-tuning, from trajectories."""
        expect(reads, "from", "Trajectory")
        for role, record in (("verdicts", "Verdict"), ("selections", "Selection")):
            if role in reads:
                expect(reads, role, record)
        return "SftRow"

    def operation(self, inputs: Inputs, context: StageContext) -> Operation:
        """The rows."""
        del context
        said = Said(tables_of(inputs, "verdicts"))
        selections = Lookup(tables_of(inputs, "selections"), Selection, attrgetter("trajectory_id"))
        choice = Choice(self.where, self.verdict, said, selections if self.selections else None)
        return Export("sft", SftView(rows=self.rows, loss=self.loss), choice)


class Choice:
    """Which trajectories are exported. Pickles to workers."""

    def __init__(self, where: Where, verdict: str, said: Said, selections: Lookup[Selection] | None) -> None:
        self._where = where
        self._verdict = verdict
        self._said = said
        self._selections = selections

    def load(self) -> None:
        """Load verdicts and selections."""
        self._said.load()
        if self._selections is not None:
            self._selections.load()

    def refusal(self, trajectory_id: str) -> tuple[str, str] | None:
        """(reason, detail) of a trajectory that is left out; ``None`` for one that is chosen."""
        if self._selections is not None:
            selection = self._selections.get(trajectory_id)
            if selection is None or not selection.kept:
                return "not_selected", (selection and selection.reason) or "no selection"
        if self._where == "all":
            return None
        verdict = self._said.of(trajectory_id).get("verdict", {}).get(self._verdict)
        if not isinstance(verdict, Verdict) or verdict.passed is None:
            return "unscored", f"no scored verdict {self._verdict!r}"
        if verdict.passed is not (self._where == "success"):
            return f"not_{self._where}", f"verdict {self._verdict!r}, score {verdict.score}"
        return None


class Export(RowOperation):
    """The training rows that a view makes of chosen trajectories."""

    blamed: ClassVar[Blamed] = "curation"
    chunk_rows: ClassVar[int] = 5_000

    def __init__(self, name: str, view: SftView, choice: Choice) -> None:
        super().__init__(name, Trajectory, view.record)
        self._view = view
        self._choice = choice

    def open(self) -> None:
        """Load what the choice rests on."""
        self._choice.load()

    def process(self, record: Any, unit: Unit) -> Iterable[Result]:
        """The rows of a trajectory; one that is not chosen, or gives no row, is dropped."""
        (input_id,) = unit
        refusal = self._choice.refusal(record.trajectory_id)
        rows = [] if refusal else self._view.make_rows(record)
        if rows:
            return [Result(input_id=input_id, outputs=rows)]
        reason, detail = refusal or ("no_loss", "no message carries loss")
        reference = {"trajectory_id": record.trajectory_id}
        letter = Dropped(
            input_id=input_id, stage=self.name, reason=reason, blamed="curation", detail=detail, input=reference
        )
        return [Result(input_id=input_id, dropped=letter)]
