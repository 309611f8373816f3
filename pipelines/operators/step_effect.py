"""``step_effect``: which steps of a failed trajectory were beneficial and which harmful, by continuations of it.

The continuations begin at some turns of the trajectory and are played to their end (``branch`` with ``turns: even``).
Where they succeed, the steps before helped. Where they succeed at one point and fail at the next, the steps between did
harm, and the state at the later point needs recovery (EEF, arXiv:2504.13145).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from agentmill.pipelines.operators.annotations import AnnotationIndex
from agentmill.pipelines.operators.labelling import ROLES, Labeller, Source
from agentmill.pipelines.operators.lookup import BRANCHES, Relation
from agentmill.pipelines.operators.operator import Inputs, TableNames, tables_of
from agentmill.pipelines.operators.step_estimates import Continuations, check_all_kept, check_finished, check_replaced
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.views.annotations import Annotations, Criterion, score
from agentmill.synthesis.step_labels import effects, points_of, to_recover
from agentmill.synthesis.step_values import steps_of
from agentmill.synthesis.verifiers.verifier import Finding

STATE = "state"
"""The part that has labels of the states that need recovery, at the steps that were taken in them."""

NEEDS_RECOVERY = "needs_recovery"


class StepEffect(Labeller):
    """Labels of the steps that helped and of those that harmed, by continuations from some turns of the trajectory."""

    table_roles: ClassVar[Sequence[str]] = ("of", "branches", *ROLES)
    relation: ClassVar[Relation] = BRANCHES

    branches: TableNames = Field(description="tables of branches of these trajectories, played to their end")
    score: Criterion = Field(default="outcome", description="the result of a trajectory or a branch")
    success_at: float = Field(
        default=0.5, gt=0, description="the mean score of the branches of a turn from which they succeed there"
    )
    name: str = Field(default="step_effect", min_length=1, description="the name of its verdicts and labels")

    def parts(self) -> Sequence[str]:
        """The states, which may need recovery."""
        return (STATE,)

    def check_inputs(self, inputs: Inputs) -> None:
        """Raises ``UserError``, too, for branches that replace no turn, or were not played to their end."""
        super().check_inputs(inputs)
        check_finished(tables_of(inputs, "branches"))
        check_replaced(tables_of(inputs, "branches"))
        check_all_kept(tables_of(inputs, "branches"))

    def source(self, inputs: Inputs) -> Source:
        """The results of the branches."""
        paths = [str(path) for table in tables_of(inputs, "branches") for path in table.shards()]
        return Effects(self, Continuations(paths, self.score, AnnotationIndex(inputs)))


class Effects:
    """Effects of steps, by the results of continuations."""

    def __init__(self, parameters: StepEffect, continuations: Continuations) -> None:
        self._parameters = parameters
        self._continuations = continuations

    def load(self) -> None:
        """As ``Source``; a branch without a score counts for nothing.

        Raises ``UserError``, too, for a branch that is given twice, and for one that was cut off after its first turn.
        """
        self._continuations.load()

    def findings(self, trajectory: Trajectory, annotations: Annotations) -> Sequence[Finding]:
        """Labels of own steps, and a verdict on the whole: the share of the labelled steps that is beneficial.

        It passes where no own step is harmful.
        Unscored (``no_branches``) where no scored branch begins at any turn of it, and where all that is known are
        failures (``no_success``), or nothing is known of its own steps (``no_own_steps``).
        """
        given, steps = self._parameters, steps_of(trajectory)
        results = self._continuations.results(trajectory.trajectory_id)
        points = points_of(steps, results, score(given.score, trajectory, annotations), given.success_at)
        found = effects(steps, points)
        own = {step.item: found[step.item] for step in steps if step.own and step.item in found}
        evidence: JsonObject = {
            "branches": sum(point.n for point in points if point.turn in results),
            "points": [point.evidence() for point in points],
        }
        if not evidence["branches"] or not own:
            reason = "no_branches" if not evidence["branches"] else "no_own_steps" if found else "no_success"
            return [given.new_verdict(trajectory, reason=reason, evidence=evidence)]
        share = sum(effect == "beneficial" for effect in own.values()) / len(own)
        items = {step.item for step in steps if step.own}
        states = [point.item for point in to_recover(points) if point.item in items]
        return [
            given.new_verdict(trajectory, status="scored", score=share, passed=share == 1, evidence=evidence),
            *(given.new_label(trajectory, effect, item) for item, effect in own.items()),
            *(given.new_label(trajectory, NEEDS_RECOVERY, item, STATE) for item in states),
        ]
