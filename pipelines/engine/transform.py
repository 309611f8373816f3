"""A stage as a Beam transform: chunks of its input in, results of its output shards out; rows never pass a shuffle.

chunks ─ ParDo(process) ─► shard results                               (most operations)
chunks ─ ParDo(process) ─► candidates ─ claims ─ GroupByKey ─► losers
                                    └────────── CoGroupByKey ───┴─ ParDo(settle) ─► shard results    (unique ones)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam

from agentmill.pipelines.engine import stop
from agentmill.pipelines.engine.async_dofn import AsyncFn, StageFn, rare_collection
from agentmill.pipelines.engine.chunks import Chunk, read_chunk
from agentmill.pipelines.engine.operation import AnyOperation, AsyncOperation, RowOperation, UniqueOperation
from agentmill.pipelines.engine.shard import Shard, ShardResult
from agentmill.pipelines.engine.workspace import Phase, Workspace
from agentmill.schemas.errors import UserError

Loser = tuple[str, str]
"""(input id, id of the input it is a duplicate of)"""


class StageTransform(beam.PTransform[Any, Any]):
    """``operation`` over ``chunks``, into ``workspace``. Gives one ``ShardResult`` per chunk."""

    def __init__(self, operation: AnyOperation, chunks: Sequence[Chunk], workspace: Workspace) -> None:
        super().__init__(operation.name)
        self._operation = operation
        self._chunks = chunks
        self._workspace = workspace

    def expand(self, pbegin: Any) -> Any:
        """The collection of results. A label per step keeps names stable in every runner's display."""
        operation, workspace = self._operation, self._workspace
        chunks = pbegin | "Chunks" >> beam.Create(self._chunks)
        if isinstance(operation, AsyncOperation):
            return chunks | "Explore" >> beam.ParDo(AsyncFn(operation, workspace))
        assert isinstance(operation, RowOperation)
        if not isinstance(operation, UniqueOperation):
            return chunks | "Process" >> beam.ParDo(RowsFn(operation, workspace, "results"))
        candidates = chunks | "Propose" >> beam.ParDo(RowsFn(operation, workspace, "candidates"))
        losers = candidates | "Claim" >> beam.FlatMap(claims) | "Meet" >> beam.GroupByKey() | beam.FlatMap(losers_of)
        # Chunks without losers go through as well: each needs its final shard.
        keyed = candidates | "ByChunk" >> beam.Map(by_chunk)
        meeting = {"candidate": keyed, "losers": losers} | "Return" >> beam.CoGroupByKey()
        return meeting | "Settle" >> beam.ParDo(SettleFn(operation, workspace))


class RowsFn(StageFn):
    """Works on the rows of a chunk, one after the other, and writes its shard."""

    def __init__(self, operation: RowOperation[Any, Any], workspace: Workspace, phase: Phase) -> None:
        super().__init__(operation, workspace)
        self._rows_operation = operation
        self._phase: Phase = phase
        self._open = False

    def process(self, chunk: Chunk) -> Iterator[ShardResult]:
        """The result of ``chunk``; one that is done is not done again."""
        self.take(chunk.index)
        with self.boundary(), rare_collection():
            # A resumed run sends all chunks through the pipeline again; those that are done pass at once.
            result = self.workspace.result(self._phase, chunk.index) or self._write(chunk)
            if self._phase == "results":
                self.counted(result)
            else:
                self.release(chunk.index)
        yield result

    def _write(self, chunk: Chunk) -> ShardResult:
        # Late, since a worker of a resumed run may find all its chunks done.
        if not self._open:
            self._rows_operation.open()
            self._open = True
        operation, shard = self._rows_operation, Shard(chunk, self._rows_operation)
        records = read_chunk(chunk, operation.reads)
        operation.begin_chunk(records)
        for row, record in enumerate(records):
            stop.check()
            for unit in operation.units(record):
                try:
                    results = list(operation.process(record, unit))
                except (UserError, MemoryError):
                    # No input is at fault for these, and the next one would meet the same.
                    raise
                except Exception as error:  # noqa: BLE001 - the boundary that attributes what plug-ins raise
                    shard.fail(unit, error, record, row)
                except SystemExit as error:
                    # A program that a plug-in calls exits, and not the run.
                    shard.fail(unit, RuntimeError(f"SystemExit: {error}"), record, row)
                else:
                    dropped = any(result.dropped is not None for result in results)
                    shard.add(unit, results, shard.context(record, row) if dropped else None)
        return self.workspace.store(self._phase, shard, operation.writes)

    def teardown(self) -> None:
        """Close the operation."""
        if self._open:
            self._rows_operation.close()
            self._open = False


class SettleFn(StageFn):
    """Writes the final shard of a chunk: its candidates but for those that lost to others."""

    def process(self, element: tuple[int, dict[str, Iterable[Any]]]) -> Iterator[ShardResult]:
        """The result of a chunk, from its candidate result and its losers."""
        index, found = element
        self.take(index)
        with self.boundary():
            candidate = next(iter(found["candidate"]))
            done = self.workspace.result("results", index)
            result = self.counted(done or self._settle(candidate, found["losers"]))
        yield result

    def _settle(self, candidate: ShardResult, losers: Iterable[Loser]) -> ShardResult:
        shard = Shard(candidate.chunk, self.operation)
        outputs, dropped = self.workspace.candidates(candidate, self.operation.writes)
        shard.resume(candidate, outputs, dropped)
        winners = dict(losers)
        shard.revoke(
            shard.letter(input_id, "near_duplicate", f"of {winners[input_id]}", output)
            for input_id, output in shard.rows
            if input_id in winners
        )
        return self.workspace.store("results", shard, self.operation.writes)


def claims(result: ShardResult) -> Iterator[tuple[str, tuple[int, str]]]:
    """(key, (chunk, input id)) of every claim."""
    for claim in result.claims:
        yield claim.key, (result.chunk.index, claim.input_id)


def losers_of(element: tuple[str, Iterable[tuple[int, str]]]) -> Iterator[tuple[int, Loser]]:
    """(chunk, loser) for every claim to one key but the first: the lowest chunk, and in it the lowest id.

    Chunks follow the order of the input tables, so a row of the first table is kept before one of the second.
    """
    _, contenders = element
    # A set, for a bundle that Beam retried claims twice.
    (_, winner), *others = sorted(set(contenders))
    for chunk, input_id in others:
        yield chunk, (input_id, winner)


def by_chunk(result: ShardResult) -> tuple[int, ShardResult]:
    """A result by the index of its chunk."""
    return result.chunk.index, result
