"""Trajectories of some tables, read through once and then fetched by id, never all of them in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from agentmill.schemas.arrow.convert import from_arrow
from agentmill.schemas.arrow.layout import VERSION_COLUMN, arrow_schema
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.tables import Table

GROUPS_HELD = 8
"""Row groups that are kept, as Arrow, for the next fetch; a group has at most 64 MB."""

ROWS_AT_ONCE = 256
"""Records that are decoded together while reading through."""

CONTENT = "content"


class TrajectoryIndex:
    """The content of trajectories by id. Pickles as paths; each worker reads through them before it fetches."""

    def __init__(self, tables: Iterable[Table]) -> None:
        self._paths = [path for table in tables for path in table.shards()]
        self._forget()

    def scan(self) -> Iterator[Trajectory]:
        """All trajectories, in order. Raises ``UserError`` for an id that is there twice and for a damaged file."""
        self._forget()
        for path in self._paths:
            for group in range(len(_group_sizes(path))):
                table = self._group(path, group)
                for start in range(0, len(table), ROWS_AT_ONCE):
                    for row, trajectory in enumerate(_records(path, table.slice(start, ROWS_AT_ONCE)), start):
                        self._note(trajectory.trajectory_id, (path, group, row))
                        yield trajectory

    def get(self, trajectory_id: str) -> Trajectory:
        """A trajectory that the scan has passed. Raises ``UserError`` if its file cannot be read any more."""
        path, group, row = self._places[trajectory_id]
        (trajectory,) = _records(path, self._group(path, group).slice(row, 1))
        return trajectory

    def _note(self, trajectory_id: str, place: tuple[Path, int, int]) -> None:
        first = self._places.setdefault(trajectory_id, place)
        if first is not place:
            raise UserError(
                f"trajectory {trajectory_id} is given twice, in {first[0]} and {place[0]}: give it once",
                ErrorCode.RECORD_TWICE,
            )

    def _forget(self) -> None:
        self._places: dict[str, tuple[Path, int, int]] = {}
        self._group = lru_cache(maxsize=GROUPS_HELD)(_read_group)

    def __getstate__(self) -> dict[str, Any]:
        return {"_paths": self._paths}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()


def stream(
    paths: Iterable[Path], columns: Sequence[str], wanted: npt.NDArray[np.int64] | None = None
) -> Iterator[tuple[int, Trajectory]]:
    """The trajectories of some shards with their numbers from 0, in order, with some columns alone.

    Without ``content`` among the columns, which is by far the largest, it is empty. With ``wanted``, sorted numbers,
    only these are decoded, and row groups without any are not read. Nothing is kept but one row group. Raises
    ``UserError`` for a damaged file.
    """
    start = 0
    for path in paths:
        for group, rows in enumerate(_group_sizes(path)):
            own = np.arange(start, start + rows)
            if wanted is not None:
                own = wanted[np.searchsorted(wanted, start) : np.searchsorted(wanted, start + rows)]
            table = _read_group(path, group, [*columns, VERSION_COLUMN]) if len(own) else None
            for first in range(0, len(own), ROWS_AT_ONCE):
                numbers = own[first : first + ROWS_AT_ONCE]
                assert table is not None
                yield from zip(numbers.tolist(), _records(path, table.take(numbers - start)), strict=True)
            start += rows


def _group_sizes(path: Path) -> list[int]:
    """The number of rows of each row group."""
    try:
        metadata = pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def _read_group(path: Path, group: int, columns: Sequence[str] | None = None) -> pa.Table:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read_row_group(group, columns)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error
    if columns is None or CONTENT in columns:
        return table
    # No trajectory can be decoded without the column.
    field = arrow_schema(Trajectory).field(CONTENT)
    return table.append_column(field, pa.array([[]] * len(table), field.type))


def _records(path: Path, table: pa.Table) -> list[Trajectory]:
    try:
        return from_arrow(table, Trajectory)
    except UserError as error:
        raise UserError(f"{path}: {error}", error.code) from error


def _unreadable(path: Path, error: Exception) -> UserError:
    reason = str(error).partition("\n")[0]
    return UserError(
        f"{path} cannot be read ({reason:.120}); delete it and run again what writes it", ErrorCode.DAMAGED_FILE
    )
