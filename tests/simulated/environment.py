"""A world of known cost: some moves to the left or the right, each after a known time, with breakdowns to order.

What the agent does is the last word of its message. The number of moves, the time that each one takes and whether the
world breaks are drawn from the seed of the episode, so they do not depend on who plays. An even number of moves to the
left wins.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import msgspec

from agentmill.schemas.ids import digest
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

SPECS = [
    EnvironmentSpec(environment_id=name, family=f"simulated_{name}", name=name, source="") for name in ("quick", "slow")
]
RULES = "You walk through a corridor with many doors. Say what you think, and at the end of it: left or right."
SIDES = ("left", "right")
MOST_MOVES = 40


class Course(msgspec.Struct, frozen=True):
    """What an episode brings: the seconds that each move takes, and the move at which the world breaks, if it does."""

    latencies_s: list[float]
    breaks_at: int | None


def task(index: int, moves: float = 8.0, latency_ms: float = 0.0, breaks: float = 0.0) -> Task:
    """The ``index``-th task: about so many moves of about so many milliseconds; the share ``breaks`` breaks down."""
    return Task(
        task_id=f"walk-{index:06d}",
        environment_id="slow" if latency_ms else "quick",
        instruction=f"Walk through corridor {index}.",
        initial_state={"moves": moves, "latency_ms": latency_ms, "breaks": breaks},
        max_turns=MOST_MOVES + 1,
        split="train",
    )


def course(task: Task, seed: int) -> Course:
    """The course of an episode: moves and latencies are log-normal, with means as the task says."""
    given, chance = task.initial_state, random.Random(f"{task.task_id} {seed}")
    moves = min(max(1, round(_drawn(chance, given["moves"], 0.5))), MOST_MOVES)
    latencies = [_drawn(chance, given["latency_ms"], 1.0) / 1000 for _ in range(moves)]
    return Course(latencies, chance.randint(1, moves) if chance.random() < given["breaks"] else None)


def _drawn(chance: random.Random, mean: float, spread: float) -> float:
    return chance.lognormvariate(math.log(mean) - spread**2 / 2, spread) if mean else 0.0


@contextmanager
def registered() -> Iterator[None]:
    """Both families are known in this process for as long as the block lasts."""
    families = {"simulated_quick": f"{__name__}:SimulatedEnvironment", "simulated_slow": f"{__name__}:SlowEnvironment"}
    with patch.dict(ENVIRONMENTS._entries, families):
        yield


class SimulatedEnvironment:
    """Implements ``Environment``."""

    def __init__(self, spec: EnvironmentSpec = SPECS[0]) -> None:
        self.spec = spec
        self.tools: list[Tool] = []
        self.rules = RULES
        self.course = Course([], None)
        self.path = ""

    def reset(self, task: Task, seed: int) -> AnyObservation:
        self.course = course(task, seed)
        self.path = ""
        return self._seen()

    def step(self, action: AnyAction) -> Transition:
        if latency_s := self.course.latencies_s[len(self.path)]:
            time.sleep(latency_s)
        if len(self.path) + 1 == self.course.breaks_at:
            raise RuntimeError("the floor gave way")
        said = action.content.split()[-1:] if isinstance(action, MessageAction) else []
        if not said or said[0] not in SIDES:
            return Transition(observation=self._seen(), error=True)
        self.path += said[0][0]
        return Transition(observation=self._seen(), terminated=len(self.path) == len(self.course.latencies_s))

    def state_digest(self) -> str:
        return digest(self.path)

    def snapshot(self) -> bytes:
        return self.path.encode()

    def restore(self, snapshot: bytes) -> None:
        self.path = snapshot.decode()

    def check(self) -> Check:
        won = self.path.count("l") % 2 == 0 and len(self.path) == len(self.course.latencies_s)
        return Check(passed=won, score=float(won))

    def admissible(self) -> list[ApiAction]:
        return [ApiAction(function="walk", kwargs={"side": side}) for side in SIDES]

    def command(self, action: ApiAction) -> str:
        return str(action.kwargs["side"])

    def expert(self) -> ApiAction | None:
        return None

    def close(self) -> None:
        """Nothing is held."""

    def _seen(self) -> TextObservation:
        doors = "There is a door to the left and a door to the right, and a long way to go."
        return TextObservation(content=f"You took {len(self.path)} doors. {doors}", source="environment")


class SlowEnvironment(SimulatedEnvironment):
    """One whose moves take their time."""

    blocking = True
