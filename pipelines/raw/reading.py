"""Reading a part: its records, in order, as the bytes that a format reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import msgspec

from pipelines.raw import hub
from pipelines.raw.rows import RawRow, rows_in, shorter
from schemas.errors import UserError
from schemas.hub_errors import hub_errors
from schemas.raw import RawPart


class RawRecord(msgspec.Struct, frozen=True, gc=False):
    """The bytes of one record; ``row`` is that of its first row, ``occurrence`` counts equal records before it.

    ``fault`` says what of it cannot be read, ``not_finite`` how many of its numbers became null.
    """

    data: bytes
    row: int
    occurrence: int
    fault: str = ""
    not_finite: int = 0


def read_part(part: RawPart) -> Iterator[RawRecord]:
    """The records of a part; one of several rows is a JSON list of them.

    Raises ``UserError`` if its files cannot be read, or are shorter than they were when it was planned.
    """
    repeats = {each.row: each.occurrence for each in part.repeats}
    rows = numbered(part)
    if not part.groups:
        for number, row in rows:
            yield RawRecord(row.data, number, repeats.get(number, 0), row.fault, row.not_finite)
        return
    for size in part.groups:
        members = [next(rows) for _ in range(size)]
        first = members[0][0]
        data = b"[" + b",".join(row.data.strip() for _, row in members) + b"]"
        fault = "; ".join(row.fault for _, row in members if row.fault)
        yield RawRecord(data, first, repeats.get(first, 0), fault, sum(row.not_finite for _, row in members))


def numbered(part: RawPart) -> Iterator[tuple[int, RawRow]]:
    """The rows of a part, each with its number."""
    for piece in part.slices:
        with read_errors(piece.path):
            rows = rows_in(piece, part.kind)
            for number in range(piece.row, piece.row + piece.rows):
                row = next(rows, None)
                if row is None:
                    raise shorter(piece.path)
                yield number, row


@contextmanager
def read_errors(path: str) -> Iterator[None]:
    """Raises ``UserError`` for whatever the disk, the network or a library says while the file at ``path`` is read.

    Nothing of it can be attributed to a single record, since the records after it are not read either.
    """
    try:
        with hub_errors(path) if hub.is_address(path) else nullcontext():
            yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{path} cannot be read ({reason}); run the same command again to go on") from error
