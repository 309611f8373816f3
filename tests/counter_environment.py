"""A world of one number that is to become the goal's: small enough to see through, able to break on demand.

Commands are ``add 1`` and ``add 2`` (the tool ``add`` with ``amount``); the goal is in ``task.goal["number"]``, and a
number above it loses. ``task.initial_state`` may hold ``break_at`` (a step that raises) and ``drift`` (a number added
on reset, so that a replay comes elsewhere).
"""

from __future__ import annotations

import json
import re

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import (
    AnyAction,
    AnyObservation,
    ApiAction,
    MessageAction,
    TextObservation,
    Tool,
)
from agentmill.synthesis.environments.environment import Check, EnvError, Transition

SPEC = EnvironmentSpec(environment_id="counter", family="counter", name="counter", source="")
PARAMETERS = {
    "type": "object",
    "properties": {"amount": {"type": "integer", "enum": [1, 2]}},
    "required": ["amount"],
    "additionalProperties": False,
}


def counting_task(number: int = 3, **initial_state: int) -> Task:
    """Count to ``number`` from 0."""
    return Task(
        task_id=f"count-{number}",
        environment_id="counter",
        instruction=f"Count to {number}.",
        initial_state=dict(initial_state),
        goal={"number": number},
        max_turns=6,
        split="train",
    )


class CounterEnvironment:
    """Implements ``Environment``."""

    def __init__(self, spec: EnvironmentSpec = SPEC) -> None:
        self.spec = spec
        self.tools = [Tool(name="add", description="Add to the number.", parameters=PARAMETERS, strict=True)]
        self.rules = "There is a number. Write: add 1, or: add 2."
        self.number = 0
        self.steps = 0
        self.closed = 0
        self.task = counting_task()

    def reset(self, task: Task, seed: int) -> AnyObservation:
        if task.goal["number"] < 0:
            raise EnvError("the goal is below the start")
        self.task, self.steps = task, 0
        self.number = task.initial_state.get("drift", 0)
        return self._seen()

    def step(self, action: AnyAction) -> Transition:
        self.steps += 1
        if self.steps == self.task.initial_state.get("break_at"):
            raise RuntimeError("the gears are stuck")
        amount = _amount(action)
        if amount is None:
            return Transition(observation=_text("Only add 1 and add 2 are possible."), error=True)
        self.number += amount
        reached, lost = self.number == self._goal, self.number > self._goal
        return Transition(observation=self._seen(), reward=float(reached), terminated=reached or lost)

    def state_digest(self) -> str:
        return f"number-{self.number}"

    def snapshot(self) -> bytes:
        return json.dumps(self.number).encode()

    def restore(self, snapshot: bytes) -> None:
        self.number = json.loads(snapshot)

    def check(self) -> Check:
        score = max(0.0, 1 - abs(self._goal - self.number) / self._goal)
        return Check(passed=self.number == self._goal, score=score, evidence={"number": self.number})

    def admissible(self) -> list[ApiAction]:
        return [_add(amount) for amount in (1, 2) if self.number + amount <= self._goal]

    def command(self, action: ApiAction) -> str:
        return f"add {action.kwargs['amount']}"

    def expert(self) -> ApiAction | None:
        missing = self._goal - self.number
        return _add(min(2, missing)) if missing > 0 else None

    def close(self) -> None:
        self.closed += 1

    @property
    def _goal(self) -> int:
        number: int = self.task.goal["number"]
        return number

    def _seen(self) -> TextObservation:
        return _text(f"The number is {self.number}.")


def _amount(action: AnyAction) -> int | None:
    if isinstance(action, ApiAction):
        amount = action.kwargs.get("amount")
        return amount if action.function == "add" and amount in (1, 2) else None
    match = re.fullmatch(r"add ([12])", action.content.strip()) if isinstance(action, MessageAction) else None
    return int(match[1]) if match else None


def _add(amount: int) -> ApiAction:
    return ApiAction(function="add", kwargs={"amount": amount})


def _text(content: str) -> TextObservation:
    return TextObservation(content=content, source="environment")
