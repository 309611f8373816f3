"""Environments as strategies meet them, and one action carried out: the same for an episode that is played or replayed.

Whatever an environment raises here is its fault, and leaves as ``EnvError``.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Action, AnyAction, AnyItem, ApiAction, TextObservation, Trajectory
from agentmill.synthesis.environments.environment import EnvError, Environment, Transition


@contextmanager
def environment_at_fault() -> Iterator[None]:
    """Turn whatever is raised inside into a ``EnvError``, but for what the user must see to, which stops the run."""
    try:
        yield
    except (EnvError, UserError):
        raise
    # A program that exits would end the worker.
    except (Exception, SystemExit) as error:
        raise EnvError(f"{type(error).__name__}: {error}") from error


def carry_out(environment: Environment, action: AnyAction) -> Transition:
    """Step the environment. A call whose arguments are no JSON object is refused before it gets there."""
    if isinstance(action, ApiAction) and action.raw_arguments is not None:
        content = f"The arguments of {action.function} must be a JSON object, but were: {action.raw_arguments}"
        return Transition(observation=TextObservation(content=content, source="environment"), error=True)
    with environment_at_fault():
        return environment.step(action)


def blamed(make: Callable[[], Environment]) -> Environment:
    """The environment that ``make`` makes; what is raised by that, and later by closing it, leaves as ``EnvError``.

    Raises ``UserError``, too, where ``make`` does: for a package that is missing.
    """
    try:
        made: Any = Closing(make())
    except (UserError, EnvError):
        raise
    except (Exception, SystemExit) as error:
        raise EnvError(f"{type(error).__name__}: {error}") from error
    return made  # type: ignore[no-any-return]


class Closing:
    """An environment whose fault it is if it cannot be closed."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def close(self) -> None:
        """As ``Environment.close``. Raises ``EnvError``."""
        with environment_at_fault():
            self._environment.close()


T = TypeVar("T")


async def within(timeout_s: float, work: Awaitable[T], refused_s: Callable[[], float]) -> T:
    """What ``work`` gives within ``timeout_s``, not counting the seconds by which ``refused_s()`` has grown since.

    Raises what it raises, and ``TimeoutError``.
    """
    ends_at = time.monotonic() - refused_s() + timeout_s
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            left_s = ends_at + refused_s() - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            await asyncio.wait([task], timeout=left_s)
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


ACTOR = "actor"

SIMULATED = "simulate"
"""The strategy of trajectories in an environment that a model played: there is no real state to return to."""


class ReplayDiverged(EnvError):
    """The recorded actions do not lead where they led before."""

    reason = "replay_diverged"


def acts(item: AnyItem) -> bool:
    """Whether it is an action upon the environment: those of other roles than the actor's are words only."""
    return isinstance(item, Action) and item.role in (None, ACTOR)


def imagined(item: AnyItem) -> bool:
    """Whether it is an answer of the environment that a model made up."""
    made_up = not isinstance(item, Action) and item.synthetic and item.turn > 0
    return made_up and item.context_operation in (None, "copied")


def simulated(trajectory: Trajectory) -> bool:
    """Whether a model played the environment, turn by turn."""
    return trajectory.generation is not None and trajectory.generation.strategy == SIMULATED


def replay(environment: Environment, content: Sequence[AnyItem]) -> None:
    """Carry out ``content`` in an environment that was just reset. Raises ``ReplayDiverged``, ``EnvError``."""
    difference = divergence(environment, content)
    if difference is not None:
        raise ReplayDiverged(
            f"item {difference['item']}: state {difference['replayed']}, recorded was {difference['recorded']}"
        )


def divergence(environment: Environment, content: Sequence[AnyItem]) -> JsonObject | None:
    """Carry out each action that was answered, and return the first difference of states, if there is one.

    An observation with a state digest answers the oldest action that is not yet carried out; those of turn 0 show the
    state of the start. One that a model made up has no state: the action of its turn is carried out, until the
    environment has ended.
    """
    waiting: deque[AnyAction] = deque()
    ended = False
    for index, item in enumerate(content):
        if isinstance(item, Action):
            if acts(item):
                waiting.append(item)
        elif imagined(item):
            while waiting and waiting[0].turn < item.turn:
                waiting.popleft()
            if waiting and not ended:
                ended = carry_out(environment, waiting.popleft()).terminated
        elif item.state_digest is not None:
            if item.turn > 0:
                if not waiting:
                    return {"item": index, "recorded": item.state_digest, "replayed": None}
                carry_out(environment, waiting.popleft())
            with environment_at_fault():
                replayed = environment.state_digest()
            if replayed != item.state_digest:
                return {"item": index, "recorded": item.state_digest, "replayed": replayed}
    return None
