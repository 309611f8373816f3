"""One episode: an agent and a world take turns until the world ends it or a limit of ours does.

What an agent does wrong is data and stays in the trajectory. Who breaks is named by the exception: ``PolicyError`` or
``WorldError``; the episode is then lost, and the caller records that.
"""

from __future__ import annotations

import asyncio

import msgspec

from schemas.errors import UserError
from schemas.ids import derive_seed
from schemas.task import Task
from schemas.trajectory import (
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
from synthesis.environments.environment import Environment, Transition, WorldError
from synthesis.policies.policy import ContextOverflow, Conversation, Policy, PolicyError, Turn
from synthesis.strategies.scaffold import ScaffoldName, frame
from synthesis.strategies.stepping import carry_out, world_at_fault


class EpisodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """All that fixes an episode before it begins.

    ``admissible_only`` lets the agent choose among the legal commands alone. ``max_invalid`` invalid actions in a row
    end the episode, as do ``max_turns`` turns and ``timeout_s`` seconds.
    """

    trajectory_id: str
    task: Task
    attempt: int
    seed: int
    round: int
    strategy: str
    scaffold: ScaffoldName
    admissible_only: bool
    max_turns: int
    max_invalid: int | None
    timeout_s: float


async def run_episode(plan: EpisodePlan, environment: Environment, policy: Policy) -> Trajectory:
    """Live the episode and return it, truncated ones included (``outcome.reason`` says by what).

    Raises ``PolicyError`` if the policy gives no turn, ``WorldError`` if the environment breaks.
    """
    episode = Episode(plan, environment, policy)
    try:
        async with asyncio.timeout(plan.timeout_s):
            reason = await episode.play()
    except TimeoutError:
        reason = "episode_timeout"
    return episode.trajectory(reason)


class Episode:
    """The state of an episode that is being lived."""

    def __init__(self, plan: EpisodePlan, environment: Environment, policy: Policy) -> None:
        self.plan = plan
        self.environment = environment
        self.policy = policy
        self.frame = frame(plan.scaffold, environment)
        self.usage = Usage()
        self.reward = 0.0
        self.terminated = False
        self.invalid_in_a_row = 0
        with world_at_fault():
            first = environment.reset(plan.task, plan.seed)
            digest = environment.state_digest()
        instruction = TextObservation(content=plan.task.instruction, source="user")
        self.content: list[AnyItem] = [instruction, msgspec.structs.replace(first, state_digest=digest)]

    async def play(self) -> str | None:
        """Take turns. Returns what cut the episode short, or ``None`` if the world ended it."""
        for turn in range(1, self.plan.max_turns + 1):
            choices = self._choices()
            if choices == []:
                return "nothing_admissible"
            try:
                said = await self._act(turn, choices)
            except ContextOverflow:
                return "context_overflow"
            self.usage = _sum(self.usage, said.usage)
            actions = [_numbered(action, turn, index) for index, action in enumerate(said.actions)]
            self.content += actions
            limit = self._carry_out(actions)
            if self.terminated or limit is not None:
                return limit
        return "max_turns"

    def trajectory(self, reason: str | None) -> Trajectory:
        """What was lived; its status is what the environment's checker says of the state it ended in."""
        with world_at_fault():
            passed = self.environment.check().passed
        plan = self.plan
        return Trajectory(
            trajectory_id=plan.trajectory_id,
            content=self.content,
            task_id=plan.task.task_id,
            environment_id=plan.task.environment_id,
            attempt=plan.attempt,
            system_prompt=self.frame.system_prompt,
            tools=self.frame.tools,
            outcome=Outcome(
                status="success" if passed else "failure",
                reward=self.reward,
                terminated=self.terminated,
                truncated=reason is not None,
                reason=reason,
            ),
            generation=self._generation(),
            usage=self.usage,
            split=plan.task.split,
        )

    def _generation(self) -> Generation:
        return Generation(
            model=self.policy.model,
            revision=self.policy.revision,
            policy=self.policy.name,
            strategy=self.plan.strategy,
            scaffold=self.plan.scaffold,
            sampling=self.policy.sampling,
            seed=self.plan.seed,
            round=self.plan.round,
        )

    def _choices(self) -> list[str] | None:
        if not self.plan.admissible_only:
            return None
        with world_at_fault():
            return [self.environment.command(action) for action in self.environment.admissible()]

    async def _act(self, turn: int, choices: list[str] | None) -> Turn:
        conversation = Conversation(
            episode_id=self.plan.trajectory_id,
            system_prompt=self.frame.system_prompt,
            content=tuple(self.content),
            tools=self.frame.tools,
            seed=derive_seed(self.plan.seed, turn),
            choices=choices,
            environment=self.environment,
        )
        return await _turn_of(self.policy, conversation)

    def _carry_out(self, actions: list[AnyAction]) -> str | None:
        """Carry out the actions of a turn until one ends the episode; what follows it is not carried out."""
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
            if self.invalid_in_a_row == self.plan.max_invalid:
                return "invalid_actions"
        return None

    def _observed(self, transition: Transition, action: AnyAction) -> AnyObservation:
        with world_at_fault():
            digest = self.environment.state_digest()
        return msgspec.structs.replace(
            transition.observation,
            turn=action.turn,
            tool_call_id=action.tool_call_id,
            reward=transition.reward,
            error=transition.error,
            state_digest=digest,
        )


async def _turn_of(policy: Policy, conversation: Conversation) -> Turn:
    """The policy's turn; whatever it raises is its own fault, but for what the environment raised below it."""
    try:
        return await policy.act(conversation)
    except (PolicyError, WorldError, UserError):
        raise
    except Exception as error:
        raise PolicyError("broken", f"{type(error).__name__}: {error}") from error


def _numbered(action: AnyAction, turn: int, index: int) -> AnyAction:
    """The action in its turn. Calls get ids that are the same in every run, in the one form that all templates take."""
    if isinstance(action, ApiAction):
        return msgspec.structs.replace(action, turn=turn, tool_call_id=f"call{turn:03d}{index:02d}")
    return msgspec.structs.replace(action, turn=turn)


def _sum(left: Usage, right: Usage) -> Usage:
    """Both together, field by field; what neither reports stays ``None``."""
    values = {}
    for name in Usage.__struct_fields__:
        parts = [value for value in (getattr(left, name), getattr(right, name)) if value is not None]
        values[name] = sum(parts) if parts else None
    return Usage(**values)
