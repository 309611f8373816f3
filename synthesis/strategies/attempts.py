"""What strategies share that make ``k`` pieces of a task, which differ by the number of the attempt alone."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from schemas.task import Task
from schemas.trajectory import Trajectory
from synthesis.strategies.episode import EpisodePlan
from synthesis.strategies.rules import EpisodeRules
from synthesis.strategies.strategy import Exploration


class Attempts(EpisodeRules):
    """A strategy of ``k`` pieces per task: episodes, runs or trees."""

    k: int = Field(default=1, ge=1, description="how many per task")

    def count(self, start: Task | Trajectory) -> int:
        """The attempts."""
        del start
        return self.k

    def planned(self, exploration: Exploration) -> list[str]:
        """The ids of the ``k`` pieces. They do not depend on ``k``: a larger one keeps what is there."""
        return [plan.trajectory_id for plan in self._plans(exploration)]

    def plan_of(self, exploration: Exploration, piece: str) -> EpisodePlan:
        """The plan with this id."""
        return next(plan for plan in self._plans(exploration) if plan.trajectory_id == piece)

    def attempt_plan(self, exploration: Exploration, attempt: int) -> EpisodePlan:
        """The plan of an attempt; each strategy has its own."""
        raise NotImplementedError

    def _plans(self, exploration: Exploration) -> Iterator[EpisodePlan]:
        return (self.attempt_plan(exploration, attempt) for attempt in range(self.k))
