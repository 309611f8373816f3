"""What a task of an interpreter environment wants, and how much of it is met. The comparison is made on the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.task import Task
from agentmill.synthesis.environments.environment import Check, EnvError
from agentmill.synthesis.sandbox import Result

TOLERANCE = 1e-6
"""Relative, for numbers that are not whole; absolute, for whole ones and 0, which may be computed with fractions."""

_ROUNDING = 1e-12
"""Absolute, for numbers that are small and not 0."""


class ExpectedCall(Record):
    """What a function of the agent must return."""

    function: str
    arguments: JsonObject
    value: Any


class Goal(Record):
    """``answer``: a list of one value that must be submitted, or none; ``calls``: what functions must return."""

    answer: list[Any] = []
    calls: list[ExpectedCall] = []


def goal_of(task: Task) -> Goal:
    """The goal of a task. Raises ``EnvError`` for one that asks for nothing, or that cannot be read."""
    try:
        calls = msgspec.convert(task.goal.get("calls", []), list[ExpectedCall])
    except msgspec.ValidationError as error:
        raise EnvError(f"task {task.task_id}: goal['calls']: {error}") from None
    goal = Goal(answer=[task.goal["answer"]] if "answer" in task.goal else [], calls=calls)
    if bool(goal.answer) == bool(goal.calls):
        raise EnvError(f"task {task.task_id}: the goal must hold either 'answer' or 'calls'")
    return goal


def share_met(goal: Goal, submitted: Sequence[Any], results: Sequence[Result | None]) -> Check:
    """The answer, or the share of the calls that came to what was expected. Expected values are not shown."""
    if not goal.calls:
        right = bool(submitted) and same(submitted[0], goal.answer[0])
        return Check(passed=right, score=float(right), evidence={"submitted": list(submitted)})
    met = [
        result is not None and result.ok and same(result.value, call.value)
        for call, result in zip(goal.calls, results, strict=True)
    ]
    return Check(passed=all(met), score=sum(met) / len(met), evidence={"calls": len(met), "met": sum(met)})


def same(value: Any, expected: Any) -> bool:
    """Equal as JSON; numbers up to ``TOLERANCE``, texts up to white space around them. ``True`` is not 1."""
    if isinstance(expected, bool) or isinstance(value, bool) or expected is None:
        return value is expected
    if isinstance(expected, int | float):
        return isinstance(value, int | float) and _close(value, expected)
    if isinstance(expected, str):
        return isinstance(value, str) and value.strip() == expected.strip()
    if isinstance(expected, list):
        both = isinstance(value, list) and len(value) == len(expected)
        return both and all(same(one, other) for one, other in zip(value, expected, strict=True))
    both = isinstance(value, dict) and value.keys() == expected.keys()
    return both and all(same(value[key], expected[key]) for key in expected)


def _close(value: float, expected: float) -> bool:
    # Large whole numbers would be close to many others, and all small numbers to 0.
    whole = isinstance(expected, int) or expected == 0
    if isinstance(value, int) and isinstance(expected, int):
        return value == expected
    try:
        return math.isclose(
            value, expected, rel_tol=0 if whole else TOLERANCE, abs_tol=TOLERANCE if whole else _ROUNDING
        )
    except OverflowError:  # a whole number that no float can hold
        return False
