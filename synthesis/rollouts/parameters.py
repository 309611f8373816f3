"""The rules of an episode, which all strategies have in common: how the agent acts, and what ends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from agentmill.schemas.config import Config
from agentmill.schemas.ids import derive_seed, generated_id
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import AnyItem, Trajectory
from agentmill.synthesis.environments.environment import Environment
from agentmill.synthesis.rollouts.context_management import ContextPolicy, ContextPolicyName
from agentmill.synthesis.rollouts.episode import Episode, EpisodePlan, begin, run_episode
from agentmill.synthesis.rollouts.llm_calls import identity_of, summarizer
from agentmill.synthesis.rollouts.scaffold import Frame, ScaffoldName
from agentmill.synthesis.rollouts.step import ACTOR
from agentmill.synthesis.rollouts.strategy import Exploration

SUMMARIZER = "summarizer"


class EpisodeParameters(Config):
    """Parameters of strategies that live whole episodes.

    ``constrain: admissible`` lets the agent choose among legal commands only, so that skill is measured apart from
    format. For ``context``, see ``agentmill.synthesis.rollouts.context_management``.
    """

    episode_type: ClassVar[type[Episode]] = Episode
    """How the turns of an episode are played."""

    scaffold: ScaffoldName = Field(
        default="text",
        description="commands as text, with thoughts before them, or calls of tools, native or written as text",
    )
    constrain: Literal["none", "admissible"] = Field(default="none", description="only legal commands, or any")
    max_turns: int | None = Field(default=None, ge=1, description="turns per episode; by default the task's own")
    max_invalid: int | None = Field(default=5, ge=1, description="invalid actions in a row that end an episode")
    episode_timeout_s: float = Field(default=1800.0, gt=0, description="seconds that end an episode")
    context: ContextPolicyName = Field(
        default="stop",
        description="when it gets too long: the episode stops, old turns are left out, or a summary replaces them; "
        "with notes these replace all but the last turns, from the start",
    )
    keep_turns: int = Field(default=4, ge=1, description="turns that stay when the context gets too long")
    context_tokens: int | None = Field(
        default=None, ge=1, description="tokens that are too many; by default the model refuses them"
    )

    @model_validator(mode="after")
    def _limits_of_a_context_that_is_shortened(self) -> EpisodeParameters:
        for name in ("keep_turns", "context_tokens"):
            if self.context == "stop" and self._differs(name):
                raise ValueError(
                    f"`{name}` goes with `context: sliding_window` or `fold`, or with `notes`; `stop` shortens nothing"
                )
        if self.context == "notes" and self.context_tokens is not None:
            raise ValueError("`context: notes` keeps `keep_turns` turns; leave out `context_tokens`")
        return self

    @model_validator(mode="after")
    def _constrained_in_text(self) -> EpisodeParameters:
        if self.constrain == "admissible" and self.scaffold != "text":
            raise ValueError("`constrain: admissible` needs `scaffold: text`, since it chooses among commands")
        return self

    def plan(
        self,
        exploration: Exploration,
        strategy: str,
        identity: str,
        *,
        attempt: int,
        parent: Trajectory | None = None,
        branch_turn: int | None = None,
    ) -> EpisodePlan:
        """The plan of an episode. ``identity`` tells apart what the parameters of ``strategy`` make different.

        An episode that goes on from a ``parent`` takes place in its environment; from a turn of it, in its scaffold,
        too.
        """
        task = exploration.task
        recorded = None if parent is None else parent.generation
        parent_id = None if parent is None else parent.trajectory_id
        return EpisodePlan(
            trajectory_id=self._trajectory_id(exploration, f"{strategy}:{identity}", attempt, parent_id, branch_turn),
            task=task,
            attempt=attempt,
            seed=environment_seed(exploration, attempt) if recorded is None else recorded.seed,
            round=exploration.round,
            strategy=strategy,
            scaffold=self.scaffold if recorded is None or branch_turn is None else recorded.scaffold,
            admissible_only=self.constrain == "admissible",
            max_turns=self.max_turns or task.max_turns,
            max_invalid=self.max_invalid,
            timeout_s=self.episode_timeout_s,
            context_policy=ContextPolicy(
                context=self.context, keep_turns=self.keep_turns, max_tokens=self.context_tokens
            ),
            parent_id=parent_id,
            branch_turn=branch_turn,
        )

    def limit(self, plan: EpisodePlan, turns: int) -> int:
        """The turns of an episode that repeats ``turns`` recorded ones: these at least, unless ``max_turns`` is given.

        The task's own limit need not be the one that they were played under.
        """
        return plan.max_turns if self.max_turns is not None else max(plan.max_turns, turns)

    def _trajectory_id(
        self, exploration: Exploration, strategy: str, attempt: int, parent_id: str | None, branch_turn: int | None
    ) -> str:
        task, policy = exploration.task, exploration.policies[ACTOR]
        entry = f"@{exploration.entries[ACTOR]}" if ACTOR in exploration.entries else ""
        max_turns = self.max_turns or task.max_turns
        return generated_id(
            task.task_id,
            policy=f"{policy.name}:{policy.model}{entry}",
            revision=policy.revision,
            strategy=f"{strategy}:{self.constrain}:{max_turns}:{self.max_invalid}{self._grown(exploration)}",
            sampling=policy.sampling,
            seed=environment_seed(exploration, attempt),
            attempt=attempt,
            parent_id=parent_id,
            branch_turn=branch_turn,
        )

    def episode(
        self,
        plan: EpisodePlan,
        environment: Environment,
        exploration: Exploration,
        content: Sequence[AnyItem],
        given_frame: Frame | None = None,
    ) -> Episode:
        """The episode of a plan, in an environment that is where ``content`` leads to."""
        noting = self.context == "notes"
        writer = exploration.policies.get(SUMMARIZER) or (exploration.policies[ACTOR] if noting else None)
        asked_by = "notes" if noting else "summarizer"
        return self.episode_type(
            plan,
            environment,
            exploration.policies[ACTOR],
            content,
            given_frame=given_frame,
            summarizer=None if writer is None else summarizer(writer, plan.trajectory_id, plan.seed, asked_by),
            refused_s=exploration.refused_s,
        )

    async def play(self, exploration: Exploration, plan: EpisodePlan) -> Trajectory:
        """Play the episode of ``plan`` from its start. Raises ``PolicyError`` and ``EnvError``."""
        with closing(exploration.make_environment()) as environment:
            episode = self.episode(plan, environment, exploration, begin(plan, environment))
            return await run_episode(episode, episode.play())

    def _grown(self, exploration: Exploration) -> str:
        if self.context == "stop":
            return ""
        writer = exploration.policies.get(SUMMARIZER) if self.context in ("fold", "notes") else None
        who = f":{identity_of(writer, exploration.entries.get(SUMMARIZER))}" if writer is not None else ""
        return f":{self.context}:{self.keep_turns}:{self.context_tokens}{who}"

    def _differs(self, name: str) -> bool:
        return bool(getattr(self, name) != type(self).model_fields[name].default)


def environment_seed(exploration: Exploration, attempt: int) -> int:
    """It depends on task, round and attempt, not on the policy: two policies meet the same environments."""
    return derive_seed(exploration.seed, exploration.round, exploration.task.task_id, attempt)


class Attempts(EpisodeParameters):
    """A strategy of ``k`` pieces per task: episodes, runs or trees."""

    k: int = Field(default=1, ge=1, description="how many per task")

    def count(self, start: Task | Trajectory) -> int:
        """The attempts."""
        del start
        return self.k

    def planned(self, exploration: Exploration) -> list[str]:
        """The ids of the ``k`` pieces. They do not depend on ``k``: a larger one keeps what is there."""
        return list(self._plans(exploration))

    def plan_of(self, exploration: Exploration, plan_id: str) -> EpisodePlan:
        """The plan with this id."""
        return self._plans(exploration)[plan_id]

    def attempt_plan(self, exploration: Exploration, attempt: int) -> EpisodePlan:
        """The plan of an attempt; each strategy has its own."""
        raise NotImplementedError

    def _plans(self, exploration: Exploration) -> Mapping[str, EpisodePlan]:
        return exploration.plans_of(lambda: (self.attempt_plan(exploration, attempt) for attempt in range(self.k)))
