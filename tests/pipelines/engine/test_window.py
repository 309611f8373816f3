"""The window is full whenever there is work, never more than full, and empty when it is left."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.engine import stop
from agentmill.pipelines.engine.chunks import Chunk
from agentmill.pipelines.engine.operation import AsyncOperation, Result, Unit
from agentmill.pipelines.engine.run import run_stage
from agentmill.pipelines.engine.shard import Shard
from agentmill.pipelines.engine.window import Pending, Window
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.task import Task
from tests.errors import user_error
from tests.pipelines.engine.operations import Explore
from tests.pipelines.engine.stages import order, task, write_table


class Echo(AsyncOperation):
    """Gives each task back after as many seconds as its first skill says; remembers what became of it."""

    def __init__(self, window: int = 3) -> None:
        super().__init__("echo", Task, Task, window)
        self.events: list[str] = []

    async def open(self) -> None:
        self.events.append("open")

    async def close(self) -> None:
        self.events.append("close")

    async def process(self, record: Any, unit: Unit) -> Iterable[Result]:
        try:
            await asyncio.sleep(float(record.skills[0]))
        except asyncio.CancelledError:
            self.events.append(f"cancelled {unit[0]}")
            raise
        return [Result(input_id=unit[0], outputs=[record])]


def pending(operation: AsyncOperation, index: int, seconds: float) -> Pending:
    record = task(index, str(seconds))
    return Pending(Shard(Chunk(0, "in.parquet", 0, 1, 1), operation), record, 0, (record.task_id,))


def test_units_land_in_the_order_they_end() -> None:
    window = Window(Echo())
    window.start()
    for index, seconds in enumerate((0.3, 0.0, 0.15)):
        assert not window.full
        window.launch(pending(window._operation, index, seconds))
    assert window.full
    assert [window.next_completed().pending.unit[0] for _ in range(3)] == ["task-0001", "task-0002", "task-0000"]
    assert not window.in_flight
    window.stop()
    window.stop()
    assert window._operation.events == ["open", "close"]


class Exiting(Echo):
    """Leaves its program, or is cancelled by what it asks, where the skill is so called."""

    async def process(self, record: Any, unit: Unit) -> Iterable[Result]:
        if record.skills[0] == "exit":
            raise SystemExit(2)
        if record.skills[0] == "cancelled":
            raise asyncio.CancelledError
        return await super().process(record, unit)


@pytest.mark.parametrize("skill", ["exit", "cancelled"])
def test_a_unit_that_would_end_the_loop_is_an_error_of_its_own(skill: str) -> None:
    window = Window(Exiting())
    window.start()
    record = task(0, skill)
    window.launch(Pending(Shard(Chunk(0, "in.parquet", 0, 1, 1), window._operation), record, 0, (record.task_id,)))
    error = window.next_completed().error
    assert isinstance(error, RuntimeError)
    assert str(error).startswith({"exit": "SystemExit: 2", "cancelled": "CancelledError"}[skill])
    window.launch(pending(window._operation, 1, 0.0))
    assert window.next_completed().error is None
    window.stop()


def test_a_loop_that_has_ended_is_not_waited_for() -> None:
    window = Window(Echo())
    window.start()
    window.launch(pending(window._operation, 0, 30))
    window._loop.call_soon_threadsafe(window._loop.stop)
    window._thread.join()
    with pytest.raises(RuntimeError, match="the loop of the window has ended"):
        window.next_completed()


def test_what_is_abandoned_is_cancelled_and_does_not_land() -> None:
    operation = Echo()
    window = Window(operation)
    window.start()
    window.launch(pending(operation, 0, 30))
    time.sleep(0.05)
    window.launch(pending(operation, 1, 30))
    window.abandon()
    assert window.in_flight == 0
    assert "cancelled task-0000" in operation.events
    window.launch(pending(operation, 2, 0))
    assert window.next_completed().pending.unit == ("task-0002",)
    window.stop()
    assert not any(thread.name == "window-echo" for thread in threading.enumerate())


def test_landing_with_nothing_in_flight_does_not_wait_for_ever() -> None:
    window = Window(Echo())
    window.start()
    with pytest.raises(RuntimeError, match="nothing is in flight"):
        window.next_completed()
    window.stop()


def test_an_interrupted_run_stops_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    window = Window(Echo())
    window.start()
    window.launch(pending(window._operation, 0, 30))
    monkeypatch.setattr(stop, "stopped", threading.Event())
    stop.stopped.set()
    with pytest.raises(stop.Stopped):
        window.next_completed()
    window.stop()


class Unopenable(Echo):
    async def open(self) -> None:
        raise UserError("no key: export KEY=…", ErrorCode.KEY_MISSING)


def test_an_operation_that_cannot_be_opened_ends_the_stage(tmp_path: Path) -> None:
    table = write_table(tmp_path / "tasks", [[task(0, "0")]])
    with user_error("key-missing"):
        run_stage(order(Unopenable(), table, tmp_path / "out"))


def test_the_window_spans_chunks_and_is_refilled_at_once(tmp_path: Path) -> None:
    table = write_table(tmp_path / "tasks", [[task(i) for i in range(24)]])
    log = tmp_path / "log.txt"
    # What is imported for the first stage of a process holds its window up.
    run_stage(order(Explore(k=2, window=8), table, tmp_path / "first"))
    began = time.monotonic()
    run_stage(order(Explore(k=2, delay_s=0.1, window=8, log=log), table, tmp_path / "out"))
    seconds = time.monotonic() - began
    peaks = [int(line.split()[1]) for line in log.read_text().splitlines()]
    assert len(peaks) == 48
    assert max(peaks) == 8
    # On a busy machine several episodes end before others are begun; a window that drains begins again with one.
    assert min(peaks[7:40]) > 2, "the window drained between chunks of 10 episodes"
    assert seconds < 48 * 0.1 / 8 + 3


def test_the_worker_is_this_process_on_the_embedded_runner(tmp_path: Path) -> None:
    table = write_table(tmp_path / "tasks", [[task(0)]])
    run_stage(order(Explore(log=tmp_path / "log.txt"), table, tmp_path / "out"))
    assert (tmp_path / "log.txt").read_text().startswith(f"{os.getpid()} ")
