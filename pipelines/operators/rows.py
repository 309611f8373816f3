"""What the operators that make training rows share: which trajectories they take, and what they do with a view."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from agentmill.pipelines.engine.operation import Blamed, Operation, Result, RowOperation, Unit
from agentmill.pipelines.operators.lineage import Lineage
from agentmill.pipelines.operators.selection import SAID, FilterParameters, TrajectoryFilter, left_out
from agentmill.pipelines.operators.stage import Inputs, StageContext, TableNames, expect, tables_of
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.registry import Registry
from agentmill.schemas.tables import Manifest
from agentmill.schemas.views import VIEWS
from agentmill.schemas.views.view import Unused, View, rows_of

TRAIN = "train"
ASIDE = "rows_of_split."
"""How the figures begin that count rows of other splits."""


class Rows(FilterParameters):
    """Training rows of trajectories. An operator inherits from this and from its view, whose parameters it has."""

    primary: ClassVar[str] = "from"
    table_roles: ClassVar[Sequence[str]] = ("from_", *SAID)
    views: ClassVar[Registry] = VIEWS
    """Where the view is registered."""

    view: ClassVar[str]
    """What the view is called."""

    from_: TableNames = Field(alias="from", description="tables of trajectories")

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """The rows of the view, from trajectories."""
        expect(reads, "from", "Trajectory")
        self.expect_said(reads)
        kind: type[View] = self.views.load(self.view)
        return kind.record.__name__

    def notes(self, manifest: Manifest) -> list[str]:
        """A warning where rows come from tasks that were set aside: who trains on them cannot be evaluated there."""
        aside = {name.removeprefix(ASIDE): n for name, n in manifest.metrics.items() if name.startswith(ASIDE)}
        unasked = super().notes(manifest)
        if not aside:
            return unasked
        counts = ", ".join(f"{n:,.0f} of {split}" for split, n in sorted(aside.items()))
        return [
            *unasked,
            f"warning: of {manifest.counts.written:,} rows {counts} are not of split train; a model trained on them "
            "cannot be judged on these tasks. Let the steps before take split: train, unless you mean it",
        ]

    def operation(self, inputs: Inputs, context: StageContext) -> Operation:
        """The rows."""
        del context
        copies = getattr(self, "copied", "none") != "none"
        lineage = Lineage(tables_of(inputs, "from")) if copies else None
        return Export(self.made_view(inputs), self.choice(inputs), lineage)

    def made_view(self, inputs: Inputs) -> View:
        """The view, with the parameters that this step has of it."""
        del inputs
        kind: Any = self.views.load(self.view)
        view: View = kind(**{name: getattr(self, name) for name in kind.model_fields})
        return view


def set_aside(row: Record) -> Mapping[str, float]:
    """One row of a split other than ``train``, to be counted in the manifest; nothing for other rows."""
    split = getattr(row, "split", None)
    return {} if split in (None, TRAIN) else {f"{ASIDE}{split}": 1}


class Export(RowOperation):
    """The training rows that a view makes of chosen trajectories; one that gives no row is dropped."""

    blamed: ClassVar[Blamed] = "curation"
    chunk_rows: ClassVar[int] = 5_000

    def __init__(self, view: View, choice: TrajectoryFilter, lineage: Lineage | None = None) -> None:
        super().__init__(view.name, Trajectory, view.record)
        self._view = view
        self._choice = choice
        self._lineage = lineage

    def open(self) -> None:
        """Load what the choice rests on."""
        self._choice.load()
        if self._lineage is not None:
            self._lineage.load()

    def process(self, record: Any, unit: Unit) -> Iterable[Result]:
        """The rows of a trajectory."""
        (input_id,) = unit
        try:
            evidence = self._choice.evidence(record.trajectory_id)
            if self._lineage is not None:
                evidence = self._choice.with_inherited(record, evidence, self._lineage)
            rows = rows_of(self._view, record, evidence)
        except Unused as error:
            return [Result(input_id=input_id, dropped=left_out(input_id, self.name, record, error))]
        return [Result(input_id=input_id, outputs=rows, measures=self._choice.measures(record.trajectory_id))]

    def measures(self, output: Record) -> Mapping[str, float]:
        """Rows of splits other than ``train``."""
        return set_aside(output)
