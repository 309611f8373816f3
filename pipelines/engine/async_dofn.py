"""The Beam side of an operation that waits: it feeds a window from the chunks of a bundle and lands what has ended."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any

import apache_beam as beam
import msgspec
from apache_beam.metrics.metric import Metrics
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MIN_TIMESTAMP
from apache_beam.utils.windowed_value import WindowedValue

from agentmill.pipelines.engine.chunks import Chunk, read_chunk
from agentmill.pipelines.engine.journal import Journal
from agentmill.pipelines.engine.liveness import Pulse, pulse
from agentmill.pipelines.engine.operation import AnyOperation, AsyncOperation
from agentmill.pipelines.engine.shard import Shard, ShardResult
from agentmill.pipelines.engine.window import Pending, Window
from agentmill.pipelines.engine.workspace import Failure, Workspace
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import RAISE_OR_WAIT, UserError
from agentmill.schemas.extras import missing_extra
from agentmill.schemas.struct_types import prepare_struct_types
from agentmill.synthesis.policies.policy import Denied, Unreachable


class StageFn(beam.DoFn):
    """Base of the functions of a stage."""

    def __init__(self, operation: AnyOperation, workspace: Workspace) -> None:
        self.operation = operation
        self.workspace = workspace
        self._pulse: Pulse | None = None

    def setup(self) -> None:
        """Report that this worker has started, and begin to give signs of life."""
        prepare_struct_types()  # the operation may have brought modules with more of them
        self._pulse = pulse(self.workspace)
        with suppress(OSError):
            self.workspace.report()

    def take(self, chunk: int) -> None:
        """Say that this worker works on a chunk, until its result is ``counted`` or it is ``released``."""
        if self._pulse is not None:
            self._pulse.take(chunk)

    def release(self, chunk: int) -> None:
        """Say that this worker has done a chunk."""
        if self._pulse is not None:
            self._pulse.release(chunk)

    @contextmanager
    def boundary(self) -> Iterator[None]:
        """Record what ends the stage where the launcher finds it: exceptions do not cross every runner whole."""
        try:
            yield
        except (Exception, SystemExit) as error:
            mistake = error if isinstance(error, UserError) else missing_extra(error)
            text = f"{type(error).__name__}: {error}" if mistake is None else str(mistake)
            failure = Failure(code=None if mistake is None else mistake.code, text=text, trace=traceback.format_exc())
            # Only the note may fail, as on a full device; the error itself is raised anyhow.
            with suppress(OSError, UserError):
                self.workspace.fail(failure)
            raise

    def counted(self, result: ShardResult) -> ShardResult:
        """``result``, added to the runner's own counters; one that was there before too, so that they tell the table.

        Counters of a bundle that fails are lost with it, while its results are found again when it is retried.
        """
        self.release(result.chunk.index)
        counts: dict[str, int] = msgspec.to_builtins(result.counts)
        reasons = {f"dropped_{reason}": n for reason, n in result.reasons.items()}
        for name, n in {**counts, **reasons, **counters(result.metrics)}.items():
            Metrics.counter(self.operation.name, name).inc(n)
        return result


def counters(metrics: Mapping[str, float]) -> dict[str, int]:
    """Metrics as counters, which are integers: dollars are counted in millionths, as ``cost_microusd``."""
    micro = {name.removesuffix("_usd") + "_microusd": round(1e6 * n) for name, n in metrics.items() if _is_usd(name)}
    return {**{name: round(n) for name, n in metrics.items() if not _is_usd(name)}, **micro}


def _is_usd(name: str) -> bool:
    return name.endswith("_usd")


class AsyncFn(StageFn):
    """Keeps the window full over all chunks of a bundle; writes the shard of a chunk when its last unit has ended."""

    def __init__(self, operation: AsyncOperation[Any, Any], workspace: Workspace) -> None:
        super().__init__(operation, workspace)
        self._operation = operation
        self._window: Window | None = None
        self._journal: Journal | None = None
        self._reading: Shard | None = None
        self._halt = False

    def start_bundle(self) -> None:
        """Give up what a failed bundle left in flight."""
        if self._window is not None:
            # Beam retries a bundle as a whole, so what its first try has in flight would end twice.
            self._window.abandon()

    def process(self, chunk: Chunk) -> Iterator[ShardResult]:
        """Launch the units of ``chunk``; give the results of whatever chunks get finished meanwhile."""
        results: list[ShardResult] = []
        self.take(chunk.index)
        with self.boundary():
            done = self.workspace.result("results", chunk.index)
            results += [self.counted(done)] if done else self._launch_all(chunk)
        yield from results

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """Wait for all that is in flight."""
        results: list[ShardResult] = []
        with self.boundary():
            while self._window is not None and self._window.in_flight:
                results += self._collect()
            # This worker may have nothing more to do while others work on for long.
            if self._journal is not None:
                self._journal.note(0, at_once=True)
        # No element is at hand whose window the results could take, so Beam asks for windowed values here.
        for result in results:
            yield WindowedValue(result, MIN_TIMESTAMP, (GlobalWindow(),))

    def teardown(self) -> None:
        """Stop the window and close the journal. Safe to call twice."""
        window, journal = self._window, self._journal
        self._window = self._journal = None
        if window is not None:
            window.stop()
        if journal is not None:
            journal.close()

    def _launch_all(self, chunk: Chunk) -> list[ShardResult]:
        results: list[ShardResult] = []
        window, journal = self._opened()
        shard = self._reading = Shard(chunk, self._operation)
        for row, record in enumerate(read_chunk(chunk, self._operation.reads)):
            units = list(self._operation.units(record))
            ended = journal.read([input_id for unit in units for input_id in unit])
            for unit in units:
                # Taken from the journal only if the unit ended whole: its inputs share an episode or a tree.
                if all(input_id in ended for input_id in unit):
                    shard.add(unit, [ended[input_id] for input_id in unit])
                    continue
                while window.full:
                    results += self._collect()
                shard.waiting += 1
                # Counted as waiting and not launched, so that its shard is not written without it.
                if self._halted():
                    continue
                window.launch(Pending(shard, record, row, unit))
            # Also where the window has room: what has ended goes into the journal at once.
            while window.has_completed():
                results += self._collect()
        self._reading = None
        return results if shard.waiting else [*results, self._store(shard)]

    def _halted(self) -> bool:
        """Whether nothing new may start in any worker. What is not launched keeps its shard from being written."""
        if not self._halt:
            reason = self._operation.exhausted()
            if reason is not None:
                self._stop_launching(reason)
            self._halt = self._halt or self.workspace.halted() is not None
        return self._halt

    def _stop_launching(self, reason: str, advice: str = RAISE_OR_WAIT) -> None:
        self._halt = True
        self.workspace.halt(reason, advice)

    def _collect(self) -> list[ShardResult]:
        """Take the next unit that ends; the result of its chunk if it was the last."""
        window, journal = self._opened()
        if not window.has_completed():  # it has to wait, so there is time
            journal.note(window.in_flight)
        completed = window.next_completed()
        shard, pending = completed.pending.shard, completed.pending
        spent: Mapping[str, float] = {}
        if completed.error is not None:
            # No input is at fault for these, and the next one would meet the same.
            if isinstance(completed.error, UserError | MemoryError):
                raise completed.error
            if isinstance(completed.error, Denied):
                # The unit stays waiting and is not journalled, so the next run does it.
                self._stop_launching(completed.error.detail, completed.error.advice)
                return []
            if isinstance(completed.error, Unreachable):
                raise UserError(
                    f"no model server answers: {completed.error.detail}\nstart it, then run the same command again; "
                    "what has ended is kept",
                    ErrorCode.ENDPOINT_UNREACHABLE,
                ) from completed.error
            spent = self._operation.dropped_measures(pending.unit)
            shard.fail(pending.unit, completed.error, pending.record, pending.row, spent)
        else:
            dropped = any(result.dropped is not None for result in completed.results)
            shard.add(pending.unit, completed.results, shard.context(pending.record, pending.row) if dropped else None)
        measured = shard.measure(completed.results)
        measured.update(spent)
        # Before the unit counts as done, so that a kill after this line costs nothing.
        journal.write(pending.unit, completed.results, measured)
        shard.waiting -= 1
        # Units of the chunk that is still read are not all counted as waiting yet.
        return [] if shard.waiting or shard is self._reading else [self._store(shard)]

    def _store(self, shard: Shard) -> ShardResult:
        _, journal = self._opened()
        result = self.workspace.store("results", shard, self._operation.writes)
        if not result.passing:  # else the chunk may be made anew, from these and what is tried again
            used = {input_id for input_id, _ in chain(shard.rows, *shard.sides.values())}
            journal.release(used | {letter.input_id for letter in shard.dropped})
        return self.counted(result)

    def _opened(self) -> tuple[Window, Journal]:
        if self._journal is None:
            self._journal = Journal(self.workspace.journal, self._operation.writes, self._operation.sides)
        if self._window is None:
            window = Window(self._operation)
            try:
                window.start()
            except BaseException:
                # Else the thread of a window whose operation cannot be opened would be left behind.
                window.stop()
                raise
            self._window = window
        return self._window, self._journal


# Rows make many objects that stay until their shard is written: to look at these again and again frees nothing.
RARE = (200_000, 20, 20)
"""Objects that are made before the young ones are looked at, and how often until the older ones are."""


@contextmanager
def rare_collection() -> Iterator[None]:
    """Collect rarely for as long as this lasts. Where threads overlap, the first that ends ends it for all."""
    usual = gc.get_threshold()
    if usual == RARE:
        yield
        return
    gc.set_threshold(*RARE)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
