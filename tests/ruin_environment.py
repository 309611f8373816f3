"""Gambler's ruin: a world whose value function is known in closed form, and a policy that plays it by chance.

The number starts at ``task.initial_state["start"]``; ``left`` and ``right`` change it by one; 0 is lost and
``task.goal["number"]`` won. Whoever goes right with probability p wins from x with ``win_probability(x, goal, p)``.
Anything else is refused. ``initial_state["drift"]`` makes a world in which a replay comes elsewhere.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import (
    AnyAction,
    AnyObservation,
    ApiAction,
    MessageAction,
    TextObservation,
    Tool,
)
from agentmill.synthesis.environments import ENVIRONMENTS
from agentmill.synthesis.environments.environment import Check, Transition
from agentmill.synthesis.policies import POLICIES
from agentmill.synthesis.policies.cost import Spending
from agentmill.synthesis.policies.policy import Conversation, PolicyError, PolicySettings, Turn

SPEC = EnvironmentSpec(environment_id="ruin", family="ruin", name="ruin", source="")
STEPS = {"left": -1, "right": 1}
NO_PARAMETERS: JsonObject = {"type": "object", "properties": {}, "additionalProperties": False}


def ruin_task(start: int = 2, goal: int = 4, task_id: str | None = None, **initial_state: int) -> Task:
    """Win ``goal`` from ``start``."""
    return Task(
        task_id=task_id or f"ruin-{start}-{goal}",
        environment_id="ruin",
        instruction=f"Bring the number to {goal}, never to 0.",
        initial_state={"start": start, **initial_state},
        goal={"number": goal},
        max_turns=1_000,
        split="train",
    )


def win_probability(number: int, goal: int, p: float) -> float:
    """The value of ``number`` under a policy that goes right with probability ``p`` (Feller, vol. 1, ch. XIV.2)."""
    if p == 0.5:
        return number / goal
    odds = (1 - p) / p
    return float((1 - odds**number) / (1 - odds**goal))


class RuinEnvironment:
    """Implements ``Environment``."""

    def __init__(self, spec: EnvironmentSpec = SPEC) -> None:
        self.spec = spec
        self.tools = [Tool(name=name, description=f"Go {name}.", parameters=NO_PARAMETERS) for name in STEPS]
        self.rules = "There is a number. Write: left (one less), or: right (one more)."
        self.number = 0
        self.task = ruin_task()

    def reset(self, task: Task, seed: int) -> AnyObservation:
        self.task = task
        self.number = task.initial_state["start"] + task.initial_state.get("drift", 0)
        return self._seen()

    def step(self, action: AnyAction) -> Transition:
        name = action.function if isinstance(action, ApiAction) else getattr(action, "content", "").strip(" .`")
        if name not in STEPS or (isinstance(action, ApiAction) and action.kwargs):
            return Transition(observation=_text("Only left and right are possible."), error=True)
        self.number += STEPS[name]
        won = self.number == self._goal
        return Transition(observation=self._seen(), reward=float(won), terminated=won or self.number == 0)

    def state_digest(self) -> str:
        return f"number-{self.number}"

    def snapshot(self) -> bytes:
        return msgspec.json.encode(self.number)

    def restore(self, snapshot: bytes) -> None:
        self.number = msgspec.json.decode(snapshot)

    def check(self) -> Check:
        return Check(passed=self.number == self._goal, score=min(1.0, max(0.0, self.number / self._goal)))

    def admissible(self) -> list[ApiAction]:
        return [ApiAction(function=name, kwargs={}) for name in STEPS] if 0 < self.number < self._goal else []

    def command(self, action: ApiAction) -> str:
        return action.function

    def expert(self) -> ApiAction | None:
        return ApiAction(function="right", kwargs={}) if 0 < self.number < self._goal else None

    def close(self) -> None:
        """Nothing is held."""

    @classmethod
    def examples(cls) -> list[tuple[EnvironmentSpec, Task]]:
        return [(SPEC, ruin_task())]

    @property
    def _goal(self) -> int:
        number: int = self.task.goal["number"]
        return number

    def _seen(self) -> TextObservation:
        return _text(f"The number is {self.number}.")


class Gambler:
    """Goes right with the probability that its first turn says, by the seed of the turn.

    Further turns are what must stand in the prompt for it to go right at all.
    """

    def __init__(self, settings: PolicySettings) -> None:
        self.name, self.model, self.revision, self.sampling = "gambler", settings.name, settings.revision, {}
        self.spending: Spending | None = None
        self._p, *self._needed = settings.turns
        self.asked: list[Conversation] = []

    async def act(self, conversation: Conversation) -> Turn:
        self.asked.append(conversation)
        text = "\n".join(getattr(item, "content", "") for item in conversation.content)
        if not all(words in text for words in self._needed):
            return Turn(actions=[MessageAction(content="left")])
        right = random.Random(conversation.seed).random() < float(self._p)
        return Turn(actions=[MessageAction(content="right" if right else "left")])

    async def close(self) -> None:
        """Nothing is held."""


def gambler(p: float, *needed: str) -> Gambler:
    """A policy that goes right with probability ``p``, if it is told all that is ``needed``."""
    return Gambler(PolicySettings(policy="gambler", revision=str(p), turns=[str(p), *needed]))


class Sayer:
    """Says its turns, one after the other and then the last one again, whoever asks: a critic, a reflector."""

    def __init__(self, settings: PolicySettings) -> None:
        self.name, self.model, self.revision, self.sampling = "sayer", settings.name, settings.revision, {}
        self.spending: Spending | None = None
        self._turns = settings.turns
        self.asked: list[Conversation] = []

    async def act(self, conversation: Conversation) -> Turn:
        if not self._turns:
            raise PolicyError("script_ended", "nothing to say")
        self.asked.append(conversation)
        return Turn(actions=[MessageAction(content=self._turns[min(len(self.asked), len(self._turns)) - 1])])

    async def close(self) -> None:
        """Nothing is held."""


@contextmanager
def registered() -> Iterator[None]:
    """The world and its policies under the names ``ruin``, ``gambler`` and ``sayer``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENVIRONMENTS._entries, "ruin", "tests.ruin_environment:RuinEnvironment")
        patch.setitem(POLICIES._entries, "gambler", "tests.ruin_environment:Gambler")
        patch.setitem(POLICIES._entries, "sayer", "tests.ruin_environment:Sayer")
        yield


def _text(content: str) -> TextObservation:
    return TextObservation(content=content, source="environment")
