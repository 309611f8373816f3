"""The Beam side of an operation that waits: it feeds a window from the chunks of a bundle and lands what has ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MIN_TIMESTAMP
from apache_beam.utils.windowed_value import WindowedValue

from pipelines.engine.chunks import Chunk, read_chunk
from pipelines.engine.journal import Journal
from pipelines.engine.operation import AsyncOperation
from pipelines.engine.shard import Shard, ShardResult
from pipelines.engine.window import Flight, Window
from pipelines.engine.worker import StageFn
from pipelines.engine.workspace import Workspace
from schemas.errors import RAISE_OR_WAIT, UserError
from synthesis.policies.policy import Denied, Unreachable


class FlightsFn(StageFn):
    """Keeps the window full over all chunks of a bundle; writes the shard of a chunk when its last unit has landed."""

    def __init__(self, operation: AsyncOperation, workspace: Workspace) -> None:
        super().__init__(operation, workspace)
        self._operation = operation
        self._window: Window | None = None
        self._journal: Journal | None = None
        self._reading: Shard | None = None
        self._halt = False

    def start_bundle(self) -> None:
        """Give up what a failed bundle left in flight."""
        if self._window is not None:
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
                results += self._land()
            if self._journal is not None:
                self._journal.note(0, at_once=True)
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
            units = self._operation.units(record)
            ended = journal.read([input_id for unit in units for input_id in unit])
            for unit in units:
                if all(input_id in ended for input_id in unit):
                    shard.add(unit, [ended[input_id] for input_id in unit])
                    continue
                while window.full:
                    results += self._land()
                shard.waiting += 1
                if self._halted():
                    continue
                window.launch(Flight(shard, record, row, unit))
            while window.landed():
                results += self._land()
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

    def _land(self) -> list[ShardResult]:
        """Take the next unit that ends; the result of its chunk if it was the last."""
        window, journal = self._opened()
        if not window.landed():  # it has to wait, so there is time
            journal.note(window.in_flight)
        landing = window.land()
        shard, flight = landing.flight.shard, landing.flight
        lost: Mapping[str, float] = {}
        if landing.error is not None:
            if isinstance(landing.error, UserError | MemoryError):
                raise landing.error
            if isinstance(landing.error, Denied):
                self._stop_launching(landing.error.detail, landing.error.advice)
                return []
            if isinstance(landing.error, Unreachable):
                raise UserError(
                    f"no model server answers: {landing.error.detail}\nstart it, then run the same command again; "
                    "what has ended is kept"
                ) from landing.error
            lost = self._operation.lost(flight.unit)
            shard.fail(flight.unit, landing.error, flight.record, flight.row, lost)
        else:
            dropped = any(result.dropped is not None for result in landing.results)
            shard.add(flight.unit, landing.results, shard.context(flight.record, flight.row) if dropped else None)
        measured = shard.measure(landing.results)
        measured.update(lost)
        journal.write(flight.unit, landing.results, measured)
        shard.waiting -= 1
        return [] if shard.waiting or shard is self._reading else [self._store(shard)]

    def _store(self, shard: Shard) -> ShardResult:
        _, journal = self._opened()
        result = self.workspace.store("results", shard, self._operation.writes)
        if not result.passing:  # else the chunk may be made anew, from these and what is tried again
            journal.release({input_id for input_id, _ in chain(shard.rows, *shard.sides.values())})
        return self.counted(result)

    def _opened(self) -> tuple[Window, Journal]:
        if self._journal is None:
            self._journal = Journal(self.workspace.journal, self._operation.writes, self._operation.sides)
        if self._window is None:
            window = Window(self._operation)
            try:
                window.start()
            except BaseException:
                window.stop()
                raise
            self._window = window
        return self._window, self._journal
