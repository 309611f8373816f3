"""Side tables by id: what a worker looks up while it works on the rows of another table."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from agentmill.pipelines.engine.operation import identity, key_of
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import Record
from agentmill.schemas.tables import Table, read_columns, read_shard

R = TypeVar("R", bound=Record)
K = TypeVar("K", bound=Hashable)


class Shards(Generic[R]):
    """The records of some tables that are joined by key. Pickles as paths.

    Where two records have one key, neither the first nor the last wins: equal ones are one, others are an error.
    """

    def __init__(self, tables: Iterable[Table], record_type: type[R], columns: Sequence[str] | None = None) -> None:
        self._places = [(str(table.folder), str(path)) for table in tables for path in table.shards()]
        self._record_type = record_type
        self._columns = columns

    def __iter__(self) -> Iterator[R]:
        """All records. Raises ``UserError`` for a file that cannot be read."""
        for _, path in self._places:
            yield from read_shard(Path(path), self._record_type, self._columns)

    def put(self, known: MutableMapping[K, R], key: K, record: R, called: str) -> None:
        """Add ``record`` to ``known``. Raises ``UserError`` where another one has its ``key``; ``called`` names it."""
        # Records are compared only where a key comes twice.
        first = known.setdefault(key, record)
        if first is not record and first != record:
            raise self._conflict(first, record, called)

    def _conflict(self, first: R, second: R, called: str) -> UserError:
        """The tables are searched again, since the places of all records would take more memory than the records."""
        held = (
            folder
            for folder, path in self._places
            if any(each in (first, second) for each in read_shard(Path(path), self._record_type, self._columns))
        )
        folders = list(dict.fromkeys(held))
        holders = f"{' and '.join(folders)} {'hold' if len(folders) > 1 else 'holds'}"
        return UserError(
            f"{holders} different {self._record_type.__name__} records for {called}; expected one, or equal ones\n"
            "name tables that do not overlap, or only the one that is meant",
            ErrorCode.RECORDS_CONFLICT,
        )


class Lookup(Generic[R]):
    """Records of some tables by id. Pickles as paths; each worker loads it once.

    It holds whole records in memory: meant for environments, tasks and verdicts, not for trajectories.
    """

    def __init__(
        self,
        tables: Iterable[Table],
        record_type: type[R],
        key: Callable[[R], str] = identity,
        columns: Sequence[str] | None = None,
    ) -> None:
        self._shards = Shards(tables, record_type, columns)
        self._key = key
        self._records: dict[str, R] = {}

    def load(self) -> None:
        """Read the tables. Raises ``UserError`` for a file that cannot be read, and for two different records of one
        id, wherever they are."""
        self._records = {}
        for record in self._shards:
            key = self._key(record)
            self._shards.put(self._records, key, record, key)

    def get(self, record_id: str | None) -> R | None:
        """The record with this id, or ``None``."""
        return None if record_id is None else self._records.get(record_id)

    def all(self) -> Iterable[R]:
        """All records that were loaded."""
        return self._records.values()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_records": {}}


def ids_of(table: Table, column: str | None = None) -> pa.ChunkedArray:
    """The ids of a table's records, by default their own; of annotations, those of the trajectories."""
    key = column or key_of(table.record_type)
    columns = [read_columns(path, table.record_type, [key])[key] for path in table.shards()]
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.large_string())


def distinct(table: Table, column: str) -> frozenset[str]:
    """The different texts of one column of a table; only that column is read. Raises ``UserError``."""
    found = (read_columns(path, table.record_type, [column])[column].unique() for path in table.shards())
    return frozenset(text for texts in found for text in texts.to_pylist() if text is not None)


def check_disjoint(tables: Sequence[Table]) -> None:
    """Raises ``UserError`` where a record of one id is in two of the tables: annotations of one would go for both."""
    if len(tables) < 2:
        return
    ids = [ids_of(table) for table in tables]
    counts = pa.chunked_array([chunk for each in ids for chunk in each.chunks], pa.large_string()).value_counts()
    shared = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")
    if not len(shared):
        return
    first = shared[0]
    folders = [str(table.folder) for table, own in zip(tables, ids, strict=True) if pc.index(own, first).as_py() >= 0]
    holders = f"{' and '.join(folders)} {'both hold' if len(folders) > 1 else 'holds twice'}"
    raise UserError(
        f"{holders} {tables[0].record_type.__name__} {first} ({len(shared)} such ids); expected every id once\n"
        "leave out one of the tables, or make one of them again, with another seed",
        ErrorCode.RECORD_TWICE,
    )
