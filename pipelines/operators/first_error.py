"""``first_error``: which step of a failed trajectory decided that it failed.

* ``counterfactual``: the earliest turn whose correction makes the episode succeed (AgenTracer, arXiv:2509.03312), found
  in branches that corrected each turn. A correction is one edit of what was recorded (``edits`` of ``branch``), after
  which the recorded turns follow: so it costs three replays a turn and no model. Where an expert goes on instead,
  the earliest turn shows nothing, since from a good state an expert always succeeds; there it is the last turn from
  which it still does (``search: last``). That finds errors that cannot be undone.
* ``judge``: the first step that a judge failed, as the agent itself does in Agent-R (arXiv:2501.11425).
* ``both``: where these two agree.

Views leave out what follows the error by the labels ``before``, ``first_error`` and ``after`` of all steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec
from pydantic import Field, model_validator

from agentmill.pipelines.engine.operation import AnyOperation, Blamed, Result, RowOperation, Unit
from agentmill.pipelines.operators.annotations import AnnotationIndex
from agentmill.pipelines.operators.error_search import (
    Correction,
    Corrections,
    Located,
    Search,
    agreed,
    agreement_note,
    located_by_judge,
)
from agentmill.pipelines.operators.lineage import Lineage
from agentmill.pipelines.operators.lookup import BRANCHES, OF_OTHERS
from agentmill.pipelines.operators.operator import Inputs, StepContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.selection import FilterParameters, TrajectoryFilter, left_out
from agentmill.pipelines.operators.step_estimates import check_finished
from agentmill.pipelines.operators.verify import LABELS, unscored_notes, verdict_measures
from agentmill.schemas.conditions import AnnotationNeed, reaches
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.record_kinds import ANNOTATION_ROLES
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Verdict
from agentmill.schemas.tables import Table
from agentmill.schemas.views.annotations import Annotations, Criterion, score
from agentmill.schemas.views.view import Unused
from agentmill.synthesis.policies.mistakes import EXPERT
from agentmill.synthesis.step_values import Step, step_labels, steps_of

FIRST_ERROR = "first_error"
OTHERS = f"{BRANCHES.role}{OF_OTHERS}"

By = Literal["counterfactual", "judge", "both"]

OWN: Mapping[str, Sequence[By]] = {
    "branches": ("counterfactual", "both"),
    "search": ("counterfactual", "both"),
    "least": ("counterfactual", "both"),
    "step_verdict": ("judge", "both"),
}
"""The parameters that not every way of finding the error has."""


class FirstError(FilterParameters):
    """A verdict on each trajectory that names its decisive error, and labels of the steps before and after it."""

    primary: ClassVar[str] = "of"
    verb: ClassVar[str | None] = "verify"
    table_roles: ClassVar[Sequence[str]] = ("of", "branches", *ANNOTATION_ROLES)
    sides: ClassVar[Sequence[str]] = (LABELS,)

    of: TableNames = Field(description="tables of trajectories; nothing is known of those that succeeded")
    by: By = Field(description="branches that corrected turns, verdicts on steps, or both where they agree")
    branches: TableNames | None = Field(default=None, description="tables of branches that corrected these")
    search: Search = Field(
        default="earliest",
        description="the earliest turn whose correction succeeds, or the last one where an expert goes on",
    )
    least: int = Field(default=1, ge=1, description="so many branches of a turn must succeed")
    step_verdict: str = Field(default="step_judge", description="the verdict on steps, for judge and both")
    score: Criterion = Field(default="outcome", description="the result of a trajectory or a branch")
    pass_at: float = Field(default=1.0, description="results from here on are successes")
    name: str = Field(default=FIRST_ERROR, min_length=1, description="what verdicts and labels are called")

    @model_validator(mode="after")
    def _what_fits(self) -> FirstError:
        for key, ways in OWN.items():
            if self.by not in ways and key in self.model_fields_set and getattr(self, key) is not None:
                raise ValueError(f"`{key}` goes with `by: {' or '.join(ways)}`")
        if self.by != "judge" and not self.branches:
            raise ValueError(f"`by: {self.by}` needs `branches`, made by `branch` with `turns: all`")
        if self.by != "counterfactual" and not self.verdicts:
            raise ValueError(f"`by: {self.by}` needs `verdicts` on steps, as step_judge writes them")
        return self

    def annotation_needs(self) -> Iterator[AnnotationNeed]:
        """As ``FilterParameters.annotation_needs``, with the verdict on steps."""
        yield from super().annotation_needs()
        if self.by != "counterfactual":
            yield AnnotationNeed(f"step_verdict: {self.step_verdict}", "verdict", self.step_verdict)

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Verdicts, on trajectories."""
        expect(reads, "of", "Trajectory")
        if "branches" in reads:
            expect(reads, "branches", "Trajectory")
        self.check_filter_needs(reads)
        return "Verdict"

    def annotations(self) -> Sequence[str]:
        """Its verdicts."""
        return [self.name]

    def check_inputs(self, inputs: Inputs) -> None:
        """The branches must fit the ``search`` and the trajectories. Raises ``UserError``."""
        for table in tables_of(inputs, "branches"):
            _check_search(table, self.search)
        BRANCHES.check(inputs)

    def notes(self, manifest: Manifest) -> list[str]:
        """What is not known, what was not used, and how far branches and judge agree."""
        foreign = manifest.metrics.get(OTHERS, 0)
        others = [f"{foreign:,.0f} rows are no branches of these trajectories, and were not used"] if foreign else []
        misplaced = [
            f"warning: {manifest.metrics[key]:,.0f} {text} name no step of their trajectory, and were not used"
            for key, text in MISPLACED.items()
            if manifest.metrics.get(key)
        ]
        agreed = [agreement_note(manifest.metrics)] if self.by == "both" else []
        return [*super().notes(manifest), *unscored_notes(manifest), *others, *misplaced, *agreed]

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The verdicts and the labels."""
        del context
        self.check_inputs(inputs)
        wanted = Correction(self.search, self.least, self.score, self.pass_at)
        corrections = Corrections(tables_of(inputs, "branches"), wanted, AnnotationIndex(inputs))
        lineage = Lineage(tables_of(inputs, "of")) if self.by != "counterfactual" else None
        return Locating(self, self.choice(inputs), corrections, lineage, BRANCHES.of_others(inputs))


def _check_search(table: Table, search: Search) -> None:
    """Raises ``UserError`` for branches in which that search would find something else than the decisive error."""
    made = table.manifest.config
    check_finished([table])
    models: Any = made.get("models") or {}
    expert = made.get("then") == "actor" and models.get("actor", {}).get("policy") == EXPERT
    if expert and search == "earliest":
        raise UserError(
            f"in the branches of {table.folder} an expert goes on, who succeeds from the first turn on\n"
            "give search: last, or make the branches with then: recorded",
            ErrorCode.BRANCHES_UNFIT,
        )
    if search == "last" and made.get("then") == "recorded":
        raise UserError(
            f"in the branches of {table.folder} the recorded turns follow, for which search: last means nothing\n"
            "leave `search` out, or make the branches with an expert as policy and then: actor",
            ErrorCode.BRANCHES_UNFIT,
        )


MISPLACED = {"branches_of_no_step": "branches", "verdicts_of_no_step": "verdicts"}
"""Counts of what names a step that its trajectory does not have, and how a warning calls it."""


class Locating(RowOperation[Trajectory, Verdict]):
    """One verdict per trajectory, with labels of its steps where the error is known."""

    blamed: ClassVar[Blamed] = "verifier"
    chunk_rows: ClassVar[int] = 5_000

    def __init__(
        self,
        parameters: FirstError,
        choice: TrajectoryFilter,
        corrections: Corrections,
        lineage: Lineage | None,
        foreign: int,
    ) -> None:
        super().__init__(FIRST_ERROR, Trajectory, Verdict)
        self.sides = (LABELS,)
        self._parameters = parameters
        self._choice = choice
        self._corrections = corrections
        self._lineage = lineage
        self._foreign = foreign

    def open(self) -> None:
        """Load branches and annotations. Raises ``UserError`` for what cannot be read."""
        self._choice.load()
        self._corrections.load()
        if self._lineage is not None:
            self._lineage.load()

    def process(self, record: Trajectory, unit: Unit) -> Iterable[Result]:
        """The verdict on a trajectory, and the labels of its steps."""
        (input_id,) = unit
        try:
            annotations = self._choice.annotations(record.trajectory_id)
        except Unused as error:
            return [Result(input_id=input_id, dropped=left_out(input_id, self.name, record, error))]
        steps, counts = steps_of(record), Counter(self._choice.measures(record.trajectory_id))
        found = self._locate(record, steps, annotations, counts)
        labels = []
        if found.step is not None:
            labels = step_labels(record, found.step.turn, FIRST_ERROR, self._parameters.name, self._labeller)
        sides = {LABELS: labels} if labels else {}
        return [Result(input_id=input_id, outputs=[self._verdict(record, steps, found)], sides=sides, measures=counts)]

    def measures(self, output: Verdict) -> Mapping[str, float]:
        """As ``verdict_measures``."""
        return verdict_measures(self._parameters.name, output)

    def side_measures(self, output: Any) -> Mapping[str, float]:
        """How many labels there are."""
        del output
        return {"labels": 1}

    def summed(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """With the rows that are no branches of the trajectories, which none of these could count."""
        return {**metrics, OTHERS: self._foreign} if self._foreign else metrics

    @property
    def _labeller(self) -> str:
        return f"{FIRST_ERROR}:{self._parameters.by}"

    def _locate(
        self, trajectory: Trajectory, steps: Sequence[Step], annotations: Annotations, counts: Counter[str]
    ) -> Located:
        result = score(self._parameters.score, trajectory, annotations)
        if result is None or reaches(result, self._parameters.pass_at):
            return Located(None, "outcome_unknown" if result is None else "success", {})
        located: dict[str, Located] = {}
        if self._parameters.by != "judge":
            found = located["counterfactual"] = self._corrections.locate(trajectory, steps)
            counts.update({"branches_of_no_step": found.misplaced} if found.misplaced else {})
        if self._lineage is not None:
            inherited = self._choice.with_inherited(trajectory, annotations, self._lineage)
            found = located["judge"] = located_by_judge(steps, inherited, self._parameters.step_verdict)
            counts.update({"verdicts_of_no_step": found.misplaced} if found.misplaced else {})
        return agreed(located, len(steps), counts) if len(located) > 1 else found

    def _verdict(self, trajectory: Trajectory, steps: Sequence[Step], found: Located) -> Verdict:
        blank = Verdict(
            trajectory_id=trajectory.trajectory_id, name=self._parameters.name, status="unscored", judge=self._labeller
        )
        evidence = {"turns": len(steps), **found.evidence}
        if found.step is None:
            return msgspec.structs.replace(blank, reason=found.reason, evidence=evidence)
        where = {"turn": found.step.turn, "item": found.step.item}
        before = sum(step.turn < found.step.turn for step in steps)
        return msgspec.structs.replace(
            blank, status="scored", score=before / len(steps), passed=False, evidence={**where, **evidence}
        )
