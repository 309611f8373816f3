"""Which messages of a conversation carry loss, and how much of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from pydantic import Field

from schemas.conditions import Condition
from schemas.config import Config
from schemas.rows import Message
from schemas.trajectory import Trajectory
from schemas.views.evidence import Evidence
from schemas.views.score import Criterion, score
from schemas.views.turns import Said, is_copied, went_wrong
from schemas.views.view import Unused


class LossRule(Config):
    """Parameters of views that mark assistant messages. Copied items never carry loss."""

    loss: Literal["all", "not_error", "source"] = Field(
        default="all",
        description="which assistant turns carry loss: all, those that met no error, or those the source marked",
    )
    steps: list[Condition] = Field(
        default=[], description="conditions on a step's verdicts, labels and values; those that fulfil all carry loss"
    )
    weight: Criterion | None = Field(
        default=None,
        description="a score that the loss is multiplied with: the step's own, else its trajectory's; never negative",
    )

    def marked(self, told: Sequence[Said], trajectory: Trajectory, evidence: Evidence) -> list[Message]:
        """The messages, marked. Raises ``Unused`` for a step with loss whose weight is unknown or negative."""
        return [self._marked(said, trajectory, evidence) for said in told]

    def _marked(self, said: Said, trajectory: Trajectory, evidence: Evidence) -> Message:
        if not self._carries(said, trajectory, evidence):
            return said.message
        weight = 1.0 if self.weight is None else step_weight(self.weight, trajectory, evidence, said.step)
        return msgspec.structs.replace(said.message, train=True, weight=weight) if weight else said.message

    def _carries(self, said: Said, trajectory: Trajectory, evidence: Evidence) -> bool:
        content = trajectory.content
        if said.step is None or is_copied(content, said.items):
            return False
        if self.loss == "source" and not all(content[item].train is True for item in said.items):
            return False
        if self.loss == "not_error" and went_wrong(content, said.items):
            return False
        return all(condition.holds(trajectory, evidence, said.step) for condition in self.steps)


def step_weight(criterion: Criterion, trajectory: Trajectory, evidence: Evidence, step: int | None) -> float:
    """The score of a step, else that of its trajectory. Raises ``Unused`` if it is unknown or negative."""
    found = score(criterion, trajectory, evidence, step)
    if found is None:
        found = score(criterion, trajectory, evidence)
    if found is None:
        raise Unused("unscored", f"no {criterion} to weigh item {step} by")
    if found < 0:
        raise Unused("negative_weight", f"{criterion} of item {step} is {found:g}: loss cannot be weighed by it")
    return found
