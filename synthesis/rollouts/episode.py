"""One episode: an agent and an environment take turns until the environment ends it or a limit of ours does.

What an agent does wrong is data and stays in the trajectory. Who breaks is named by the exception: ``PolicyError`` or
``EnvError``; the episode is then lost, and the caller records that.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

import msgspec

from agentmill.schemas.chat import shown
from agentmill.schemas.dialects.tool_text import SCAFFOLD_FORMATS
from agentmill.schemas.ids import derive_seed
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import CONTRAST, Task, contrast_of
from agentmill.schemas.records.trajectory import (
    Action,
    AnyAction,
    AnyItem,
    AnyObservation,
    ApiAction,
    Generation,
    Outcome,
    TextObservation,
    Trajectory,
    Usage,
)
from agentmill.synthesis.environments.environment import Check, Environment, Transition
from agentmill.synthesis.policies.policy import ContextOverflow, Conversation, Policy, Turn
from agentmill.synthesis.rollouts.context_management import ContextPolicy, Summarizer
from agentmill.synthesis.rollouts.llm_calls import all_of, total, turn_of
from agentmill.synthesis.rollouts.scaffold import Frame, frame, read
from agentmill.synthesis.rollouts.step import carry_out, environment_at_fault, within


def trajectory_of(episode: Episode, reason: str | None, check: Check | None) -> Trajectory:
    """What was played until ``reason`` cut it short, or the environment ended it; its status is that of ``check``.

    Without a check nothing is known of how well it went: no reward, and the status ``unknown``.
    """
    plan = episode.plan
    return Trajectory(
        trajectory_id=plan.trajectory_id,
        content=episode.content,
        task_id=plan.task.task_id,
        environment_id=plan.task.environment_id,
        attempt=plan.attempt,
        parent_id=plan.parent_id,
        branch_turn=plan.branch_turn,
        system_prompt=episode.frame.system_prompt,
        tools=episode.frame.tools,
        outcome=Outcome(
            status="unknown" if check is None else "success" if check.passed else "failure",
            reward=None if check is None else episode.reward,
            terminated=episode.terminated,
            truncated=reason is not None,
            reason=reason,
        ),
        generation=generation_of(plan, episode.policy),
        usage=episode.usage,
        split=plan.task.split,
        extra=extra_of(plan),
    )


def extra_of(plan: EpisodePlan) -> JsonObject:
    """``Trajectory.extra`` of an episode: that of its plan, with the kind of a task that ``contrast`` made."""
    kind = contrast_of(plan.task.lineage)
    return plan.extra if kind is None else {**plan.extra, CONTRAST: kind}


def generation_of(plan: EpisodePlan, policy: Policy) -> Generation:
    """How the trajectory of a plan is made by a policy."""
    return Generation(
        model=policy.model,
        revision=policy.revision,
        policy=policy.name,
        strategy=plan.strategy,
        scaffold=plan.scaffold,
        sampling=policy.sampling,
        seed=plan.seed,
        round=plan.round,
    )


class EpisodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """All that fixes an episode before it begins.

    ``admissible_only`` lets the agent choose among the legal commands alone. ``max_invalid`` invalid actions in a row
    end the episode, as do ``max_turns`` turns and ``timeout_s`` seconds. ``context_policy`` says what happens when the
    context gets too long. ``seed`` is that of the environment. An episode that goes on from another one names it in
    ``parent_id``, and in ``branch_turn`` its first own turn if it begins with turns of the other.
    """

    trajectory_id: str
    task: Task
    attempt: int
    seed: int
    round: int
    strategy: str
    scaffold: str
    admissible_only: bool
    max_turns: int
    max_invalid: int | None
    timeout_s: float
    context_policy: ContextPolicy = ContextPolicy()
    parent_id: str | None = None
    branch_turn: int | None = None
    extra: JsonObject = {}


def begin(plan: EpisodePlan, environment: Environment) -> list[AnyItem]:
    """Reset the environment; what every episode opens with: the instruction, and what is seen first."""
    with environment_at_fault():
        first = environment.reset(plan.task, plan.seed)
        digest = environment.state_digest()
    instruction = TextObservation(content=plan.task.instruction, source="user")
    return [instruction, msgspec.structs.replace(first, state_digest=digest)]


TIMEOUT = "episode_timeout"
"""``outcome.reason`` of an episode that took longer than ``episode_timeout_s``."""


async def run_episode(episode: Episode, play: Awaitable[str | None]) -> Trajectory:
    """Await ``play``, which takes the turns of ``episode`` and says what cut it short, for as long as the plan allows.

    The time that it spends on a provider that refuses everybody does not count. Returns truncated episodes, too
    (``outcome.reason`` says by what). Raises ``PolicyError`` if the policy gives no
    turn, ``EnvError`` if the environment breaks.
    """
    try:
        reason = await within(episode.plan.timeout_s, play, episode.refused_s)
    except TimeoutError:
        reason = TIMEOUT
    return episode.trajectory(reason)


class Episode:
    """The state of an episode that is being played: ``content`` so far, in an environment that is where this leads to.

    ``given_frame`` is the frame of an episode that goes on from another; a new one gets that of its scaffold.
    ``refused_s`` is that of its exploration.
    """

    acts: ClassVar[bool] = True
    """Whether actions are carried out; where none are, an expert is not given the environment either."""

    def __init__(
        self,
        plan: EpisodePlan,
        environment: Environment,
        policy: Policy,
        content: Sequence[AnyItem],
        *,
        given_frame: Frame | None = None,
        summarizer: Summarizer | None = None,
        refused_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.plan = plan
        self.environment = environment
        self.policy = policy
        self.refused_s = refused_s
        self.frame = given_frame or frame(plan.scaffold, environment)
        self.content: list[AnyItem] = list(content)
        self.usage = Usage()
        self.reward = float(sum(item.reward or 0.0 for item in content))
        self.terminated = False
        self.turn = max((item.turn for item in content), default=0)
        self.invalid_in_a_row = _invalid_at_the_end(content)
        self._summarizer = summarizer
        self._tokens = 0

    async def play(self) -> str | None:
        """Take turns to the end. Returns what cut the episode short, or ``None`` if the environment ended it."""
        while self.turn < self.plan.max_turns:
            limit = await self.take_turn()
            if self.terminated or limit is not None:
                return limit
        return "max_turns"

    async def take_turn(self, policy: Policy | None = None) -> str | None:
        """One turn, of another policy if one is given; what cuts the episode short, if something does."""
        drawn = await self.draw([self.turn_seed()], policy)
        return drawn if isinstance(drawn, str) else self.execute(drawn[0])

    async def draw(self, seeds: Sequence[int], policy: Policy | None = None) -> list[Turn] | str:
        """What the policy might do next, once for each seed and all at once; or what cuts the episode short.

        No turn is taken, but the context may be shortened. Raises what ``Policy.act`` raises, of several the first.
        """
        drawn = await self.hear(seeds, policy)
        return drawn if isinstance(drawn, str) else [read(self.plan.scaffold, turn, self.frame.tools) for turn in drawn]

    async def hear(self, seeds: Sequence[int], policy: Policy | None = None) -> list[Turn] | str:
        """As ``draw``, as the policy says it, which may be words to other agents."""
        choices = self._choices()
        if choices == []:
            return "nothing_admissible"
        try:
            if self.plan.context_policy.due(self._tokens):
                await self._shorten(self.plan.context_policy.keep_turns)
            while True:
                try:
                    return await all_of([self.ask(choices, policy, seed) for seed in seeds])
                except ContextOverflow:
                    if not await self._make_room():
                        return "context_overflow"
        except ContextOverflow:  # of who is to sum up what is too long
            return "context_overflow"

    async def ask(self, choices: list[str] | None, policy: Policy | None, seed: int) -> Turn:
        """What the policy does next; nothing changes. Raises what ``Policy.act`` raises."""
        conversation = Conversation(
            episode_id=self.plan.trajectory_id,
            system_prompt=self.frame.system_prompt,
            content=tuple(shown(self.content)),
            tools=self.frame.tools,
            tool_format=SCAFFOLD_FORMATS.get(self.plan.scaffold, "native"),
            seed=seed,
            choices=choices,
            environment=self.environment if self.acts else None,
        )
        return await turn_of(policy or self.policy, conversation)

    def fork(self) -> Episode:
        """The same moment once more, to go on from it in another way; what it cost until now is left to the first.

        Both are in the same environment, so whoever goes on with one of them restores its state before.
        """
        other = copy.copy(self)
        other.content, other.usage = list(self.content), Usage()
        return other

    def execute(self, turn: Turn) -> str | None:
        """Carry out a turn until one of its actions ends the episode; what follows that is not carried out.

        Returns what cuts the episode short, if something does.
        """
        return self.perform(self.add_turn(turn))

    def add_turn(self, turn: Turn) -> list[AnyAction]:
        """Take down a turn, of which nothing is carried out yet. Returns its actions as they stand in ``content``."""
        self.turn += 1
        self.usage = total(self.usage, turn.usage)
        self._tokens = (turn.usage.prompt_tokens or 0) + (turn.usage.completion_tokens or 0)
        actions = [numbered(action, self.turn, index) for index, action in enumerate(turn.actions)]
        self.content += actions
        return actions

    def perform(self, actions: Sequence[AnyAction]) -> str | None:
        """Execute the actions of a recorded turn. Returns the reason of a truncation, or ``None``."""
        for action in actions:
            transition = carry_out(self.environment, action)
            self.content.append(self._observed(transition, action))
            self.reward += transition.reward
            self.terminated = transition.terminated
            self.invalid_in_a_row = self.invalid_in_a_row + 1 if transition.error else 0
            if transition.terminated:
                return None
            if transition.truncated:
                return "environment_limit"
            if self.plan.max_invalid is not None and self.invalid_in_a_row >= self.plan.max_invalid:
                return "invalid_actions"
        return None

    def trajectory(self, reason: str | None, check: Check | None = None) -> Trajectory:
        """What was played; its status is what the environment's checker says of the state it ended in."""
        if check is None:
            with environment_at_fault():
                check = self.environment.check()
        return trajectory_of(self, reason, check)

    async def _make_room(self) -> bool:
        """Show the agent fewer turns than before: as many as shall stay, or else half of them, and so on."""
        keep = self.plan.context_policy.keep_turns
        while keep and not await self._shorten(keep):
            keep //= 2
        return keep > 0

    async def _shorten(self, keep: int) -> bool:
        """Show the agent its last ``keep`` turns only, from now on; whether this leaves out any."""
        mark, usage = await self.plan.context_policy.shortened(self.content, keep, self._summarizer)
        self.usage = total(self.usage, usage)
        if mark is not None:
            self.content.append(mark)
        return mark is not None

    def _choices(self) -> list[str] | None:
        if not self.plan.admissible_only:
            return None
        with environment_at_fault():
            return [self.environment.command(action) for action in self.environment.admissible()]

    def turn_seed(self) -> int:
        """That of the next turn. Siblings share an environment, so theirs differ by their ids."""
        if self.plan.parent_id is None:
            return derive_seed(self.plan.seed, self.turn + 1)
        return derive_seed(self.plan.seed, self.plan.trajectory_id, self.turn + 1)

    def _observed(self, transition: Transition, action: AnyAction) -> AnyObservation:
        with environment_at_fault():
            digest = self.environment.state_digest()
        return msgspec.structs.replace(
            transition.observation,
            turn=action.turn,
            tool_call_id=action.tool_call_id,
            reward=transition.reward,
            error=transition.error,
            state_digest=digest,
        )


class ClosedBookEpisode(Episode):
    """An episode of one turn, whose words are the answer: the environment is neither shown nor acted upon.

    Whether the answer is right is not known here, so the outcome has the status ``unknown`` and no reward.
    """

    acts: ClassVar[bool] = False

    def perform(self, actions: Sequence[AnyAction]) -> str | None:
        """The turn ends the episode. A call of a tool that nobody offered is recorded, and not carried out."""
        del actions
        self.terminated = True
        return None

    def trajectory(self, reason: str | None, check: Check | None = None) -> Trajectory:
        """What was answered."""
        return trajectory_of(self, reason, check)


def _invalid_at_the_end(content: Sequence[AnyItem]) -> int:
    """How many actions in a row were invalid at the end of what was played before."""
    count = 0
    for item in content:
        if not isinstance(item, Action) and item.state_digest is not None:
            count = count + 1 if item.error else 0
    return count


def numbered(action: AnyAction, turn: int, index: int) -> AnyAction:
    """The action in its turn. Calls get ids that are the same in every run, in the one form that all templates take."""
    if isinstance(action, ApiAction):
        return msgspec.structs.replace(action, turn=turn, tool_call_id=f"call{turn:03d}{index:02d}")
    return msgspec.structs.replace(action, turn=turn)
