"""Cutting raw files into parts, each of which becomes one shard: the same parts for any number of workers.

One pass over the files counts rows, groups those that are one record, and finds records that repeat, so that each gets
an id of its own. Only positions and 64-bit hashes are held, not rows; the hashes take 100 bytes a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import xxhash

from agentmill.pipelines.sources.files import RawFile
from agentmill.pipelines.sources.reading import bare, decoded, rows_of
from agentmill.pipelines.terminal.progress import displayed
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.format import FormatError, decode_counted
from agentmill.schemas.ids import digest
from agentmill.schemas.profiles.fields import at
from agentmill.schemas.profiles.private import PrivateFields
from agentmill.schemas.records.raw_input import RawKind, RawPart, RawSlice, Repeat


class GroupBy(NamedTuple):
    """Rows are one record if the values at ``keys`` are equal; they are put in the order of the value at ``order``.

    A path is field names joined by dots.
    """

    keys: tuple[str, ...]
    order: str | None = None


class Located(msgspec.Struct, frozen=True, gc=False):
    """A record that is several rows or one: its rows, and the hash of what is in them."""

    slices: tuple[RawSlice, ...]
    hash: int
    stored: int
    """The hash of what of it is stored: of records that are equal but for private fields it is the same."""


# A run asks for its parts several times (plan, provenance, table), and each answer reads all files.
@lru_cache(maxsize=8)
def plan_parts(
    files: tuple[RawFile, ...], part_bytes: int, group_by: GroupBy | None = None, private: tuple[str, ...] = ()
) -> list[RawPart]:
    """Parts of about ``part_bytes`` bytes of rows each, in the order of the files; a larger row is alone.

    Records repeat if they are equal without their ``private`` fields. Raises ``UserError`` for a file that cannot be
    read as what it is said to be.
    """
    seen: dict[int, int] = {}
    parts: list[RawPart] = []
    held = Draft(files[0].kind, grouped=group_by is not None)
    with displayed("finding records", None) as advance:
        rows = located(files, advance)
        fields = PrivateFields(private) if private else None
        for record, size in singles(rows, fields) if group_by is None else grouped(rows, group_by, fields):
            if held.size and held.size + size > part_bytes:
                parts.append(held.part())
                held = Draft(held.kind, held.grouped)
            occurrence = seen.get(record.stored, 0)
            held.add(record, size, occurrence)
            seen[record.stored] = occurrence + 1
    return [*parts, held.part()] if held.size else parts


class Draft:
    """A part in the making."""

    def __init__(self, kind: RawKind, grouped: bool) -> None:
        self.kind = kind
        self.grouped = grouped
        self.size = 0
        self._stretches: list[tuple[RawSlice, RawSlice]] = []
        """Of rows next to each other, the first and the last."""
        self._groups: list[int] = []
        self._repeats: list[Repeat] = []
        self._content = xxhash.xxh3_128()

    def add(self, record: Located, size: int, occurrence: int) -> None:
        """Take a record of ``size`` bytes that has ``occurrence`` equal ones before it."""
        self.size += size
        self._content.update(record.hash.to_bytes(8, "little"))
        if occurrence:
            self._repeats.append(Repeat(row=record.slices[0].row, occurrence=occurrence))
        if self.grouped:
            self._groups.append(len(record.slices))
        for slice_ in record.slices:
            self._extend(slice_)

    def part(self) -> RawPart:
        """The part. Its id is that of its content and its place, not of where its files lie."""
        slices = [_joined(first, last) for first, last in self._stretches]
        places = [(slice_.row, slice_.rows) for slice_ in slices]
        return RawPart(
            part_id=digest("part", self._content.hexdigest(), places, self._groups, self._repeats),
            kind=self.kind,
            slices=slices,
            groups=self._groups,
            repeats=self._repeats,
        )

    def _extend(self, slice_: RawSlice) -> None:
        first, last = self._stretches[-1] if self._stretches else (slice_, None)
        if last is not None and (last.path, last.stop, last.row + last.rows) == (slice_.path, slice_.start, slice_.row):
            self._stretches[-1] = (first, slice_)
        else:
            self._stretches.append((slice_, slice_))


def _joined(first: RawSlice, last: RawSlice) -> RawSlice:
    """All rows from ``first`` to ``last``."""
    return msgspec.structs.replace(first, stop=last.stop, rows=last.row + last.rows - first.row)


def singles(
    rows: Iterable[tuple[RawSlice, bytes]], private: PrivateFields | None = None
) -> Iterator[tuple[Located, int]]:
    """Every row as a record, with its size in bytes."""
    for slice_, data in rows:
        yield Located((slice_,), *_hashes(data, private)), len(data)


def grouped(
    rows: Iterable[tuple[RawSlice, bytes]], group_by: GroupBy, private: PrivateFields | None = None
) -> Iterator[tuple[Located, int]]:
    """Rows with equal keys as one record, in the order in which the first of each is, wherever the others are.

    A row without one of the keys is a record by itself; in a record, rows without an order come last, by their place.
    Raises ``UserError`` for an order that is neither a number nor a time.
    """
    groups: dict[Any, list[tuple[Any, RawSlice, tuple[int, int], int]]] = {}
    for slice_, data in rows:
        row = decoded(data)
        keys = tuple(at(row, path) for path in group_by.keys)
        # A tuple equals no key that is JSON.
        key: Any = ("row", slice_.row) if None in keys else msgspec.json.encode(keys)
        order = (1, slice_.row) if group_by.order is None else _order(at(row, group_by.order), group_by.order, slice_)
        groups.setdefault(key, []).append((order, slice_, _hashes(bare(data), private), len(data)))
    for members in groups.values():
        members.sort(key=lambda member: (member[0], member[1].row))
        whole, stored = (_hash_of(each) for each in zip(*(member[2] for member in members), strict=True))
        yield Located(tuple(member[1] for member in members), whole, stored), sum(member[3] for member in members)


def _hash_of(hashes: Iterable[int]) -> int:
    return xxhash.xxh3_64_intdigest(b"".join(each.to_bytes(8, "little") for each in hashes))


def _hashes(data: bytes, private: PrivateFields | None) -> tuple[int, int]:
    """The hash of a row, and that of what of it is stored."""
    whole = xxhash.xxh3_64_intdigest(data)
    if private is None:
        return whole, whole
    try:
        # As ``ProfileReader`` makes the bytes that the id is a digest of.
        stored = msgspec.json.encode(private.remove(decode_counted(data)[0])[0])
    except (FormatError, RecursionError):
        return whole, whole  # such a row is dropped and gets no id
    return whole, xxhash.xxh3_64_intdigest(stored)


def _order(value: Any, path: str, slice_: RawSlice) -> tuple[int, int | float]:
    """What rows of one record are sorted by. Raises ``UserError``."""
    if value is None:
        return 1, slice_.row
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0, value
    # ``int`` first: ``float`` would make equal what differs above 2**53, such as times in nanoseconds.
    for read in (int, float, _seconds):
        try:
            number = read(value)
        except (TypeError, ValueError):
            continue
        if not isinstance(value, bool) and number == number:  # NaN has no place in an order
            return 0, number
    raise UserError(
        f"group.order {path!r} is {value!r:.60} in {slice_.path}, row {slice_.row}; expected a number or a time "
        "such as 2026-01-31T12:00:00\nname another field, or leave `order` out to keep the rows in their order",
        ErrorCode.ORDER_NOT_SORTABLE,
    )


def _seconds(text: str) -> float:
    time = datetime.fromisoformat(text)
    # UTC, so that the order does not depend on the machine.
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def located(files: Sequence[RawFile], advance: Callable[[int], None]) -> Iterator[tuple[RawSlice, bytes]]:
    """Every row with its place; rows are numbered over all files. ``advance`` is called for each."""
    number = 0
    for file in files:
        for row in rows_of(file.path, file.kind):
            yield RawSlice(path=file.path, start=row.start, stop=row.stop, row=number, rows=1), row.data
            number += 1
            advance(1)
