"""Which trajectories a stage takes: by verdicts and by selections; and what other tables say of those it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from pydantic import Field, model_validator

from pipelines.stages.annotations import expect_asked, unasked_notes
from pipelines.stages.lineage import Lineage
from pipelines.stages.said import Said
from pipelines.stages.selection import Selected, SelectionTables, check_overlap
from pipelines.stages.stage import Inputs, Stage, StageContext, TableNames, expect, tables_of
from schemas.asked import Asked
from schemas.manifest import Manifest
from schemas.record import JsonObject
from schemas.trajectory import Trajectory
from schemas.verdict import Dropped
from schemas.views.evidence import Evidence
from schemas.views.view import Unused

Where = Literal["all", "success", "failure"]
SAID = {"verdicts": "Verdict", "labels": "Label", "values": "Value", "selections": "Selection"}


class Choosing(Stage):
    """Parameters of a stage that takes some trajectories of its tables."""

    verdicts: TableNames | None = Field(default=None, description="tables of verdicts on them, for where")
    labels: TableNames | None = Field(default=None, description="tables of labels of them or their steps")
    values: TableNames | None = Field(default=None, description="tables of values of them or their steps")
    selections: SelectionTables | None = Field(
        default=None, description="tables of selections of them; each that knows one must keep it, or {any: […]}"
    )
    where: Where = Field(default="all", description="which trajectories, by the verdict")
    verdict: str = Field(
        default="check_outcome", description="the verdict that where asks: whether it passed, not its score"
    )

    @model_validator(mode="after")
    def _verdicts_where_asked(self) -> Choosing:
        if self.where != "all" and not self.verdicts:
            raise ValueError(f"`where: {self.where}` needs `verdicts`")
        if self.where == "all" and "verdict" in self.model_fields_set:
            raise ValueError(f"`verdict: {self.verdict}` is asked by `where: success` or `failure`; `all` asks nothing")
        return self

    def expect_said(self, reads: Mapping[str, Sequence[str]]) -> None:
        """Raises ``UserError`` for tables that do not say what their role promises, and for a role that is missing."""
        for role, record in SAID.items():
            if role in reads:
                expect(reads, role, record)
        expect_asked(self, reads)

    def asked(self) -> Iterator[Asked]:
        """As ``Stage.asked``, with the verdict that ``where`` asks."""
        yield from super().asked()
        if self.where != "all" and self.verdicts:
            yield Asked(f"where: {self.where}", "verdict", self.verdict)

    def notes(self, manifest: Manifest) -> list[str]:
        """A warning for tables of annotations that nothing asks."""
        del manifest
        return unasked_notes(self)

    def names_of(self, field: str) -> list[str]:
        """As ``Stage.names_of``; ``selections`` is a mapping."""
        if field == "selections":
            return [] if self.selections is None else self.selections.names
        return super().names_of(field)

    def settled(self, context: StageContext) -> JsonObject:
        """As ``Stage.settled``, with how selections go together."""
        rule = {} if self.selections is None else {"selections": self.selections.rule()}
        return {**super().settled(context), **rule}

    def choice(self, inputs: Inputs) -> Choice:
        """Which trajectories are taken. Raises ``UserError`` for selections that are all of other trajectories."""
        selected = None
        if self.selections is not None:
            selections = tables_of(inputs, "selections")
            check_overlap(selections, [*tables_of(inputs, "of"), *tables_of(inputs, "from")])
            selected = Selected(selections, self.selections)
        return Choice(self.where, self.verdict, Said(inputs), selected)


class Choice:
    """Which trajectories are taken, and what is said of them. Pickles to workers."""

    def __init__(self, where: Where, verdict: str, said: Said, selected: Selected | None) -> None:
        self._where = where
        self._verdict = verdict
        self._said = said
        self._selected = selected

    def load(self) -> None:
        """Load what it rests on."""
        self._said.load()
        if self._selected is not None:
            self._selected.load()

    def measures(self, trajectory_id: str) -> Mapping[str, float]:
        """Counts a trajectory that stays because no table of selections knows it; for the manifest."""
        unknown = self._selected is not None and not self._selected.knows(trajectory_id)
        return {"not_in_selections": 1} if unknown else {}

    def with_inherited(self, trajectory: Trajectory, evidence: Evidence, lineage: Lineage) -> Evidence:
        """``evidence`` with what is said of the steps that the trajectory copied where they were taken first."""
        for ancestor_id, end in lineage.sources(trajectory):
            evidence = evidence.with_inherited(self._said.of(ancestor_id), end)
        return evidence

    def evidence(self, trajectory_id: str) -> Evidence:
        """What is said of a trajectory that is chosen. Raises ``Unused`` for one that is left out."""
        evidence = self._said.of(trajectory_id)
        if self._selected is not None:
            self._selected.check(trajectory_id)
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
