"""The contract of a verifier: what is to be said of one trajectory."""

from __future__ import annotations

from typing import Protocol

from schemas.task import Task
from schemas.trajectory import Trajectory
from schemas.verdict import Verdict
from synthesis.environments.environment import Environment


class Verifier(Protocol):
    """Who judges. Holds parameters only."""

    name: str

    async def verify(self, task: Task, trajectory: Trajectory, environment: Environment | None = None) -> Verdict:
        """The verdict; ``status`` is ``unscored`` where the verifier has nothing to say, ``error`` where it failed."""
