"""``sample``: k independent episodes of a task, each from the start to the end.

Crossed with policies this is rejection sampling, best-of-n, the expert's demonstrations and the rollouts of every
evaluation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from schemas.config import Config
from schemas.ids import derive_seed, generated_id
from schemas.trajectory import Trajectory
from synthesis.strategies.episode import EpisodePlan, run_episode
from synthesis.strategies.scaffold import ScaffoldName
from synthesis.strategies.strategy import Exploration


class Sample(Config):
    """``k`` attempts of a task by one policy.

    ``max_turns`` defaults to the task's own. ``constrain: admissible`` lets the agent choose among legal commands only,
    so that skill is measured apart from format. ``max_invalid`` invalid actions in a row end an episode.
    """

    k: Annotated[int, Field(ge=1)] = 1
    max_turns: Annotated[int | None, Field(ge=1)] = None
    scaffold: ScaffoldName = "text"
    constrain: Literal["none", "admissible"] = "none"
    max_invalid: Annotated[int | None, Field(ge=1)] = 5
    episode_timeout_s: Annotated[float, Field(gt=0)] = 1800.0
    role: str = "actor"

    @model_validator(mode="after")
    def _constrained_in_text(self) -> Sample:
        if self.constrain == "admissible" and self.scaffold != "text":
            raise ValueError("`constrain: admissible` needs `scaffold: text`, since it chooses among commands")
        return self

    def planned(self, exploration: Exploration) -> list[str]:
        """The ids of the ``k`` trajectories. They do not depend on ``k``: a larger one keeps what is there."""
        return [self._plan(exploration, attempt).trajectory_id for attempt in range(self.k)]

    async def explore(self, exploration: Exploration, done: frozenset[str]) -> AsyncIterator[Trajectory]:
        """Yield the trajectories that are not in ``done``, one after the other."""
        for attempt in range(self.k):
            plan = self._plan(exploration, attempt)
            if plan.trajectory_id in done:
                continue
            environment = exploration.make_environment()
            try:
                yield await run_episode(plan, environment, exploration.policies[self.role])
            finally:
                environment.close()

    def _plan(self, exploration: Exploration, attempt: int) -> EpisodePlan:
        """Seeds depend on task, round and attempt, not on the policy: two policies meet the same worlds."""
        task, policy = exploration.task, exploration.policies[self.role]
        max_turns = self.max_turns or task.max_turns
        seed = derive_seed(exploration.seed, exploration.round, task.task_id, attempt)
        return EpisodePlan(
            trajectory_id=generated_id(
                task.task_id,
                policy=f"{policy.name}:{policy.model}",
                revision=policy.revision,
                strategy=f"sample:{self.scaffold}:{self.constrain}:{max_turns}:{self.max_invalid}",
                sampling=policy.sampling,
                seed=seed,
                attempt=attempt,
            ),
            task=task,
            attempt=attempt,
            seed=seed,
            round=exploration.round,
            strategy="sample",
            scaffold=self.scaffold,
            admissible_only=self.constrain == "admissible",
            max_turns=max_turns,
            max_invalid=self.max_invalid,
            timeout_s=self.episode_timeout_s,
        )
