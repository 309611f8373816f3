"""One output shard in the making: it takes the results of a chunk, checks that none is missing, and is then written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

import msgspec

from agentmill.pipelines.engine.chunks import Chunk
from agentmill.pipelines.engine.errors import EngineError, as_context, dead_letter, may_pass
from agentmill.pipelines.engine.operation import AnyOperation, Result, UniqueOperation, Unit, identity
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Dropped
from agentmill.schemas.tables import Counts, ShardFile


class Claim(msgspec.Struct, frozen=True):
    """An input's claim that its output be the one with ``key``."""

    key: str
    input_id: str


class ShardResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one chunk: small enough to pass between workers, and the mark that its shard is written.

    ``place`` is the folder of its files in that of the attempt. ``passing`` are the inputs that were dropped for what
    another try may not meet.
    """

    chunk: Chunk
    place: str
    counts: Counts
    reasons: dict[str, int]
    data: ShardFile
    sides: dict[str, ShardFile] = {}
    dropped: ShardFile | None
    metrics: dict[str, float]
    seconds: float
    claims: list[Claim] = []
    passing: int = 0

    def files(self) -> Iterator[tuple[str, ShardFile]]:
        """Its files, each with the folder of the table that it belongs to."""
        yield "data", self.data
        if self.dropped is not None:
            yield "dropped", self.dropped
        for side, file in self.sides.items():
            yield f"{side}/data", file


class Shard:
    """The results of one chunk. Not thread-safe."""

    def __init__(self, chunk: Chunk, operation: AnyOperation) -> None:
        self.chunk = chunk
        self.rows: list[tuple[str, Record]] = []
        """Outputs, each with the id of its input."""
        self.sides: dict[str, list[tuple[str, Record]]] = {side: [] for side in operation.sides}
        """What the inputs gave to the side tables, likewise, by table."""
        self.dropped: list[Dropped] = []
        self.waiting = 0
        """Units that have not ended, for who feeds the shard."""
        self.seconds = 0.0
        """What was spent on it before it was made."""
        self._operation = operation
        self._read = 0
        self._measures: Counter[str] = Counter()
        self._began = time.monotonic()

    def add(self, unit: Unit, results: Iterable[Result], context: JsonObject | None = None) -> None:
        """Take the results of a unit. Raises ``EngineError`` unless there is exactly one for each of its ids.

        ``context`` is put into dead letters that have no input of their own.
        """
        missing = set(unit)
        for result in results:
            # read = used + dropped holds only if each input has exactly one result.
            if result.input_id not in missing:
                raise self._broken(f"a second or a foreign result for input {result.input_id}")
            missing.remove(result.input_id)
            for name, figure in result.measures.items():
                self._measures[name] += figure  # type: ignore[assignment]
            if result.dropped is None:
                self.rows += [(result.input_id, output) for output in result.outputs]
                for side, outputs in result.sides.items():
                    if side not in self.sides:
                        raise self._broken(f"input {result.input_id} gave to {side!r}, which is none of its sides")
                    self.sides[side] += [(result.input_id, output) for output in outputs]
            elif result.outputs or result.sides:
                raise self._broken(f"input {result.input_id} both used and dropped")
            else:
                letter = result.dropped
                self.dropped.append(letter if letter.input else msgspec.structs.replace(letter, input=context or {}))
        if missing or not unit:
            raise self._broken(f"no result for inputs {sorted(missing)}")
        self._read += len(unit)

    def measure(self, results: Iterable[Result]) -> Counter[str]:
        """The measures of results and of their outputs together."""
        measured: Counter[str] = Counter()
        for result in results:
            measured.update(result.measures)
            for output in result.outputs:
                measured.update(self._operation.measures(output))
            for output in chain(*result.sides.values()):
                measured.update(self._operation.side_measures(output))
        return measured

    def fail(
        self, unit: Unit, error: Exception, record: Record, row: int, spent: Mapping[str, float] | None = None
    ) -> None:
        """Drop all inputs of a unit for an exception; ``record`` is the ``row``-th of the chunk.

        ``spent`` are the figures of ``Operation.dropped_measures``.
        """
        self._measures.update(spent or {})
        context = self.context(record, row)
        letters = [dead_letter(error, input_id, self._operation, context) for input_id in unit]
        self.add(unit, [Result(input_id=letter.input_id, dropped=letter) for letter in letters])

    def resume(self, result: ShardResult, outputs: Sequence[Record], dropped: Sequence[Dropped]) -> None:
        """Take over what an earlier phase made of the chunk; each output has the id of its input."""
        self.rows = [(identity(output), output) for output in outputs]
        self.dropped = list(dropped)
        self.seconds = result.seconds
        self._read = result.counts.read

    def revoke(self, letters: Iterable[Dropped]) -> None:
        """Drop inputs that had been used, with all their outputs."""
        revoked = {letter.input_id: letter for letter in letters}
        for rows in (self.rows, *self.sides.values()):
            rows[:] = [(input_id, output) for input_id, output in rows if input_id not in revoked]
        self.dropped += revoked.values()

    def letter(self, input_id: str, reason: str, detail: str, output: Record) -> Dropped:
        """A dead letter for an input whose output cannot stay."""
        chunk, operation = self.chunk, self._operation
        place: JsonObject = {"shard": chunk.path, "rows": [chunk.start, chunk.stop]}
        if isinstance(output, Trajectory) and output.source is not None:
            # The chunk of an ingestion is gone after it, and may hold many records.
            place["source"] = msgspec.to_builtins(output.source)
        context = as_context(output, place)
        return Dropped(
            input_id=input_id,
            stage=operation.name,
            reason=reason,
            blamed=operation.blamed,
            detail=detail,
            input=context,
        )

    def context(self, record: Record, row: int) -> JsonObject:
        """``record``, the ``row``-th of the chunk, as the input of a dead letter."""
        return as_context(record, {"shard": self.chunk.path, "row": self.chunk.start + row})

    def outputs(self, side: str | None = None) -> list[Record]:
        """All outputs, or those of a side, sorted by id or in the order of the input, as the operation says."""
        rows = self.rows if side is None else self.sides[side]
        # Units end in any order; sorted by id, the file does not depend on it.
        if self._operation.sorts:
            rows.sort(key=lambda row: (identity(row[1]), row[0]))
        return [output for _, output in rows]

    def result(
        self, place: str, data: ShardFile, sides: dict[str, ShardFile], dropped: ShardFile | None
    ) -> ShardResult:
        """The result, once the files are written at ``place``."""
        metrics = Counter(self._measures)
        figures = chain(
            (self._operation.measures(output) for _, output in self.rows),
            (self._operation.side_measures(output) for _, output in chain(*self.sides.values())),
        )
        for name, value in chain(*(each.items() for each in figures)):
            metrics[name] += value  # type: ignore[assignment]
        dropped_inputs = len(self.dropped)
        return ShardResult(
            chunk=self.chunk,
            place=place,
            counts=Counts(
                read=self._read, used=self._read - dropped_inputs, dropped=dropped_inputs, written=len(self.rows)
            ),
            reasons=dict(Counter(letter.reason for letter in self.dropped)),
            data=data,
            sides=sides,
            dropped=dropped,
            metrics=dict(metrics),
            seconds=self.seconds + time.monotonic() - self._began,
            claims=self._claims(),
            passing=sum(map(may_pass, self.dropped)),
        )

    def _claims(self) -> list[Claim]:
        if not isinstance(self._operation, UniqueOperation):
            return []
        claims = []
        for input_id, output in self.rows:
            # The next phase knows an output by its own id alone (``resume``).
            if identity(output) != input_id:
                raise self._broken(f"input {input_id} gave an output with another id, {identity(output)}")
            key = self._operation.unique_key(output)
            if key is not None:
                claims.append(Claim(key, input_id))
        return claims

    def _broken(self, what: str) -> EngineError:
        return EngineError(f"operator {self._operation.name} broke its contract: {what}")
