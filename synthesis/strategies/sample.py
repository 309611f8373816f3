"""``sample``: k independent episodes of a task, each from the start to the end.

Crossed with policies this is rejection sampling, best-of-n, the expert's demonstrations and the rollouts of every
evaluation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from schemas.trajectory import Trajectory
from synthesis.strategies.attempts import Attempts
from synthesis.strategies.episode import EpisodePlan, begin, run_episode
from synthesis.strategies.strategy import Exploration


class Sample(Attempts):
    """``k`` attempts of a task by one policy."""

    async def explore(self, exploration: Exploration, piece: str) -> AsyncIterator[Trajectory]:
        """Yield the trajectory with this id."""
        plan = self.plan_of(exploration, piece)
        environment = exploration.make_environment()
        try:
            episode = self.episode(plan, environment, exploration, begin(plan, environment))
            yield await run_episode(episode, episode.play())
        finally:
            environment.close()

    def attempt_plan(self, exploration: Exploration, attempt: int) -> EpisodePlan:
        """As ``Attempts.attempt_plan``."""
        return self.plan(exploration, "sample", self.scaffold, attempt=attempt)
