"""The threads that worlds live in: bounded, replaced where one hangs; and the errands that they run."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.rollouts.blocking_env import BlockingCall, Listen, Pool


def test_what_is_cancelled_before_its_loop_runs_is_not_begun() -> None:
    async def work(listen: Listen) -> str:
        begun.append(listen)
        return "lived"

    begun: list[Listen] = []
    assert BlockingCall(work).run() == "lived"
    errand = BlockingCall(work)
    errand.cancel()
    with pytest.raises(asyncio.CancelledError):
        errand.run()
    assert len(begun) == 1


def test_nothing_is_left_running_where_work_broke_off() -> None:
    ended: list[str] = []

    async def linger() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("lingered")

    async def work(listen: Listen) -> str:
        task = asyncio.create_task(linger())
        await asyncio.sleep(0.01)
        raise EnvError(f"it broke, {task.get_name()} runs")

    with pytest.raises(EnvError, match="it broke"):
        BlockingCall(work).run()
    assert ended == ["lingered"]


def test_a_pool_waits_for_what_was_given_up_but_not_for_ever() -> None:
    pool, released, closed = Pool(1), threading.Event(), threading.Event()

    def close() -> None:
        released.wait(60)
        time.sleep(0.1)
        closed.set()

    stuck = pool.submit(close)
    while not stuck.running():
        time.sleep(0.01)
    pool.abandon(stuck)
    began = time.monotonic()
    pool.drain(0.2)
    assert 0.2 <= time.monotonic() - began < 10
    assert not closed.is_set()
    released.set()
    pool.drain(30)
    assert closed.is_set()


def test_a_pool_is_bounded_and_replaces_what_hangs() -> None:
    pool, released = Pool(2), threading.Event()
    stuck = [pool.submit(lambda: released.wait(60)) for _ in range(2)]
    later = [pool.submit(lambda number=number: number) for number in range(3)]
    never = pool.submit(lambda: 1)
    while not all(future.running() for future in stuck):
        time.sleep(0.01)
    assert not any(future.done() for future in later), "there are two threads, and both are busy"
    pool.abandon(never)
    assert never.cancelled()
    pool.abandon(stuck[0])
    assert [future.result(10) for future in later] == [0, 1, 2]
    assert pool.abandoned == 1
    released.set()
    assert stuck[0].result(10) is True
    while pool.abandoned:
        time.sleep(0.01)
    busy = [pool.submit(lambda: threading.current_thread().ident) for _ in range(20)]
    assert len({future.result(10) for future in busy}) <= 2
