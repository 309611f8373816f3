"""Raw input: where the records of a foreign format are, before any is read."""

from __future__ import annotations

import itertools
from typing import Literal

from agentmill.schemas.records.record import Record

RawKind = Literal["jsonl", "json", "document", "csv", "parquet"]
"""JSON lines; one JSON document, a record or a list; one that is a record in any case; CSV rows; Parquet rows."""

KINDS: dict[str, RawKind] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".traj": "json",
    ".csv": "csv",
    ".parquet": "parquet",
}
"""The kind of a file, by its suffix."""

IN_FOLDERS = KINDS.keys() - {".csv"}
"""The suffixes of files that are read where only their folder is named: a CSV file there is often about the others."""


class RawSlice(Record):
    """Rows next to each other in one file: from byte ``start`` to ``stop`` of JSON lines, else rows of the file.

    ``row`` is the number of the first one, counted over all files of the data set.
    """

    path: str
    start: int
    stop: int
    row: int
    rows: int


class Repeat(Record):
    """The record whose first row is ``row`` has ``occurrence`` equal ones before it."""

    row: int
    occurrence: int


class RawPart(Record):
    """As much raw input as becomes one shard; ``part_id`` is a digest of what is in it.

    ``groups`` says how many rows, one after the other in ``slices``, are one record; empty: each is one.
    """

    part_id: str
    kind: RawKind
    slices: list[RawSlice]
    groups: list[int] = []
    repeats: list[Repeat] = []

    @property
    def records(self) -> int:
        """How many records it holds."""
        return len(self.groups) or sum(each.rows for each in self.slices)

    def first_rows(self) -> list[int]:
        """The number of the first row of each record."""
        rows = [row for each in self.slices for row in range(each.row, each.row + each.rows)]
        if not self.groups:
            return rows
        starts = [0, *itertools.accumulate(self.groups)]
        return [rows[start] for start in starts[:-1]]
