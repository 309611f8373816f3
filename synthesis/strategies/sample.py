"""``sample``: k independent episodes of a task, each from the start to the end.

Crossed with policies this is rejection sampling, best-of-n, the expert's demonstrations and the rollouts of every
evaluation. ``tools: none`` are closed-book attempts: what an agent knows without looking it up.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing
from typing import Literal

import msgspec
from pydantic import Field, model_validator

from agentmill.schemas.records.trajectory import TextObservation, Trajectory
from agentmill.synthesis.rollouts.episode import ClosedBookEpisode, EpisodePlan, run_episode
from agentmill.synthesis.rollouts.parameters import Attempts
from agentmill.synthesis.rollouts.scaffold import CLOSED_BOOK, CLOSED_BOOK_PROMPT, Frame
from agentmill.synthesis.rollouts.step import ACTOR
from agentmill.synthesis.rollouts.strategy import Exploration

OF_EPISODES_WITH_TOOLS = (
    "scaffold",
    "constrain",
    "max_turns",
    "max_invalid",
    "context",
    "keep_turns",
    "context_tokens",
)
"""Parameters that mean nothing where one turn without tools is all."""


class Sample(Attempts):
    """k episodes per task by a policy, crossed with scaffold and constraints."""

    tools: Literal["all", "none"] = Field(
        default="all",
        description="none: the agent sees the instruction alone and answers in one message, of which nothing is "
        "carried out",
    )

    @model_validator(mode="after")
    def _nothing_to_act_with(self) -> Sample:
        if self.tools == "none":
            for name in OF_EPISODES_WITH_TOOLS:
                if self._differs(name):
                    raise ValueError(f"`{name}` is for agents that act; `tools: none` lets one answer once")
        return self

    async def explore(self, exploration: Exploration, trajectory_id: str) -> AsyncIterator[Trajectory]:
        """Yield the trajectory with this id."""
        plan = self.plan_of(exploration, trajectory_id)
        yield await (self.play(exploration, plan) if self.tools == "all" else self._answer(exploration, plan))

    def attempt_plan(self, exploration: Exploration, attempt: int) -> EpisodePlan:
        """As ``Attempts.attempt_plan``."""
        if self.tools == "all":
            return self.plan(exploration, "sample", self.scaffold, attempt=attempt)
        plan = self.plan(exploration, "sample", CLOSED_BOOK, attempt=attempt)
        return msgspec.structs.replace(plan, scaffold=CLOSED_BOOK)

    async def _answer(self, exploration: Exploration, plan: EpisodePlan) -> Trajectory:
        # Never reset: what it shows at the start speaks of the tools, or is what only they would have found.
        with closing(exploration.make_environment()) as environment:
            episode = ClosedBookEpisode(
                plan,
                environment,
                exploration.policies[ACTOR],
                [TextObservation(content=plan.task.instruction, source="user")],
                given_frame=Frame(system_prompt=CLOSED_BOOK_PROMPT, tools=[]),
                refused_s=exploration.refused_s,
            )
            return await run_episode(episode, episode.play())
