"""``sample``: k independent episodes of a task, each from the start to the end.

Crossed with policies this is rejection sampling, best-of-n, the expert's demonstrations and the rollouts of every
evaluation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from agentmill.schemas.records.trajectory import Trajectory
from agentmill.synthesis.rollouts.episode import EpisodePlan
from agentmill.synthesis.rollouts.parameters import Attempts
from agentmill.synthesis.rollouts.strategy import Exploration


class Sample(Attempts):
    """k episodes per task by a policy, crossed with scaffold and constraints."""

    async def explore(self, exploration: Exploration, trajectory_id: str) -> AsyncIterator[Trajectory]:
        """Yield the trajectory with this id."""
        yield await self.play(exploration, self.plan_of(exploration, trajectory_id))

    def attempt_plan(self, exploration: Exploration, attempt: int) -> EpisodePlan:
        """As ``Attempts.attempt_plan``."""
        return self.plan(exploration, "sample", self.scaffold, attempt=attempt)
