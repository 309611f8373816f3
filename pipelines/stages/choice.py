"""Which trajectories a stage takes: by verdicts and by selections; and what other tables say of those it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Literal

from pydantic import Field, model_validator

from pipelines.stages.lookup import Lookup
from pipelines.stages.said import Said
from pipelines.stages.stage import Inputs, Stage, TableNames, expect, tables_of
from schemas.trajectory import Trajectory
from schemas.verdict import Dropped, Selection
from schemas.views.evidence import Evidence
from schemas.views.view import Unused

Where = Literal["all", "success", "failure"]
SAID = {"verdicts": "Verdict", "labels": "Label", "values": "Value", "selections": "Selection"}


class Choosing(Stage):
    """Parameters of a stage that takes some trajectories of its tables."""

    verdicts: TableNames | None = Field(default=None, description="tables of verdicts on them, for where")
    labels: TableNames | None = Field(default=None, description="tables of labels of them or their steps")
    values: TableNames | None = Field(default=None, description="tables of values of them or their steps")
    selections: TableNames | None = Field(default=None, description="tables of selections of them")
    where: Where = Field(default="all", description="which trajectories, by the verdict")
    verdict: str = Field(default="check_outcome", description="the verdict that where asks")

    @model_validator(mode="after")
    def _verdicts_where_asked(self) -> Choosing:
        if self.where != "all" and not self.verdicts:
            raise ValueError(f"`where: {self.where}` needs `verdicts`")
        return self

    def expect_said(self, reads: Mapping[str, Sequence[str]]) -> None:
        """Raises ``UserError`` for tables that do not say what their role promises."""
        for role, record in SAID.items():
            if role in reads:
                expect(reads, role, record)

    def choice(self, inputs: Inputs) -> Choice:
        """Which trajectories are taken."""
        selections = Lookup(tables_of(inputs, "selections"), Selection, attrgetter("trajectory_id"))
        return Choice(self.where, self.verdict, Said(inputs), selections if self.selections else None)


class Choice:
    """Which trajectories are taken, and what is said of them. Pickles to workers."""

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


def left_out(input_id: str, stage: str, trajectory: Trajectory, why: Unused) -> Dropped:
    """The dead letter of a trajectory that was not taken, or gave nothing."""
    reference = {"trajectory_id": trajectory.trajectory_id}
    return Dropped(
        input_id=input_id, stage=stage, reason=why.reason, blamed="curation", detail=str(why), input=reference
    )
