"""How far a stage is, seen from what lies in its workspace: the same way on every runner."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence

import msgspec

from pipelines.engine.chunks import Chunk, read_chunk
from pipelines.engine.operation import AsyncOperation, Operation, UniqueOperation
from pipelines.engine.order import StageOrder
from pipelines.engine.progress import StageProgress
from pipelines.engine.standing import Standing, standing
from pipelines.engine.utilisation import Gauge
from pipelines.engine.workspace import Phase, Workspace

_POLL_S = 0.5


@contextlib.contextmanager
def watched(
    order: StageOrder, chunks: Sequence[Chunk], counter: Tracker, progress: StageProgress | None
) -> Iterator[Gauge]:
    """Tell ``progress`` how far a stage is, by ``counter``, until it ends; gauge its servers."""
    gauge = Gauge(order.slots)
    if progress is None:
        yield gauge
        return
    over = threading.Event()

    def report() -> None:
        while not over.wait(_POLL_S):
            progress.advanced(order.name, msgspec.structs.replace(counter.standing(), busy=gauge.now()))

    thread = threading.Thread(target=report, name="progress", daemon=True)
    total = counter.total(chunks)
    try:
        progress.started(order.name, total, counter.standing())
        thread.start()
        yield gauge
    except BaseException:
        over.set()
        if thread.is_alive():
            thread.join()
        progress.stopped(order.name)
        raise
    over.set()
    thread.join()


class Tracker:
    """How many inputs of a stage there are, and how it stands with them."""

    def __init__(self, operation: Operation, workspace: Workspace) -> None:
        self._operation = operation
        self._workspace = workspace
        self._phase: Phase = "candidates" if isinstance(operation, UniqueOperation) else "results"
        self._read: dict[int, int] = {}
        self._since = time.time()

    def total(self, chunks: Sequence[Chunk]) -> int:
        """All inputs. Reads the rows of an operation that makes several inputs of one."""
        if not (isinstance(self._operation, AsyncOperation) or self._operation.many):
            return sum(chunk.stop - chunk.start for chunk in chunks)
        count, reads = self._operation.count, self._operation.reads
        return sum(count(record) for chunk in chunks for record in read_chunk(chunk, reads))

    def standing(self) -> Standing:
        """Inputs that have ended, those in flight, and what came of them."""
        if isinstance(self._operation, AsyncOperation):
            return standing(self._workspace.journal, self._since)
        for index in self._workspace.finished(self._phase) - self._read.keys():
            result = self._workspace.result(self._phase, index)
            self._read[index] = result.counts.read if result else 0
        return Standing(ended=sum(self._read.values()))
