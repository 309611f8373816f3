"""Side tables by id: what a worker looks up while it works on the rows of another table."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agentmill.pipelines.engine.operation import identity, key_of
from agentmill.pipelines.operators.operator import Inputs, tables_of
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.tables import Table, read_columns, read_shard
from agentmill.schemas.text_file import read_text

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
        return conflict(held, f"{self._record_type.__name__} records", called)


def conflict(held: Iterable[str], what: str, called: str) -> UserError:
    """The error of tables in the folders ``held`` that have different ``what`` for the record that is so ``called``."""
    folders = list(dict.fromkeys(held))
    holders = f"{' and '.join(folders)} {'hold' if len(folders) > 1 else 'holds'}"
    return UserError(
        f"{holders} different {what} for {called}; expected one, or equal ones\n"
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
    """Raises ``UserError`` where one id is in the tables twice: annotations of one record would go for both."""
    if not _repeat_ids(tables):
        return
    ids = [ids_of(table) for table in tables]
    counts = pa.chunked_array([chunk for each in ids for chunk in each.chunks], pa.large_string()).value_counts()
    shared = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")
    if not len(shared):
        return
    first = shared[0]
    folders = [str(table.folder) for table, own in zip(tables, ids, strict=True) if pc.index(own, first).as_py() >= 0]
    several = len(folders) > 1
    holders = f"{' and '.join(folders)} {'both hold' if several else 'holds twice'}"
    instead = "leave out one of the tables, or make one of them again, with another seed"
    raise UserError(
        f"{holders} {tables[0].record_type.__name__} {first} ({len(shared)} such ids); expected every id once\n"
        f"{instead if several else 'make the table again with an id of its own for each record'}",
        ErrorCode.RECORD_TWICE,
    )


def _repeat_ids(tables: Sequence[Table]) -> bool:
    """Whether an id may be in the tables twice; of each, a hash of 8 bytes is held."""
    import polars as pl

    columns = [(path, table.record_type, key_of(table.record_type)) for table in tables for path in table.shards()]
    parts = [pl.Series(read_columns(path, kind, [key])[key]).hash().to_numpy() for path, kind, key in columns]
    hashes = np.sort(np.concatenate(parts)) if parts else np.array([])
    return bool((hashes[1:] == hashes[:-1]).any())


OF_OTHERS = "_of_others"
"""After the role of other trajectories: how many of them belong to none that is read."""


class Relation(NamedTuple):
    """How other trajectories, in the tables of ``role``, belong to rows of ``of``: their ``column`` holds a ``key``.

    Where ``known`` names a column, only trajectories that have it belong to any: branches without a turn are none.
    ``code`` is that of the error where no trajectory belongs to any.
    """

    role: str
    column: str
    key: str
    code: ErrorCode
    known: str | None = None

    def check(self, inputs: Inputs) -> None:
        """Raises ``UserError`` where there are rows and other trajectories, and none belongs to any."""
        count, rows = self.count(inputs), sum(table.manifest.counts.written for table in tables_of(inputs, "of"))
        if count and rows and self.of_others(inputs) == count:
            folders = " and ".join(str(table.folder) for table in tables_of(inputs, self.role))
            own = " and ".join(str(table.folder) for table in tables_of(inputs, "of"))
            raise UserError(
                f"`{self.role}` ({folders}) has no trajectory whose {self.column} is a {self.key} in {own}\n"
                f"name the {self.role} that were made of these trajectories, or of their tasks",
                self.code,
            )

    def check_some(self, inputs: Inputs) -> None:
        """Like ``check``, and raises ``UserError`` where tables of other trajectories are named and hold none, too."""
        tables = tables_of(inputs, self.role)
        if tables and not self.count(inputs):
            folders = " and ".join(str(table.folder) for table in tables)
            raise UserError(
                f"{folders} holds no trajectory, so no task can be measured by `{self.role}`\n"
                "name tables of a solver's trajectories on these tasks, such as sample makes",
                ErrorCode.NO_RECORDS,
            )
        self.check(inputs)

    def of_others(self, inputs: Inputs) -> int:
        """How many of the other trajectories belong to none that is read."""
        chunks = [chunk for table in tables_of(inputs, "of") for chunk in ids_of(table, self.key).chunks]
        keys = pa.chunked_array(chunks, pa.large_string()).combine_chunks()
        paths = (path for table in tables_of(inputs, self.role) for path in table.shards())
        return self.count(inputs) - sum(self._belonging(path, keys) for path in paths)

    def _belonging(self, path: Path, keys: pa.Array) -> int:
        rows = read_columns(path, Trajectory, [self.column, *([] if self.known is None else [self.known])])
        found = pc.is_in(rows[self.column], keys, skip_nulls=True)
        if self.known is not None:
            found = pc.and_(found, pc.is_valid(rows[self.known]))
        return pc.sum(found).as_py() or 0

    def metrics(self, inputs: Inputs) -> Mapping[str, float]:
        """How many other trajectories there are, and how many of them belong to none that is read."""
        return {self.role: self.count(inputs), f"{self.role}{OF_OTHERS}": self.of_others(inputs)}

    def notes(self, manifest: Manifest) -> list[str]:
        """A warning of other trajectories that belong to none that is read, as ``metrics`` counted them."""
        others = manifest.metrics.get(f"{self.role}{OF_OTHERS}", 0)
        text = (
            f"warning: {others:,.0f} trajectories of `{self.role}` belong to none that is read, and count for nothing"
        )
        return [text] if others else []

    def count(self, inputs: Inputs) -> int:
        """How many other trajectories there are."""
        return sum(table.manifest.counts.written for table in tables_of(inputs, self.role))


BRANCHES = Relation("branches", "parent_id", "trajectory_id", ErrorCode.BRANCHES_OF_OTHERS, "branch_turn")
ATTEMPTS = Relation("attempts", "task_id", "task_id", ErrorCode.ATTEMPTS_OF_OTHERS)


def read_ids(path: Path) -> list[str]:
    """The ids in a file, one a line; empty lines do not count. Raises ``UserError`` for one that holds none."""
    lines = read_text(path, "file of ids").splitlines()
    found = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if not found:
        raise UserError(f"accept_ids: {path} holds no ids; expected one a line, or leave it out", ErrorCode.NO_RECORDS)
    return found
