"""``sample``: k independent episodes of a task, each from the start to the end.

Crossed with policies this is rejection sampling, best-of-n, the expert's demonstrations and the rollouts of every
evaluation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from pydantic import Field

from schemas.task import Task
from schemas.trajectory import Trajectory
from synthesis.strategies.episode import EpisodePlan, begin, run_episode
from synthesis.strategies.rules import EpisodeRules
from synthesis.strategies.strategy import Exploration


class Sample(EpisodeRules):
    """``k`` attempts of a task by one policy."""

    k: int = Field(default=1, ge=1, description="episodes per task")

    def count(self, start: Task | Trajectory) -> int:
        """The attempts."""
        del start
        return self.k

    def planned(self, exploration: Exploration) -> list[str]:
        """The ids of the ``k`` trajectories. They do not depend on ``k``: a larger one keeps what is there."""
        return [plan.trajectory_id for plan in self._plans(exploration)]

    async def explore(self, exploration: Exploration, piece: str) -> AsyncIterator[Trajectory]:
        """Yield the trajectory with this id."""
        [plan] = [plan for plan in self._plans(exploration) if plan.trajectory_id == piece]
        environment = exploration.make_environment()
        try:
            episode = self.episode(plan, environment, exploration, begin(plan, environment))
            yield await run_episode(episode, episode.play())
        finally:
            environment.close()

    def _plans(self, exploration: Exploration) -> list[EpisodePlan]:
        return [self.plan(exploration, "sample", self.scaffold, attempt=attempt) for attempt in range(self.k)]
