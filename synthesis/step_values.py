"""What the steps of a run are worth, as far as others tried what follows them, or the run itself tells.

* ``mc``: the mean result of continuations from behind a step (IPR, arXiv:2406.11176; AgentPRM, arXiv:2502.10325).
* ``tree``: the Q of its node in a search tree, mixed with the node's own estimate (Agent Q, arXiv:2408.07199).
* ``state_group``: the advantage of its return over those of all steps that were taken in the same state of the same
  task (GiGPO, arXiv:2505.10978).
* ``broadcast``: the result of the run (AgentFlow, arXiv:2510.05592).

A step is a turn; tables name it by its first action.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Literal

import msgspec

from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Label, Node
from agentmill.synthesis.strategies.branch import first_actions

ScaleName = Literal["std", "none"]
_ROUNDING = 1e-9
"""Deviations below this come from adding up, and are none."""


class Estimate(msgspec.Struct, frozen=True):
    """A value, and the number of samples behind it."""

    value: float
    n: int


class Step(msgspec.Struct, frozen=True):
    """A step of a run: its turn, the item that stands for it, and the state it was taken in, where that is known.

    ``reward`` is what the environment gave for it. An own step was not copied from a parent.
    """

    turn: int
    item: int
    state: str | None
    reward: float
    own: bool


def steps_of(trajectory: Trajectory) -> list[Step]:
    """All steps of a run, in order."""
    content = trajectory.content
    rewards: dict[int, float] = {}
    for item in content:
        rewards[item.turn] = rewards.get(item.turn, 0.0) + (item.reward or 0.0)
    return [
        Step(
            turn=turn,
            item=place,
            state=next(
                (each.state_digest for each in reversed(content[:place]) if each.state_digest is not None), None
            ),
            reward=rewards[turn],
            own=content[place].context_operation != "copied",
        )
        for turn, place in sorted(first_actions(content).items())
    ]


BEFORE, AFTER = "before", "after"
"""The labels of steps before and after an erroneous one."""


def step_labels(trajectory: Trajectory, turn: int, value: str, name: str, labeller: str) -> list[Label]:
    """A label of each step: ``value`` for that of ``turn``, ``before`` and ``after`` for the others."""
    return [
        Label(
            trajectory_id=trajectory.trajectory_id,
            name=name,
            value=value if step.turn == turn else BEFORE if step.turn < turn else AFTER,
            labeller=labeller,
            item=step.item,
        )
        for step in steps_of(trajectory)
    ]


def continued(
    steps: Sequence[Step], results: Mapping[int, Sequence[float]], result: float | None
) -> dict[int, Estimate]:
    """The mean of the ``results`` of continuations, given by the turn that each begins with; by item.

    Where nothing follows the last step, it is worth the ``result`` of the run, if that is known.
    """
    found = {}
    for step, after in zip(steps, [*steps[1:], None], strict=True):
        own = [] if result is None else [result]
        samples = results.get(step.turn + 1, own) if after is None else results.get(after.turn, ())
        if samples:
            # fsum is exact, so the mean does not depend on the order of the samples.
            found[step.item] = Estimate(math.fsum(samples) / len(samples), len(samples))
    return found


def searched(steps: Sequence[Step], nodes: Iterable[Node], mix: float) -> dict[int, Estimate]:
    """``mix * Q + (1 - mix) * estimate`` of the nodes that belong to the run, where both are known; by item.

    With ``mix`` 1 a node needs no estimate of its own.
    """
    items = {step.turn: step.item for step in steps}
    found = {}
    for node in nodes:
        estimate = node.extra.get("estimate", None if mix < 1 else 0.0)
        if node.turn in items and node.q is not None and estimate is not None:
            found[items[node.turn]] = Estimate(mix * node.q + (1 - mix) * estimate, node.visits)
    return found


def returns(steps: Sequence[Step], result: float | None, discount: float) -> list[float]:
    """What follows from each step on: the discounted ``result`` of the run, or if that is None its rewards."""
    following, found = result or 0.0, []
    for number, step in enumerate(reversed(steps)):
        if result is None:
            following = step.reward + discount * following
        elif number:
            following *= discount
        found.append(following)
    return found[::-1]


class Group:
    """The returns of all steps in one state. All are added before an advantage is asked for."""

    def __init__(self) -> None:
        self._returns = array("d")

    def add(self, value: float) -> None:
        """One more."""
        self._returns.append(value)

    @cached_property
    def _mean_and_deviation(self) -> tuple[float, float]:
        # fsum is exact, so neither depends on the order of the returns.
        count = len(self._returns)
        mean = math.fsum(self._returns) / count
        return mean, math.sqrt(math.fsum((each - mean) ** 2 for each in self._returns) / count)

    def advantage(self, value: float, scale: ScaleName) -> Estimate | None:
        """How far a return lies above their mean, in standard deviations or as it is; ``None`` for one alone."""
        count = len(self._returns)
        if count < 2:
            return None
        mean, deviation = self._mean_and_deviation
        # Dividing by it would blow rounding up to advantages.
        if deviation < _ROUNDING:
            return Estimate(0.0, count)
        return Estimate((value - mean) / (deviation if scale == "std" else 1.0), count)
