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
from agentmill.pipelines.engine.progress import ProgressSnapshot, ServerLoad, StageProgress, progress_snapshot
from agentmill.pipelines.engine.provenance import finished
from agentmill.pipelines.engine.shard import ShardResult
from agentmill.pipelines.engine.stage_run import StageRun
from agentmill.pipelines.engine.workspace import Phase, Plan, Workspace, order_of
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import LimitReached, UserError
from agentmill.schemas.records.manifest import MANIFEST_NAME, disk_errors
from agentmill.schemas.records.record import SCHEMA_VERSION
from agentmill.schemas.struct_types import prepare_struct_types
from agentmill.schemas.tables import Counts, Manifest, ShardFile, Table, read_manifest, write_manifest

_POLL_S = 0.5


@contextlib.contextmanager
def reporting(
    run: StageRun, chunks: Sequence[Chunk], counter: Tracker, progress: StageProgress | None
) -> Iterator[ServerLoad]:
    """Report the progress of a stage, by ``counter``, until it ends; yields the load of its model servers."""
    load = ServerLoad(run.slots)
    if progress is None:
        yield load
        return
    over = threading.Event()

    def report() -> None:
        while not over.wait(_POLL_S):
            progress.advanced(run.name, msgspec.structs.replace(counter.snapshot(), busy=load.now()))

    thread = threading.Thread(target=report, name="progress", daemon=True)
    total = counter.total(chunks)
    try:
        progress.started(run.name, total, counter.snapshot())
        thread.start()
        yield load
    except BaseException:
        over.set()
        if thread.is_alive():
            thread.join()
        progress.stopped(run.name)
        raise
    over.set()
    thread.join()


class Tracker:
    """Counts the inputs of a stage, and how many of them have ended."""

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

    def snapshot(self) -> ProgressSnapshot:
        """Inputs that have ended, those in flight, and what came of them."""
        if isinstance(self._operation, AsyncOperation):
            return progress_snapshot(self._workspace.journal, self._since)
        # A note never changes, so each is read once.
        for index in self._workspace.finished(self._phase) - self._read.keys():
            result = self._workspace.result(self._phase, index)
            self._read[index] = result.counts.read if result else 0
        return ProgressSnapshot(ended=sum(self._read.values()))


ATTEMPTS = 3
"""A stage that lost a worker is tried so often in all."""

_PACKAGES = ("agentmill", "apache-beam", "pyarrow", "msgspec")


def run_stage(run: StageRun, progress: StageProgress | None = None) -> Manifest:
    """Make the table of a stage, or find that it is made. Returns its manifest.

    A table that a killed run left unfinished goes on where it stopped. Raises ``UserError`` (a table that was made
    differently, an empty input, a full device …), ``StageFailed``, ``EngineError``, ``LimitReached``;
    ``KeyboardInterrupt`` passes through once the workers have been asked to stop.
    """
    # Before the runner is checked: a table that is finished needs none.
    manifest = finished(run.folder, run.provenance, run.replace)
    if manifest is not None:
        # A kill right after the manifest was written leaves the folder of attempts behind.
        attempts.end(run.folder)
        if progress is not None:
            progress.skipped(run.name, manifest)
        return manifest
    if not run.replace:
        attempts.refuse_other_work(run.folder, run.provenance, order_of(run.primary))
    run.runner.check()
    refuse_empty(run.primary, run.name)
    chunks = plan(run.primary, run.operation.chunk_rows)
    manifest = made(run, chunks, progress)
    if progress is not None:
        progress.finished(run.name, manifest)
    return manifest


def made(run: StageRun, chunks: Sequence[Chunk], progress: StageProgress | None) -> Manifest:
    """Make the table in at most ``ATTEMPTS`` attempts. Raises as ``run_stage``."""
    began = time.monotonic()
    wanted = Plan(provenance=run.provenance, chunks=len(chunks), order=order_of(run.primary))
    number = 1
    while True:
        # A new attempt each time: a worker that only seemed lost then finds its folder gone and cannot write any more.
        with disk_errors(run.folder):
            workspace = attempts.begin(run.folder, wanted)
        try:
            busy = work(run, chunks, workspace, progress)
            refuse_changed(run)
            refuse_passing(run, chunks, workspace)
            return conclude(run, chunks, workspace, time.monotonic() - began, busy)
        except WorkerLost as error:
            # Other workers of the attempt would go on asking models for what the next attempt asks again.
            stop.end_workers(workspace.stop_file)
            stop.lost.clear()
            if number == ATTEMPTS:
                raise worker_lost(run, error, ATTEMPTS) from None
            number += 1
            if progress is not None:
                progress.retried(run.name, str(error), number)


@contextlib.contextmanager
def loss_noticed() -> Iterator[None]:
    """Raises ``WorkerLost`` for the interrupt by which a lost worker is noticed, wherever in the attempt it arrives."""
    try:
        yield
    except KeyboardInterrupt:
        if stop.lost and not stop.requested.is_set():
            raise WorkerLost(stop.lost[0]) from None
        raise


def work(run: StageRun, chunks: Sequence[Chunk], workspace: Workspace, progress: StageProgress | None) -> float | None:
    """One attempt. Returns the mean utilisation of the servers, if it is known. Raises as ``execute``."""
    prepare_struct_types()  # this thread, that of the progress and those of workers read the same records
    tracker = Tracker(run.operation, workspace)
    # In this order: the interrupt for a worker that ended may still come while its handler is taken back.
    with (
        reporting(run, chunks, tracker, progress) as load,
        loss_noticed(),
        stop.interruptible(workspace.stop_file),
    ):
        execute(run, chunks, workspace, lambda: tracker.snapshot().ended)
        # The pipeline ends without an error when a budget is used up; only the note of the workers distinguishes that.
        refuse_halted(run, workspace)
    return load.mean()


def refuse_halted(run: StageRun, workspace: Workspace) -> None:
    """Raises ``LimitReached`` if the workers stopped before the end, and says how far they came."""
    halt = workspace.halted()
    if halt is not None:
        kept = ended(workspace.journal)
        message = f"step {run.name} stopped, {halt.reason}; the {kept} inputs that have ended are kept"
        raise LimitReached(message, halt.advice)


def refuse_changed(run: StageRun) -> None:
    """Raises ``UserError`` if an input table was made anew while it was read, and removes what was made of both."""
    for table in run.inputs:
        there = (table.folder / MANIFEST_NAME).exists()
        if not there or Table(table.folder, read_manifest(table.folder)).digest != table.digest:
            attempts.clear(run.folder)
            raise UserError(
                f"step {run.name}: its input {table.folder} was {'made anew' if there else 'removed'} while it was read"
                "\nrun again once nothing else writes there",
                ErrorCode.FILE_CHANGED,
            )


def refuse_passing(run: StageRun, chunks: Sequence[Chunk], workspace: Workspace) -> None:
    """Raises ``LimitReached`` if more inputs than ``retry_above`` were dropped for what may pass.

    Their chunks count as undone: the same command tries these inputs again, and takes the others from the journal.
    """
    results = [each for chunk in chunks if (each := workspace.result("results", chunk.index)) is not None]
    passing, read = sum(each.passing for each in results), sum(each.counts.read for each in results)
    if run.retry_above is None or passing <= run.retry_above * read:
        return
    reasons = total(each.reasons for each in results)
    reasons_text = ", ".join(f"{reason} {reasons[reason]}" for reason in sorted(PASSING & reasons.keys()))
    for each in results:
        # Undone chunk by chunk, after all were counted: the share is that of the whole stage.
        if each.passing:
            workspace.reopen(each)
    raise LimitReached(
        f"step {run.name} stopped: {passing:,} of its {read:,} inputs were dropped for what may pass ({reasons_text});"
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
    raise UserError(f"step {name} has nothing to do: {where} holds no rows (dropped: {why})", ErrorCode.NOTHING_TO_DO)


def conclude(
    run: StageRun, chunks: Sequence[Chunk], workspace: Workspace, seconds: float, busy: float | None = None
) -> Manifest:
    """Add up the chunks and write the manifest. Raises ``EngineError`` if a chunk is missing or counts are wrong.

    ``busy`` is the mean utilisation of the servers, if it is known.
    """
    results = [workspace.result("results", chunk.index) for chunk in chunks]
    present = [result for result in results if result is not None]
    if len(present) != len(chunks):
        raise EngineError(f"step {run.name}: {len(chunks) - len(present)} of {len(chunks)} chunks are missing")
    counts = Counts(**total(msgspec.structs.asdict(each.counts) for each in present))
    if counts.read == 0:
        raise UserError(
            f"step {run.name} has nothing to do: no row of its input was meant for it", ErrorCode.NOTHING_TO_DO
        )
    sums = total(each.metrics for each in present)
    try:
        run.operation.check(sums)
    except UserError:
        # Else the same command would find all chunks done, and refuse them again without reading one.
        attempts.clear(run.folder)
        raise
    metrics = dict(sorted(run.operation.summed(sums).items()))
    if busy is not None:
        metrics["server_utilisation"] = round(busy, 3)
    manifest = manifest_of(run, present, counts, metrics, seconds)
    # The files first, the manifests last: a folder without a manifest is no table, whatever is in it.
    workspace.publish(present)
    for side in run.operation.sides:
        write_manifest(run.folder / side, side_manifest(manifest, side, [each.sides[side] for each in present]))
    # After those of its sides, since later steps ask for this one alone.
    write_manifest(run.folder, manifest)
    attempts.end(run.folder)
    return manifest


def manifest_of(
    run: StageRun, results: Sequence[ShardResult], counts: Counts, metrics: dict[str, float], seconds: float
) -> Manifest:
    """The manifest of a table whose chunks came to ``results``."""
    return Manifest(
        table=run.name,
        record=run.operation.writes.__name__,
        schema_version=SCHEMA_VERSION,
        operator=run.provenance.operator,
        config=run.provenance.config,
        config_digest=run.provenance.config_digest,
        inputs=run.provenance.inputs,
        counts=counts,
        # Sorted by name: which name came first depends on which units ended first.
        reasons=dict(sorted(total(each.reasons for each in results).items())),
        files=[each.data for each in results],
        dropped_files=[each.dropped for each in results if each.dropped is not None],
        seconds=round(seconds, 3),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions(),
        metrics=metrics,
    )


def side_manifest(manifest: Manifest, side: str, files: list[ShardFile]) -> Manifest:
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
