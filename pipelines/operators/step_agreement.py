"""``step_agreement``: whether another policy would take the steps of a trajectory, by branches of that policy.

The branches are those of an expert, a teacher or another model at the turns of the trajectory (``branch`` with
``turns: all`` and ``depth: 1``). Of branches that were played on only the first turn counts (StepAgent,
arXiv:2411.03817).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from agentmill.pipelines.engine import stop
from agentmill.pipelines.operators.labelling import ROLES, Labeller, Source
from agentmill.pipelines.operators.lookup import BRANCHES, Relation
from agentmill.pipelines.operators.operator import Inputs, TableNames, tables_of
from agentmill.pipelines.operators.step_estimates import check_all_kept, check_replaced, note_once
from agentmill.pipelines.operators.trajectory_index import stream
from agentmill.schemas.conditions import reaches
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.views.annotations import Annotations
from agentmill.synthesis.step_labels import Agreement, On, agreements, turn_key
from agentmill.synthesis.step_values import steps_of
from agentmill.synthesis.verifiers.verifier import Finding

AGREES, DIFFERS = "agrees", "differs"
COLUMNS = ("trajectory_id", "content", "parent_id", "branch_turn")


class StepAgreement(Labeller):
    """Verdicts on steps and whole trajectories: the share of another policy's branches that do the same."""

    table_roles: ClassVar[Sequence[str]] = ("of", "branches", *ROLES)
    relation: ClassVar[Relation] = BRANCHES

    branches: TableNames = Field(description="tables of branches of these trajectories, by the other policy")
    on: On = Field(
        default="action", description="what must be equal: the action (tool and arguments), or the state after it"
    )
    agree_at: float = Field(
        default=0.5, gt=0, le=1, description="the share of its branches that must do the same for a step to agree"
    )
    pass_at: float = Field(default=1.0, gt=0, le=1, description="the share of steps that must agree for the whole")
    name: str = Field(default="step_agreement", min_length=1, description="the name of its verdicts and labels")

    def check_inputs(self, inputs: Inputs) -> None:
        """Raises ``UserError``, too, for branches that replace no turn, or of which those that agree were dropped."""
        super().check_inputs(inputs)
        check_replaced(tables_of(inputs, "branches"))
        check_all_kept(tables_of(inputs, "branches"))

    def source(self, inputs: Inputs) -> Source:
        """The first turns of the branches."""
        return FirstTurns(self, [path for table in tables_of(inputs, "branches") for path in table.shards()])


class FirstTurns:
    """What branches did in their first turns, as digests, by trajectory and turn."""

    def __init__(self, parameters: StepAgreement, paths: Sequence[Path]) -> None:
        self._parameters = parameters
        self._paths = paths
        self._found: dict[str, dict[int, Counter[str]]] = {}

    def load(self) -> None:
        """As ``Source``; a branch without an action in its first turn counts for nothing.

        Raises ``UserError``, too, for a branch that is given twice.
        """
        self._found = defaultdict(lambda: defaultdict(Counter))
        seen: set[str] = set()
        for path in self._paths:
            for _, branch in stream([path], COLUMNS):
                stop.check()
                note_once(seen, branch.trajectory_id, path)
                turn, parent_id = branch.branch_turn, branch.parent_id
                key = None if turn is None else turn_key(self._parameters.on, branch.content, turn)
                if parent_id is not None and turn is not None and key is not None:
                    self._found[parent_id][turn][key] += 1

    def findings(self, trajectory: Trajectory, annotations: Annotations) -> Sequence[Finding]:
        """A verdict and a label on each own step with branches, and a verdict on the whole.

        The whole is unscored (``no_branches``) where no own step has any that can be compared.
        """
        del annotations
        given, steps = self._parameters, [step for step in steps_of(trajectory) if step.own]
        found = agreements(trajectory.content, steps, self._found.get(trajectory.trajectory_id, {}), given.on)
        agreeing = [self._agrees(each) for each in found]
        evidence = {
            "on": given.on,
            "steps": len(steps),
            "compared": len(found),
            "agree": sum(agreeing),
            "branches": sum(each.n for each in found),
        }
        if not found:
            return [given.new_verdict(trajectory, reason="no_branches", evidence=evidence)]
        share = sum(agreeing) / len(found)
        if not all(agreeing):
            evidence["first_item"] = found[agreeing.index(False)].item
        passed = reaches(share, given.pass_at)
        whole = given.new_verdict(trajectory, status="scored", score=share, passed=passed, evidence=evidence)
        return [whole, *(each for agreement in found for each in self._on_step(trajectory, agreement))]

    def _on_step(self, trajectory: Trajectory, found: Agreement) -> Sequence[Finding]:
        agrees = self._agrees(found)
        evidence: Mapping[str, int] = {"branches": found.n, "agree": found.agree}
        scored = {"status": "scored", "score": found.share, "passed": agrees, "evidence": evidence}
        return [
            self._parameters.new_verdict(trajectory, item=found.item, **scored),
            self._parameters.new_label(trajectory, AGREES if agrees else DIFFERS, found.item),
        ]

    def _agrees(self, found: Agreement) -> bool:
        return reaches(found.share, self._parameters.agree_at)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_found": {}}
