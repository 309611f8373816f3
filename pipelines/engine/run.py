"""Running a stage: plan its chunks, let Beam work on them, add up what became of them, write the manifest last."""

from __future__ import annotations

import contextlib
import platform
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from agentmill.pipelines.engine import attempts, stop
from agentmill.pipelines.engine.chunks import Chunk, plan, read_chunk
from agentmill.pipelines.engine.errors import PASSING, EngineError
from agentmill.pipelines.engine.execute import WorkerLost, execute, worker_lost
from agentmill.pipelines.engine.journal import ended
from agentmill.pipelines.engine.operation import SIDES, AnyOperation, AsyncOperation, UniqueOperation
from agentmill.pipelines.engine.progress import ProgressSnapshot, ServerLoad, progress_snapshot
from agentmill.pipelines.engine.provenance import finished
from agentmill.pipelines.engine.stage_run import StageRun
from agentmill.pipelines.engine.workspace import Phase, Plan, Workspace
from agentmill.pipelines.terminal.progress import StageProgress
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import LimitReached, UserError
from agentmill.schemas.records.record import SCHEMA_VERSION
from agentmill.schemas.tables import Counts, Manifest, ShardFile, Table, write_manifest

_POLL_S = 0.5


@contextlib.contextmanager
def watched(
    order: StageRun, chunks: Sequence[Chunk], counter: Tracker, progress: StageProgress | None
) -> Iterator[ServerLoad]:
    """Tell ``progress`` how far a stage is, by ``counter``, until it ends; gauge its servers."""
    gauge = ServerLoad(order.slots)
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

    def __init__(self, operation: AnyOperation, workspace: Workspace) -> None:
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

    def standing(self) -> ProgressSnapshot:
        """Inputs that have ended, those in flight, and what came of them."""
        if isinstance(self._operation, AsyncOperation):
            return progress_snapshot(self._workspace.journal, self._since)
        for index in self._workspace.finished(self._phase) - self._read.keys():
            result = self._workspace.result(self._phase, index)
            self._read[index] = result.counts.read if result else 0
        return ProgressSnapshot(ended=sum(self._read.values()))


ATTEMPTS = 3
"""A stage that lost a worker is tried so often in all."""

_PACKAGES = ("agentmill", "apache-beam", "pyarrow", "msgspec")


def run_stage(order: StageRun, progress: StageProgress | None = None) -> Manifest:
    """Make the table of a stage, or find that it is made. Returns its manifest.

    A table that a killed run left unfinished goes on where it stopped. Raises ``UserError`` (a table that was made
    differently, an empty input, a full device …), ``StageFailed``, ``EngineError``, ``LimitReached``;
    ``KeyboardInterrupt`` passes through once the workers have been told to stop.
    """
    manifest = finished(order.folder, order.provenance, order.replace)
    if manifest is not None:
        attempts.end(order.folder)
        if progress is not None:
            progress.skipped(order.name, manifest)
        return manifest
    order.runner.check()
    refuse_empty(order.primary, order.name)
    chunks = plan(order.primary, order.operation.chunk_rows)
    manifest = made(order, chunks, progress)
    if progress is not None:
        progress.finished(order.name, manifest)
    return manifest


def made(order: StageRun, chunks: Sequence[Chunk], progress: StageProgress | None) -> Manifest:
    """Make the table in at most ``ATTEMPTS`` attempts. Raises as ``run_stage``."""
    began = time.monotonic()
    number = 1
    while True:
        workspace = attempts.begin(order.folder, Plan(provenance=order.provenance, chunks=len(chunks)))
        try:
            busy = work(order, chunks, workspace, progress)
            refuse_passing(order, chunks, workspace)
            return conclude(order, chunks, workspace, time.monotonic() - began, busy)
        except WorkerLost as error:
            stop.end_workers(workspace.stop_file)
            stop.lost.clear()
            if number == ATTEMPTS:
                raise worker_lost(order, error, ATTEMPTS) from None
            number += 1
            if progress is not None:
                progress.retried(order.name, str(error), number)


@contextlib.contextmanager
def loss_noticed() -> Iterator[None]:
    """Raises ``WorkerLost`` for the interrupt by which a lost worker is noticed, wherever in the attempt it arrives."""
    try:
        yield
    except KeyboardInterrupt:
        if stop.lost and not stop.asked.is_set():
            raise WorkerLost(stop.lost[0]) from None
        raise


def work(
    order: StageRun, chunks: Sequence[Chunk], workspace: Workspace, progress: StageProgress | None
) -> float | None:
    """One attempt. Returns the mean utilisation of the servers, if it is known. Raises as ``execute``."""
    tracker = Tracker(order.operation, workspace)
    with (
        watched(order, chunks, tracker, progress) as gauge,
        loss_noticed(),
        stop.interruptible(workspace.stop_file),
    ):
        execute(order, chunks, workspace, lambda: tracker.standing().ended)
        refuse_halted(order, workspace)
    return gauge.mean()


def refuse_halted(order: StageRun, workspace: Workspace) -> None:
    """Raises ``LimitReached`` if the workers stopped before the end, and says how far they came."""
    halt = workspace.halted()
    if halt is not None:
        kept = ended(workspace.journal)
        said = f"stage {order.name} stopped, {halt.reason}; the {kept} inputs that have ended are kept"
        raise LimitReached(said, halt.advice)


def refuse_passing(order: StageRun, chunks: Sequence[Chunk], workspace: Workspace) -> None:
    """Raises ``LimitReached`` if more inputs than ``retry_above`` were dropped for what may pass.

    Their chunks count as undone: the same command tries these inputs again, and takes the others from the journal.
    """
    results = [each for chunk in chunks if (each := workspace.result("results", chunk.index)) is not None]
    passing, read = sum(each.passing for each in results), sum(each.counts.read for each in results)
    if order.retry_above is None or passing <= order.retry_above * read:
        return
    reasons = total(each.reasons for each in results)
    told = ", ".join(f"{reason} {reasons[reason]}" for reason in sorted(PASSING & reasons.keys()))
    for each in results:
        if each.passing:
            workspace.reopen(each)
    raise LimitReached(
        f"stage {order.name} stopped: {passing:,} of its {read:,} inputs were dropped for what may pass ({told});"
        " what was used is kept",
        "See that the model answers (--no-retry-dropped goes on without them),",
    )


def refuse_empty(tables: Sequence[Table], name: str) -> None:
    """Raises ``UserError`` if the input of stage ``name`` has no rows, and says what became of them."""
    if any(table.manifest.counts.written for table in tables):
        return
    reasons: Counter[str] = Counter()
    for table in tables:
        reasons.update(table.manifest.reasons)
    why = ", ".join(f"{reason} {n}" for reason, n in reasons.most_common()) or "nothing was read"
    where = ", ".join(str(table.folder) for table in tables) or "(none)"
    raise UserError(f"stage {name} has nothing to do: {where} holds no rows (dropped: {why})", ErrorCode.NOTHING_TO_DO)


def conclude(
    order: StageRun, chunks: Sequence[Chunk], workspace: Workspace, seconds: float, busy: float | None = None
) -> Manifest:
    """Add up the chunks and write the manifest. Raises ``EngineError`` if a chunk is missing or counts are wrong.

    ``busy`` is the mean utilisation of the servers, if it is known.
    """
    results = [workspace.result("results", chunk.index) for chunk in chunks]
    present = [result for result in results if result is not None]
    if len(present) != len(chunks):
        raise EngineError(f"stage {order.name}: {len(chunks) - len(present)} of {len(chunks)} chunks are missing")
    counts = Counts(**total(msgspec.structs.asdict(each.counts) for each in present))
    if counts.read == 0:
        raise UserError(
            f"stage {order.name} has nothing to do: no row of its input was meant for it", ErrorCode.NOTHING_TO_DO
        )
    sums = total(each.metrics for each in present)
    try:
        order.operation.check(sums)
    except UserError:
        attempts.clear(order.folder)
        raise
    metrics = order.operation.summed(sums)
    utilisation = {} if busy is None else {"server_utilisation": round(busy, 3)}
    manifest = Manifest(
        table=order.name,
        record=order.operation.writes.__name__,
        schema_version=SCHEMA_VERSION,
        operator=order.provenance.operator,
        config=order.provenance.config,
        config_digest=order.provenance.config_digest,
        inputs=order.provenance.inputs,
        counts=counts,
        reasons=dict(sorted(total(each.reasons for each in present).items())),
        files=[each.data for each in present],
        dropped_files=[each.dropped for each in present if each.dropped is not None],
        seconds=round(seconds, 3),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions(),
        metrics={**dict(sorted(metrics.items())), **utilisation},
    )
    workspace.publish(present)
    for side in order.operation.sides:
        write_manifest(order.folder / side, beside(manifest, side, [each.sides[side] for each in present]))
    write_manifest(order.folder, manifest)
    attempts.end(order.folder)
    return manifest


def beside(manifest: Manifest, side: str, files: list[ShardFile]) -> Manifest:
    """The manifest of a side table: that of the table it belongs to, which also keeps the dead letters of both."""
    return msgspec.structs.replace(
        manifest,
        table=f"{manifest.table}/{side}",
        record=SIDES[side].__name__,
        counts=msgspec.structs.replace(manifest.counts, written=sum(file.rows for file in files)),
        files=files,
        dropped_files=[],
        metrics={},
    )


def total(parts: Iterator[dict[str, Any]]) -> Counter[str]:
    """The sum of counts by name."""
    summed: Counter[str] = Counter()
    for part in parts:
        summed.update(part)
    return summed


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a table depends on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
