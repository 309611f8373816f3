"""How far a stage is, seen from what lies in its workspace: the same way on every runner."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

from pipelines.engine.chunks import Chunk, read_chunk
from pipelines.engine.journal import ended
from pipelines.engine.operation import AsyncOperation, Operation, UniqueOperation
from pipelines.engine.order import StageOrder
from pipelines.engine.progress import StageProgress
from pipelines.engine.workspace import Phase, Workspace

_POLL_S = 0.5


@contextlib.contextmanager
def watched(
    order: StageOrder, chunks: Sequence[Chunk], workspace: Workspace, progress: StageProgress | None
) -> Iterator[None]:
    """Tell ``progress`` how far a stage is, from what lies in its workspace, until it ends."""
    if progress is None:
        yield
        return
    counter, over = Tracker(order.operation, workspace), threading.Event()

    def report() -> None:
        while not over.wait(_POLL_S):
            progress.advanced(order.name, counter.done())

    progress.started(order.name, counter.total(chunks), counter.done())
    thread = threading.Thread(target=report, name="progress", daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        over.set()
        thread.join()
        progress.stopped(order.name)
        raise
    over.set()
    thread.join()


class Tracker:
    """How many inputs of a stage there are and have ended."""

    def __init__(self, operation: Operation, workspace: Workspace) -> None:
        self._operation = operation
        self._workspace = workspace
        self._phase: Phase = "candidates" if isinstance(operation, UniqueOperation) else "results"
        self._read: dict[int, int] = {}

    def total(self, chunks: Sequence[Chunk]) -> int:
        """All inputs. Reads the rows of an operation that makes several inputs of one."""
        if not (isinstance(self._operation, AsyncOperation) or self._operation.many):
            return sum(chunk.stop - chunk.start for chunk in chunks)
        count, reads = self._operation.count, self._operation.reads
        return sum(count(record) for chunk in chunks for record in read_chunk(chunk, reads))

    def done(self) -> int:
        """Inputs that have ended."""
        if isinstance(self._operation, AsyncOperation):
            return ended(self._workspace.journal)
        for index in self._workspace.finished(self._phase) - self._read.keys():
            result = self._workspace.result(self._phase, index)
            self._read[index] = result.counts.read if result else 0
        return sum(self._read.values())
