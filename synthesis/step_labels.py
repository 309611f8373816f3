"""What other trajectories of the same tasks say of the steps of one.

* ``agreements``: how many branches from a step do what it does (StepAgent, arXiv:2411.03817).
* ``effects``: which steps of a failed trajectory helped and which harmed, by continuations from some of its turns
  (EEF, arXiv:2504.13145).
* ``tool_steps``: the steps that use tools, which a task may not need (SMART, arXiv:2502.11435).

A step is a turn; tables name it by its first action.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from agentmill.schemas.chat import is_mark
from agentmill.schemas.conditions import reaches
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import (
    Action,
    AnyItem,
    ApiAction,
    CodeAction,
    ImageObservation,
    TextObservation,
)
from agentmill.synthesis.rollouts.step import acts
from agentmill.synthesis.step_values import Step
from agentmill.synthesis.strategies.branch import deed_of

On = Literal["action", "state"]
Effect = Literal["beneficial", "harmful"]


def turn_key(on: On, content: Sequence[AnyItem], turn: int) -> str | None:
    """Equal for turns that do the same, whatever the words around it, or that lead to the same state.

    ``None`` for a turn without an action, and where no state after it is known.
    """
    own = [item for item in content if item.turn == turn]
    if not any(map(acts, own)):
        return None
    if on == "action":
        return deed_of(own, turn)
    return next((item.state_digest for item in reversed(own) if item.state_digest is not None), None)


class Agreement(msgspec.Struct, frozen=True):
    """How many of the ``n`` branches from a step do what it does."""

    item: int
    n: int
    agree: int

    @property
    def share(self) -> float:
        """The share of the branches."""
        return self.agree / self.n


def agreements(
    content: Sequence[AnyItem], steps: Sequence[Step], branches: Mapping[int, Mapping[str, int]], on: On
) -> list[Agreement]:
    """Those of the steps that have branches; ``branches`` count the keys of first turns by the number of the turn."""
    found = []
    for step in steps:
        keys = branches.get(step.turn)
        own = turn_key(on, content, step.turn) if keys else None
        if keys and own is not None:
            found.append(Agreement(step.item, sum(keys.values()), keys.get(own, 0)))
    return found


class Point(msgspec.Struct, frozen=True):
    """The state before a turn, and what ``n`` continuations from there came to: their mean score, and if it suffices.

    ``item`` is the step that was taken there; ``None`` is the end of the trajectory.
    """

    turn: int
    item: int | None
    n: int
    score: float
    success: bool

    def evidence(self) -> JsonObject:
        """As a verdict stores it."""
        found: dict[str, Any] = msgspec.structs.asdict(self)
        return found


def points_of(
    steps: Sequence[Step], results: Mapping[int, Sequence[float]], result: float | None, success_at: float
) -> list[Point]:
    """The states of which something is known, in order.

    ``results`` are the scores of continuations by the turn that they begin with. ``result`` is the trajectory's own,
    which is known of its end; continuations of the end come before it.
    """
    last = steps[-1].turn + 1 if steps else 0
    samples = {last: [] if result is None else [result], **results}
    places: list[tuple[int, int | None]] = [(step.turn, step.item) for step in steps]
    found = []
    for turn, item in [*places, (last, None)]:
        scores = samples.get(turn)
        if scores:
            # fsum is exact, so the mean does not depend on the order of the samples.
            mean = math.fsum(scores) / len(scores)
            found.append(Point(turn, item, len(scores), mean, reaches(mean, success_at)))
    return found


def effects(steps: Sequence[Step], points: Sequence[Point]) -> dict[int, Effect]:
    """Whether each step helped or harmed, by item; a step of which neither is known has none.

    Steps between a state that leads to success and the next known state, which does not, are harmful. Of the others,
    those before any state that leads to success are beneficial.
    """
    found: dict[int, Effect] = {}
    for step in steps:
        before = [point for point in points if point.turn <= step.turn]
        after = [point for point in points if point.turn > step.turn]
        if before and after and before[-1].success and not after[0].success:
            found[step.item] = "harmful"
        elif any(point.success for point in after):
            found[step.item] = "beneficial"
    return found


def to_recover(points: Sequence[Point]) -> list[Point]:
    """The states that need recovery: they do not lead to success, and the known state before them does."""
    return [later for earlier, later in itertools.pairwise(points) if earlier.success and not later.success]


def tool_steps(content: Sequence[AnyItem], steps: Sequence[Step]) -> list[int]:
    """The items of the steps that use a tool: a call, code, or a text that the environment answered as a command."""
    using = {item.turn for item in content if _uses_tool(item)}
    return [step.item for step in steps if step.turn in using]


def _uses_tool(item: AnyItem) -> bool:
    if is_mark(item):
        return False
    if isinstance(item, Action):
        return acts(item) and isinstance(item, ApiAction | CodeAction)
    # Web pages and images come from the environment, too; words come from users and other agents.
    return item.source == "environment" if isinstance(item, TextObservation | ImageObservation) else True
