"""The time of an episode: it ends work that takes too long, and stands still while a provider refuses everybody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from agentmill.synthesis.policies.rate_limit import Gate, Limits, refused_s
from agentmill.synthesis.rollouts.step import within


def never_s() -> float:
    return 0.0


async def rest(seconds: float, ended: list[str] | None = None) -> str:
    try:
        await asyncio.sleep(seconds)
    finally:
        if ended is not None:
            ended.append("ended")
    return "rested"


async def test_work_that_takes_too_long_is_ended() -> None:
    ended: list[str] = []
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        await within(0.1, rest(60, ended), never_s)
    assert 0.1 <= time.monotonic() - began < 5
    assert ended == ["ended"]
    assert await within(5, rest(0.01), never_s) == "rested"


async def test_what_work_raises_passes() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await within(5, fail(), never_s)


async def test_whoever_is_cancelled_ends_the_work() -> None:
    ended: list[str] = []
    task = asyncio.create_task(within(60, rest(60, ended), never_s))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["ended"]


@pytest.mark.parametrize("before", [0.0, 0.2])
async def test_time_stands_still_while_all_are_refused(before: float) -> None:
    """Refused from ``before`` it begins, and until half a second after; then 0.2 s of 0.3 s are left over."""
    policy = Asker()
    policy.gate.refused(time.monotonic())
    await asyncio.sleep(before)
    asyncio.get_running_loop().call_later(0.5, policy.gate.answered)
    began = time.monotonic()
    assert await within(0.3, rest(0.7), spent_by(policy)) == "rested"
    with pytest.raises(TimeoutError):
        await within(0.3, rest(0.7), spent_by(policy))
    assert time.monotonic() - began < 1.5


def test_a_gate_is_counted_once_whoever_shares_it() -> None:
    one, other = Asker(), Asker()
    other.gate = one.gate
    one.gate.refused(time.monotonic() - 5)
    assert refused_s([one, other, object()]) == pytest.approx(5, abs=0.5)
    one.gate.answered()
    one.gate.refused(time.monotonic() - 2)
    assert refused_s([one]) == pytest.approx(7, abs=0.5)


class Asker:
    """A policy, as far as its provider goes."""

    def __init__(self) -> None:
        self.gate = Gate(Limits())


def spent_by(policy: Asker) -> Callable[[], float]:
    return lambda: refused_s([policy])
