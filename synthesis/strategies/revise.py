"""``revise``: trying again after feedback.

Level ``episode``: a new attempt at the task, with earlier attempts and feedback on the last of them in its prompt,
until one succeeds (Reflexion, arXiv:2303.11366; RISE, arXiv:2407.18219; Reflect, Retry, Reward, arXiv:2505.24726); or
one put together from the best parts of several, or a success done again in a better way (SE-Agent, arXiv:2508.02085,
whose three operations are ``revise``, ``recombine`` and ``refine``). Level ``step``: an invalid action gets feedback
and the agent goes on in the same episode; the turn is marked as an error, so that views can leave it without loss
(AgentRefine, arXiv:2501.01702).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Literal

import msgspec
from pydantic import Field, model_validator

from agentmill.schemas.ids import derive_seed, digest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import Action, AnyItem, ObservationSource, TextObservation, Trajectory, Usage
from agentmill.synthesis.policies.policy import ContextOverflow
from agentmill.synthesis.prompts import prompt
from agentmill.synthesis.rollouts.delimiting import delimited, judging_prompt
from agentmill.synthesis.rollouts.episode import Episode, EpisodePlan, begin, run_episode
from agentmill.synthesis.rollouts.llm_calls import identity_of, total, transcript, words_if_any, words_of
from agentmill.synthesis.rollouts.parameters import EpisodeParameters
from agentmill.synthesis.rollouts.step import ACTOR
from agentmill.synthesis.rollouts.strategy import Exploration

CRITIC = "critic"
REFLECTOR = "reflector"
SILENT = "silent_critic"
"""The role of feedback of the environment in place of that of a critic who gave none; ``extra`` counts it."""


class Revise(EpisodeParameters):
    """At most ``attempts`` new attempts at a task, each with feedback on what came before.

    They follow the earlier trajectories of the exploration, or else a first attempt without feedback, which counts. The
    prompt shows the ``last`` of what was tried or the ``pool_size`` ``best`` by success and reward. Feedback comes from
    the environment (how it ended), a policy with the role ``critic`` (where that says nothing, from the environment,
    and ``extra.silent_critic`` counts it), or the actor itself, whose reflection is an action of turn 0 with the role
    ``reflector``. Each attempt has the one before it as parent.

    ``aim`` is what is asked for: to do better than what is shown, to ``recombine`` its best parts (of a lone
    attempt there are none: it is revised), or to ``refine`` it, which does not end with a success.
    """

    level: Literal["episode", "step"] = Field(
        default="episode", description="new attempts after a failure, or corrections of invalid actions in an episode"
    )
    attempts: int = Field(
        default=1,
        ge=1,
        description="new attempts at most; without earlier ones, the first one included; on level step episodes",
    )
    aim: Literal["revise", "recombine", "refine"] = Field(
        default="revise",
        description="what to make of the attempts shown: a better one, one of their best parts, "
        "or the same with less effort",
    )
    feedback: Literal["env", "critic", "self"] = Field(
        default="env", description="who gives the feedback: the environment, a critic, or the actor itself"
    )
    pool: Literal["last", "best"] = Field(default="last", description="which earlier attempts the prompt shows")
    pool_size: int = Field(default=1, ge=1, description="how many of the best")

    @model_validator(mode="after")
    def _what_fits(self) -> Revise:
        if self.level == "step" and self.feedback == "self":
            raise ValueError("`feedback: self` needs `level: episode`; within an episode it is `env` or `critic`")
        if self.pool == "last" and self.pool_size > 1:
            raise ValueError("`pool_size` goes with `pool: best`")
        if self.level == "step" and self.aim != "revise":
            raise ValueError(f"`aim: {self.aim}` needs `level: episode`")
        if self.level == "step" and self._differs("pool"):
            raise ValueError("`pool` goes with `level: episode`; on level step no earlier attempts are shown")
        if self.aim == "recombine" and self.pool_size < 2:
            raise ValueError("`aim: recombine` needs `pool: best` and a `pool_size` of 2 or more")
        return self

    def count(self, start: Task | Trajectory) -> int:
        """One chain of attempts; on level ``step`` as many episodes."""
        del start
        return self.attempts if self.level == "step" else 1

    def planned(self, exploration: Exploration) -> list[str]:
        """The ids of the episodes, or of the first new attempt, after which the chain is called."""
        if self.level == "step":
            return list(exploration.plans_of(lambda: self._alone(exploration)))
        return [self._next(exploration, exploration.earlier).trajectory_id]

    async def explore(self, exploration: Exploration, plan_id: str) -> AsyncIterator[Trajectory]:
        """Yield the attempts of the chain, each as soon as it was played, or the episode with this id."""
        if self.level == "step":
            plan = exploration.plans_of(lambda: self._alone(exploration))[plan_id]
            yield await self._attempt(plan, exploration, ())
            return
        tried_so_far = exploration.earlier
        for _ in range(self.attempts):
            # Also before the first new attempt: the earlier ones may hold a success already.
            if self.aim != "refine" and any(attempt.outcome.status == "success" for attempt in tried_so_far):
                return
            attempt = await self._attempt(self._next(exploration, tried_so_far), exploration, self._shown(tried_so_far))
            yield attempt
            tried_so_far = (*tried_so_far, attempt)

    def _alone(self, exploration: Exploration) -> list[EpisodePlan]:
        identity = self._identity(exploration, ())
        return [self.plan(exploration, "revise", identity, attempt=number) for number in range(self.attempts)]

    def _next(self, exploration: Exploration, tried_so_far: Sequence[Trajectory]) -> EpisodePlan:
        last = tried_so_far[-1] if tried_so_far else None
        number = 0 if last is None else last.attempt + 1
        identity = self._identity(exploration, self._shown(tried_so_far))
        return self.plan(exploration, "revise", identity, attempt=number, parent=last)

    def _identity(self, exploration: Exploration, before: Sequence[Trajectory]) -> str:
        critic = exploration.policies[CRITIC] if self.feedback == "critic" else None
        who = None if critic is None else identity_of(critic, exploration.entries.get(CRITIC))
        about = digest(who, [attempt.trajectory_id for attempt in before])
        made = "" if self.aim == "revise" else f":{self.aim}"
        return f"{self.scaffold}:{self.level}:{self.feedback}:{self.pool}:{self.pool_size}:{about}{made}"

    def _shown(self, tried_so_far: Sequence[Trajectory]) -> Sequence[Trajectory]:
        """The attempts that the prompt shows, the best one last."""
        if self.pool == "last":
            return tried_so_far[-1:]
        return sorted(tried_so_far, key=lambda each: (each.outcome.status == "success", each.outcome.reward or 0.0))[
            -self.pool_size :
        ]

    async def _attempt(self, plan: EpisodePlan, exploration: Exploration, before: Sequence[Trajectory]) -> Trajectory:
        environment = exploration.make_environment()
        try:
            instruction, first = begin(plan, environment)
            advice, usage = await self._advice(plan, exploration, instruction, before) if before else ([], Usage())
            episode = self.episode(plan, environment, exploration, [instruction, *advice, first])
            episode.usage = total(episode.usage, usage)
            play = self._corrected(episode, exploration) if self.level == "step" else episode.play()
            tried_so_far = await run_episode(episode, play)
            silent = sum(item.role == SILENT for item in tried_so_far.content)
            about = {**self._revised(before), **({SILENT: silent} if silent else {})}
            return msgspec.structs.replace(tried_so_far, extra={**tried_so_far.extra, **about})
        finally:
            environment.close()

    async def _advice(
        self, plan: EpisodePlan, exploration: Exploration, instruction: AnyItem, before: Sequence[Trajectory]
    ) -> tuple[list[AnyItem], Usage]:
        """What stands between the instruction and the first observation, and what it cost."""
        tried = _words(
            prompt("revise_attempts").replace("{attempts}", "\n\n".join(map(_attempt_text, before))), "environment"
        )
        aim = self._aim(before)
        if self.feedback == "env":
            return [tried, _words(prompt(f"{aim}_again"), "user")], Usage()
        seed = derive_seed(plan.seed, plan.trajectory_id, self.feedback)
        if self.feedback == "critic":
            critic = exploration.policies[CRITIC]
            attempts = [_words(_delimited_attempts(instruction, before), "user")]
            reply, usage = await words_if_any(
                critic, plan.trajectory_id, judging_prompt(f"{aim}_critic"), attempts, seed
            )
            if reply is None:
                return [tried, _words(prompt(f"{aim}_again"), "user", role=SILENT)], usage
            return [tried, _words(reply.content, "agent", role=CRITIC)], usage
        question = [instruction, tried, _words(prompt(f"{aim}_reflect"), "user")]
        actor = exploration.policies[ACTOR]
        reflected, usage = await words_of(actor, plan.trajectory_id, prompt("revise_self"), question, seed)
        return [*question[1:], msgspec.structs.replace(reflected, turn=0, role=REFLECTOR)], usage

    def _aim(self, before: Sequence[Trajectory]) -> str:
        return "revise" if self.aim == "recombine" and len(before) < 2 else self.aim

    def _revised(self, before: Sequence[Trajectory]) -> JsonObject:
        """What a new attempt says of those that it was shown."""
        aim = self._aim(before)
        about: JsonObject = {} if aim == "revise" else {"aim": aim}
        return {"revises": [attempt.trajectory_id for attempt in before], **about} if before else {}

    async def _corrected(self, episode: Episode, exploration: Exploration) -> str | None:
        """Play; each invalid action is marked, and answered with feedback."""
        while episode.turn < episode.plan.max_turns:
            limit = await episode.take_turn()
            wrong = any(item.error for item in episode.content if item.turn == episode.turn)
            if wrong:
                episode.content = marked(episode.content, episode.turn)
            if limit is not None or episode.terminated:
                return limit
            if wrong:
                try:
                    reply, usage = await self._correction(episode, exploration)
                except ContextOverflow:
                    return "context_overflow"
                episode.content.append(msgspec.structs.replace(reply, turn=episode.turn))
                episode.usage = total(episode.usage, usage)
        return "max_turns"

    async def _correction(self, episode: Episode, exploration: Exploration) -> tuple[TextObservation, Usage]:
        if self.feedback == "env":
            return _words(prompt("revise_step"), "user"), Usage()
        question = [_words(delimited(episode.content), "user")]
        seed = derive_seed(episode.plan.seed, episode.plan.trajectory_id, CRITIC, episode.turn)
        critic = exploration.policies[CRITIC]
        reply, usage = await words_if_any(
            critic, episode.plan.trajectory_id, judging_prompt("revise_step_critic"), question, seed
        )
        if reply is None:
            return _words(prompt("revise_step"), "user", role=SILENT), usage
        return _words(reply.content, "agent", role=CRITIC), usage


def marked(content: Sequence[AnyItem], turn: int) -> list[AnyItem]:
    """``content`` with the actions of a turn marked that were answered by an error."""
    waiting: list[int] = []
    result = list(content)
    for place, item in enumerate(content):
        if item.turn != turn:
            continue
        if isinstance(item, Action):
            waiting.append(place)
        elif item.state_digest is not None:
            # Results come in the order of the actions of their turn.
            action = waiting.pop(0)
            result[action] = msgspec.structs.replace(result[action], error=item.error)
    return result


def _attempt_text(attempt: Trajectory) -> str:
    """An attempt as text, and how it ended."""
    ended = attempt.outcome.reason or ("the world ended it" if attempt.outcome.terminated else "it stopped")
    return (
        f"Attempt {attempt.attempt + 1}:\n{transcript(_tried(attempt))}\nThis was a {attempt.outcome.status} ({ended})."
    )


def _tried(attempt: Trajectory) -> list[AnyItem]:
    """What was done and seen in an attempt, and the feedback that it was given, without earlier attempts."""
    _, *later = attempt.content
    return [item for item in later if item.turn > 0 or item.state_digest or item.role in (CRITIC, REFLECTOR)]


def _delimited_attempts(instruction: AnyItem, before: Sequence[Trajectory]) -> str:
    """The task and the attempts for a critic, who must not obey what is in them."""
    attempts = [
        delimited(_tried(each), outcome=each.outcome.status, ended_by=each.outcome.reason or "itself")
        for each in before
    ]
    return "\n\n".join(
        [f"The task:\n{delimited([instruction])}"]
        + [f"Attempt {each.attempt + 1}:\n{text}" for each, text in zip(before, attempts, strict=True)]
    )


def _words(text: str, source: ObservationSource, role: str | None = None) -> TextObservation:
    return TextObservation(content=text, source=source, role=role)
