"""Policies without a model: a script, for tests, baselines and known answers, and the expert of an environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from agentmill.schemas.records.rows import Message
from agentmill.schemas.records.trajectory import AnyAction, ApiAction, CodeAction, MessageAction
from agentmill.schemas.views.dialogue import Dialogue
from agentmill.synthesis.environments.environment import UNMET, Environment
from agentmill.synthesis.policies.mistakes import (
    EXPERT,
    MISTAKES,
    drawn_score,
    draws_mistake,
    other_action,
    reviewed,
    stand_in_text,
)
from agentmill.synthesis.policies.policy import Conversation, PolicyError, PolicySettings, Turn
from agentmill.synthesis.policies.reward_model import Score, Shown

Script = Callable[[Conversation], Turn]

THOUGHTS = "thoughts"
"""The sampling parameter of the policy ``expert``: what it writes before each action; by default nothing."""

LONGEST_PLAN = 20
"""A thought names no more actions than this."""


class ScriptedPolicy:
    """Writes ``settings.turns[k]`` as its (k+1)-th turn, or whatever ``script`` makes of the conversation."""

    def __init__(self, settings: PolicySettings, script: Script | None = None) -> None:
        self.name = "scripted"
        self.model = settings.name
        self.revision = settings.revision
        self.sampling = settings.sampling
        self.spending = None
        self._turns = settings.turns
        self._script = script or self._next_text

    async def act(self, conversation: Conversation) -> Turn:
        """The next turn of the script. Raises ``PolicyError`` (``script_ended``) behind its end."""
        return self._script(conversation)

    async def close(self) -> None:
        """Nothing is held."""

    def _next_text(self, conversation: Conversation) -> Turn:
        # By turns and not by a counter: one instance serves many episodes at once.
        acted = {item.turn for item in conversation.content if isinstance(item, MessageAction | ApiAction | CodeAction)}
        if len(acted) >= len(self._turns):
            raise PolicyError("script_ended", f"the script has {len(self._turns)} turns, and one more was asked for")
        return Turn(actions=[MessageAction(content=self._turns[len(acted)])])


class ExpertPolicy:
    """Asks ``environment.expert()`` for each action; speaks in commands or in calls, as the conversation asks for.

    As a reviewer of several agents it vetoes every action but that of the plan.

    With ``mistakes`` in ``settings.sampling`` it errs at this rate (``agentmill.synthesis.policies.mistakes``): by the
    seed of the turn, so the same episode has the same mistakes. Then it stands in for a model: it goes on with any
    action where a mistake has left it without a plan, answers a question for words with a fixed sentence, one for JSON,
    as a judge is asked, with a draw that fits the schema, and one for a score, as a reward model is, with a draw too.

    With ``thoughts: plan`` in ``settings.sampling`` each action has the thought of ``thought_of``.
    """

    shown = Shown(Dialogue())

    def __init__(self, settings: PolicySettings) -> None:
        self.name = EXPERT
        self.model = None
        self.revision = settings.revision
        self.sampling = settings.sampling
        self.spending = None

    async def act(self, conversation: Conversation) -> Turn:
        """One action of a good plan. Raises ``PolicyError`` (``no_plan``) where the environment knows none.

        Where it is asked to play an environment, the answer of the real one.
        """
        environment = conversation.environment
        rate: float | None = self.sampling.get(MISTAKES)
        if conversation.stand_in is not None and not (rate and draws_mistake(rate, conversation.seed)):
            return Turn(actions=[MessageAction(content=conversation.stand_in())])
        if environment is None:
            if rate is not None and not conversation.tools:
                return Turn(actions=[MessageAction(content=stand_in_text(conversation))])
            raise PolicyError("no_environment", "the expert needs the live environment, and was given none")
        call = environment.expert()
        if conversation.review is not None:
            errs = rate is not None and draws_mistake(rate, conversation.seed)
            review = reviewed(conversation.review, environment, call, errs)
            return Turn(actions=[MessageAction(content=review)])
        if rate is not None and (call is None or draws_mistake(rate, conversation.seed)):
            call = other_action(conversation, environment, call) or call
        if call is None:
            raise PolicyError("no_plan", "the environment knows no way to the goal from the current state")
        thought = thought_of(environment) if self.sampling.get(THOUGHTS) else None
        action: AnyAction = call if conversation.tools else MessageAction(content=environment.command(call))
        if thought is not None:
            action = msgspec.structs.replace(action, description=thought)
        return Turn(actions=[action])

    async def score(self, episode_id: str, messages: Sequence[Message], functions: str | None) -> Score:
        """A draw from 0 to 1, by what is scored."""
        value, rendering = drawn_score(episode_id, messages, functions)
        return Score(value=value, tokens=0, rendering=rendering)

    async def close(self) -> None:
        """Nothing is held."""


def thought_of(environment: Environment) -> str:
    """What is still to be reached, where the environment can tell, and the rest of the plan as commands.

    For example "Not yet: the lamp is on. Plan: take key; open door." The environment is left as it was found.
    """
    unmet = environment.check().evidence.get(UNMET)
    state = f"Not yet: {'; '.join(unmet)}. " if isinstance(unmet, list) and unmet else ""
    return f"{state}Plan: {'; '.join(rest_of_plan(environment))}."


def rest_of_plan(environment: Environment) -> list[str]:
    """The commands that the expert would give from here on, the first ``LONGEST_PLAN`` of them."""
    start = environment.snapshot()
    commands: list[str] = []
    while len(commands) < LONGEST_PLAN and (call := environment.expert()) is not None:
        commands.append(environment.command(call))
        transition = environment.step(call)
        if transition.terminated or transition.truncated:
            break
    environment.restore(start)
    return commands
