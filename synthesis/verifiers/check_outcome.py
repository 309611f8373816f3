"""``check_outcome``: what the task's own checker says of the state that a trajectory really leads to.

The recorded actions are replayed in a fresh environment, so that nothing is believed that is only written down: the
state is compared with the recorded digest at every step, and a difference is an error, never a silent other state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Verdict
from agentmill.synthesis.environments.environment import Environment
from agentmill.synthesis.rollouts.scaffold import CLOSED_BOOK
from agentmill.synthesis.rollouts.step import divergence, environment_at_fault, simulated
from agentmill.synthesis.verifiers.verifier import Need, Verifier


class CheckOutcome(Verifier):
    """Replays a trajectory that we made and asks the environment whether the goal is met."""

    needs: ClassVar[Sequence[Need]] = ("tasks", "environments")

    name: str = "check_outcome"

    async def verify(
        self, task: Task | None, trajectory: Trajectory, environment: Environment | None = None
    ) -> Verdict:
        """``score`` is the share of the goal met; ``passed`` that all of it is.

        ``unscored`` without an environment, for a trajectory that does not say how it was made, for an answer without
        tools, which the environment never got, and (``no_real_state``) where a model played the environment;
        ``error`` where the replay comes to another state than the one recorded. Raises ``EnvError`` if the environment
        breaks.
        """
        verdict = Verdict(
            trajectory_id=trajectory.trajectory_id, name=self.name, status="unscored", judge="environment"
        )
        if simulated(trajectory):
            return msgspec.structs.replace(verdict, reason="no_real_state")
        if task is None or environment is None:
            return msgspec.structs.replace(verdict, reason="no_environment")
        if trajectory.generation is None:
            return msgspec.structs.replace(verdict, reason="not_generated")
        if trajectory.generation.scaffold == CLOSED_BOOK:
            return msgspec.structs.replace(verdict, reason=CLOSED_BOOK)
        with environment_at_fault():
            environment.reset(task, trajectory.generation.seed)
            difference = divergence(environment, trajectory.content)
            if difference is not None:
                return msgspec.structs.replace(verdict, status="error", reason="state_differs", evidence=difference)
            check = environment.check()
            evidence = {**check.evidence, "state_digest": environment.state_digest()}
        return msgspec.structs.replace(
            verdict, status="scored", score=check.score, passed=check.passed, evidence=evidence
        )
