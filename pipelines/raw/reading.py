"""Reading a part: its records, in order, as the bytes that a format reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pipelines.raw.rows import rows_in
from schemas.raw import RawPart


class RawRecord(NamedTuple):
    """The bytes of one record; ``row`` is that of its first row, ``occurrence`` counts equal records before it."""

    data: bytes
    row: int
    occurrence: int


def read_part(part: RawPart) -> Iterator[RawRecord]:
    """The records of a part; one of several rows is a JSON list of them.

    Raises ``UserError`` if its files are not what they were when it was planned.
    """
    repeats = {each.row: each.occurrence for each in part.repeats}
    rows = numbered(part)
    if not part.groups:
        for row, data in rows:
            yield RawRecord(data, row, repeats.get(row, 0))
        return
    for size in part.groups:
        members = [next(rows) for _ in range(size)]
        first = members[0][0]
        yield RawRecord(b"[" + b",".join(data.strip() for _, data in members) + b"]", first, repeats.get(first, 0))


def numbered(part: RawPart) -> Iterator[tuple[int, bytes]]:
    """The rows of a part, each with its number."""
    for piece in part.slices:
        for offset, row in enumerate(rows_in(piece, part.kind)):
            yield piece.row + offset, row.data
