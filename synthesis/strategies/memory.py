"""``memory``: episodes with past material in their prompts.

``exemplars`` are runs of other tasks, as Synapse (arXiv:2306.07863) and ExpeL (arXiv:2308.10144) show them, and agents
that learn from their own (arXiv:2505.00234); ``reflections`` are what was learnt from earlier attempts (Reflexion,
arXiv:2303.11366). What an agent remembers of its own episode, notes and folds, are a ``context`` of any strategy
(``agentmill.synthesis.rollouts.context_management``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Literal

import msgspec
from pydantic import Field

from agentmill.schemas.ids import derive_seed, digest
from agentmill.schemas.records.trajectory import AnyItem, MessageAction, TextObservation, Trajectory
from agentmill.synthesis.prompts import prompt
from agentmill.synthesis.rollouts.episode import EpisodePlan, begin, run_episode
from agentmill.synthesis.rollouts.parameters import Attempts
from agentmill.synthesis.rollouts.retrieval import Retrieval, instruction_of, retold
from agentmill.synthesis.rollouts.strategy import Exploration
from agentmill.synthesis.strategies.revise import CRITIC, REFLECTOR

MEMORY = "memory"


class Memory(Retrieval, Attempts):
    """``k`` attempts of a task, with what is recalled of earlier trajectories before the first observation.

    It is one observation of turn 0 with the role ``memory``. Of ``exemplars`` no two are of the same task.
    """

    kind: Literal["exemplars", "reflections"] = Field(
        default="exemplars", description="runs from the start to the end, or what was learnt from runs"
    )

    async def explore(self, exploration: Exploration, trajectory_id: str) -> AsyncIterator[Trajectory]:
        """Yield the trajectory with this id."""
        plan = self.plan_of(exploration, trajectory_id)
        environment = exploration.make_environment()
        try:
            instruction, first = begin(plan, environment)
            episode = self.episode(
                plan, environment, exploration, [instruction, *self._lessons(exploration, plan.extra["recalls"]), first]
            )
            yield await run_episode(episode, episode.play())
        finally:
            environment.close()

    def serves(self, run: Trajectory) -> bool:
        """Whether a run holds what is to be recalled."""
        return self.kind == "exemplars" or bool(_reflections(run))

    def attempt_plan(self, exploration: Exploration, attempt: int) -> EpisodePlan:
        """As ``Attempts.attempt_plan``."""
        found = retrieved(exploration, self, attempt, one_per_task=self.kind == "exemplars")
        plan = self.plan(exploration, "memory", f"{self.scaffold}:{self.kind}:{digest(found)}", attempt=attempt)
        return msgspec.structs.replace(plan, extra={"recalls": found})

    def _lessons(self, exploration: Exploration, found: Sequence[str]) -> list[AnyItem]:
        if exploration.library is None or not found:
            return []
        runs = [exploration.library.get(name) for name in reversed(found)]  # the first choice stands next to the task
        texts = [retold(run) if self.kind == "exemplars" else _learnt(run) for run in runs]
        text = prompt(f"memory_{self.kind}").replace("{runs}", "\n\n".join(texts))
        return [TextObservation(content=text, source="environment", role=MEMORY)]


def retrieved(exploration: Exploration, retrieval: Retrieval, attempt: int, *, one_per_task: bool) -> list[str]:
    """The ids of the runs that an attempt is shown."""
    if exploration.library is None:
        return []
    seed = derive_seed(exploration.seed, exploration.round, exploration.task.task_id, attempt, MEMORY)
    return exploration.library.find(exploration.task, retrieval, seed, one_per_task=one_per_task)


def _learnt(run: Trajectory) -> str:
    return "\n".join([f"Task: {instruction_of(run)}", *_reflections(run)])


def _reflections(run: Trajectory) -> list[str]:
    """What was said of earlier attempts before this one, by the agent itself or by a critic."""
    comments = (item for item in run.content if item.turn == 0 and item.role in (REFLECTOR, CRITIC))
    return [item.content for item in comments if isinstance(item, MessageAction | TextObservation)]
