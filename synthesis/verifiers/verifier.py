"""The contract of a verifier: its parameters, and the verdict that it gives on one trajectory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from agentmill.schemas.config import Config
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Verdict
from agentmill.synthesis.environments.environment import Environment

Need = Literal["tasks", "environments"]


class Verifier(Config):
    """A verifier's parameters are its fields; a recipe gives them in the step that runs it. Pickles to workers."""

    needs: ClassVar[Sequence[Need]] = ()
    """The tables it needs besides the trajectories; an environment cannot be made without its ``tasks``."""

    name: str
    """What its verdicts are called; two steps with the same verifier have to give different names."""

    async def verify(
        self, task: Task | None, trajectory: Trajectory, environment: Environment | None = None
    ) -> Verdict:
        """The verdict; ``status`` is ``unscored`` where nothing is known, ``error`` where the verifier failed.

        ``task`` is None unless ``needs`` names ``tasks``; ``environment`` is None unless it names ``environments``, or
        where the environment of the task is unknown. It is not reset, and closed by the caller.
        """
        raise NotImplementedError
