"""A window of work in flight: one event loop in a thread of its own, fed from the thread of a Beam worker.

Nothing waits for a batch to end: as soon as one unit ends, the next may start. The feeding thread is held back while
the window is full, so memory holds what is in flight and no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

import msgspec

from agentmill.pipelines.engine import stop
from agentmill.pipelines.engine.operation import AsyncOperation, Result, Unit
from agentmill.pipelines.engine.shard import Shard

_POLL_S = 0.2
_CANCEL_TIMEOUT_S = 10.0


class Pending(msgspec.Struct, frozen=True):
    """A unit in flight: the ``row``-th record of the chunk of ``shard``."""

    shard: Shard
    record: Any
    row: int
    unit: Unit


class Completed(msgspec.Struct, frozen=True):
    """A unit that has ended, with its results or an exception."""

    pending: Pending
    results: list[Result] = []
    error: Exception | None = None


class Window:
    """Units of ``operation`` in flight. Made, fed and stopped by one thread."""

    def __init__(self, operation: AsyncOperation[Any, Any]) -> None:
        self._operation = operation
        self._completed: queue.SimpleQueue[Completed] = queue.SimpleQueue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._made: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._run, name=f"window-{operation.name}", daemon=True)
        self.in_flight = 0
        self._generation = 0

    def start(self) -> None:
        """Start the loop and open the operation. Raises what ``open`` raises."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._operation.open(), self._loop).result()

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return self._made.result()

    @property
    def full(self) -> bool:
        """Whether nothing may start before something completes."""
        return self.in_flight >= self._operation.window

    def launch(self, pending: Pending) -> None:
        """Start a unit. The caller sees to it that the window is not full."""
        self.in_flight += len(pending.unit)
        self._loop.call_soon_threadsafe(self._start, pending, self._generation)

    def next_completed(self) -> Completed:
        """Wait for the next unit to end.

        Raises ``RuntimeError`` if none is in flight or the loop has ended, ``Stopped`` if the run stops.
        """
        if not self.in_flight:
            raise RuntimeError("nothing is in flight")
        completed = None
        while completed is None:
            # In steps, since the flag of an interrupt wakes nobody who waits.
            stop.check()
            alive = self._thread.is_alive()
            with contextlib.suppress(queue.Empty):
                completed = self._completed.get(timeout=_POLL_S)
            if completed is None and not alive:
                raise RuntimeError("the loop of the window has ended with units in flight")
        self.in_flight -= len(completed.pending.unit)
        return completed

    def has_completed(self) -> bool:
        """Whether ``next_completed`` would return at once."""
        return not self._completed.empty()

    def abandon(self) -> None:
        """Cancel all that is in flight; nothing of it completes any more."""
        # A unit that was launched and not started yet belongs to the generation before, and never starts.
        self._generation += 1
        asyncio.run_coroutine_threadsafe(self._cancel(), self._loop).result()
        self._completed = queue.SimpleQueue()
        self.in_flight = 0

    def stop(self) -> None:
        """Cancel what is in flight, close the operation, end the loop and its thread. Safe to call twice."""
        if not self._thread.is_alive():
            return
        self.abandon()
        try:
            asyncio.run_coroutine_threadsafe(self._operation.close(), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        # Made in this thread: in the main thread, a signal could leave a loop that is half made and complains.
        try:
            loop = asyncio.new_event_loop()
        except BaseException as error:
            self._made.set_exception(error)
            raise
        self._made.set_result(loop)
        asyncio.set_event_loop(loop)
        try:
            with stop.running(loop):
                loop.run_forever()
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    def _start(self, pending: Pending, generation: int) -> None:
        if generation != self._generation:
            return
        task = self._loop.create_task(self._process(pending))
        # The loop itself refers to its tasks weakly.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _process(self, pending: Pending) -> None:
        done = self._completed  # of this generation: those that are abandoned go nowhere
        try:
            results: Iterable[Result] = await self._operation.process(pending.record, pending.unit)
            # Inside of the ``try``: a generator raises only while it is read.
            completed = Completed(pending, list(results))
        except Exception as error:  # noqa: BLE001 - handed to the feeding thread, which judges it
            completed = Completed(pending, error=error)
        except BaseException as error:
            # A program that exits, or cancels what it is run in, must not end the loop: nothing would complete again.
            completed = Completed(pending, error=RuntimeError(f"{type(error).__name__}: {error}"))
            if isinstance(error, asyncio.CancelledError):
                done.put(completed)
                raise
        done.put(completed)

    async def _cancel(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            # A plug-in may swallow its cancellation, and must not keep the worker from ending.
            await asyncio.wait(tasks, timeout=_CANCEL_TIMEOUT_S)
