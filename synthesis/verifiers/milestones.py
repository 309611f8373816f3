"""``milestones``: how much of what leads to a goal a trajectory has reached, and at which step.

With ``check_outcome`` it shows shortcuts: a success (``{verdict: check_outcome, passed: true}``) that did not pass its
milestones came about in another way than the task means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
from pydantic import Field, model_validator

from agentmill.schemas.conditions import reaches
from agentmill.schemas.config import Config
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Label
from agentmill.synthesis.environments.environment import Environment
from agentmill.synthesis.verifiers.action_pattern import ActionPattern
from agentmill.synthesis.verifiers.verifier import Finding, PartId, Verifier, check_ids

JUDGE = "milestones"


class Milestone(Config):
    """Something that a trajectory has to reach, and what it is worth."""

    id: PartId
    of: ActionPattern = Field(description="it is reached by the first item that this fits")
    weight: float = Field(default=1.0, gt=0, description="how much of the score it is")


class Milestones(Verifier):
    """The share of milestones that trajectories reach, in order if asked; the step that reaches one is labelled."""

    writes_labels: ClassVar[bool] = True

    name: str = "milestones"
    milestones: list[Milestone] = Field(min_length=1, description="what has to be reached")
    ordered: bool = Field(False, description="each counts only after the one before it")
    pass_at: float = Field(1.0, gt=0, le=1, description="the score that passes")

    @model_validator(mode="after")
    def _ids_differ(self) -> Milestones:
        check_ids(self.parts(), "milestones")
        return self

    def parts(self) -> Sequence[str]:
        """The ids of the milestones."""
        return [each.id for each in self.milestones]

    async def verify(
        self, task: Task | None, trajectory: Trajectory, environment: Environment | None = None
    ) -> Sequence[Finding]:
        """A verdict per milestone and one on the whole, whose score is the weighted share of those reached."""
        del task, environment
        reached = self._reached(trajectory)
        score = sum(each.weight for each in self.milestones if reached[each.id] is not None)
        score /= sum(each.weight for each in self.milestones)
        found: list[Finding] = [
            msgspec.structs.replace(
                self.verdict(trajectory, JUDGE),
                status="scored",
                score=score,
                passed=reaches(score, self.pass_at),
                evidence={"items": reached},
            )
        ]
        for name, item in reached.items():
            verdict = self.verdict(trajectory, JUDGE, name)
            score, evidence = float(item is not None), {} if item is None else {"item": item}
            found.append(
                msgspec.structs.replace(
                    verdict, status="scored", score=score, passed=item is not None, evidence=evidence
                )
            )
            if item is not None:
                found.append(
                    Label(
                        trajectory_id=trajectory.trajectory_id,
                        name=f"{self.name}/{name}",
                        value="reached",
                        labeller=JUDGE,
                        item=item,
                    )
                )
        return found

    def _reached(self, trajectory: Trajectory) -> dict[str, int | None]:
        """The first item that reaches each milestone, ``None`` for one that is not reached."""
        found: dict[str, int | None] = {}
        start: int | None = 0
        for each in self.milestones:
            places = [] if start is None else [place for place in each.of.places(trajectory.content) if place >= start]
            found[each.id] = next(iter(places), None)
            if self.ordered:
                start = None if found[each.id] is None else places[0] + 1
        return found
