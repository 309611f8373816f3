"""Reading a part: its records, in order, as the bytes that a format reads."""

from __future__ import annotations

import csv
import io
import itertools
import re
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from agentmill.pipelines.sources import hub
from agentmill.pipelines.sources.parquet import EncodedRow, encoded_rows
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.format import FormatError, decode_counted
from agentmill.schemas.hub import hub_errors
from agentmill.schemas.records.raw_input import RawKind, RawPart, RawSlice

MARK = b"\xef\xbb\xbf"
"""A byte order mark, which is no JSON."""

READ_BYTES = 2**20
"""Read at a time: a line is often longer than the usual 8 kB."""

LARGEST_CELL = 2**31 - 1
"""Characters in a cell of CSV, as many as the module takes on all systems."""

# Possessive (``*+``): a text of megabytes would otherwise leave a place to go back to for each character.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[\]{},]', re.DOTALL)
"""A text of JSON, whatever is in it, and what lists and objects are made of."""


class RawRow(msgspec.Struct, frozen=True, gc=False):
    """The bytes of a row, and what it is from and to in its file (see ``RawSlice``).

    ``fault`` says what of a Parquet row cannot be read, ``not_finite`` how many of its numbers became null.
    """

    data: bytes
    start: int
    stop: int
    fault: str = ""
    not_finite: int = 0


def rows_of(path: str, kind: RawKind) -> Iterator[RawRow]:
    """All rows of a file. Raises ``UserError`` if it cannot be read as what it is said to be."""
    if kind == "jsonl":
        with opened(path) as file:
            yield from _lines(file, path, 0, _size(path))
    elif kind == "json":
        for number, data in enumerate(_documents(path)):
            yield RawRow(data, number, number + 1)
    elif kind == "document":
        yield RawRow(_content(path), 0, 1)
    elif kind == "csv":
        yield from _csv_rows(path)
    else:
        yield from _parquet_rows(path, None)


def rows_in(slice_: RawSlice, kind: RawKind, lines: BinaryIO | None) -> Iterator[RawRow]:
    """The rows of a slice; ``lines`` is its file, opened, of JSON lines. Raises ``UserError`` as ``rows_of`` does."""
    if lines is not None:
        yield from _lines(lines, slice_.path, slice_.start, slice_.stop)
    elif kind == "document":
        yield from rows_of(slice_.path, kind)
    elif kind == "csv":
        yield from _csv_slice(slice_.path, slice_.start, slice_.stop)
    elif kind == "json":
        for number, data in enumerate(_documents(slice_.path)[slice_.start : slice_.stop]):
            yield RawRow(data, slice_.start + number, slice_.start + number + 1)
    else:
        yield from _parquet_rows(slice_.path, range(slice_.start, slice_.stop))


def shorter(path: str) -> UserError:
    """The error of a file whose end comes too early."""
    return UserError(
        f"{path} is shorter than it was when the run was planned; run the command again", ErrorCode.FILE_CHANGED
    )


def opened(path: str) -> BinaryIO:
    """A file, here or on the Hub."""
    return hub.opened(path) if hub.is_address(path) else Path(path).open("rb", buffering=READ_BYTES)


def _content(path: str) -> bytes:
    return hub.content(path) if hub.is_address(path) else Path(path).read_bytes()


def _size(path: str) -> int:
    return hub.size(path) if hub.is_address(path) else Path(path).stat().st_size


def _modified_ns(path: str) -> int:
    """When a file was written; what an address on the Hub names never changes."""
    return 0 if hub.is_address(path) else Path(path).stat().st_mtime_ns


def _lines(file: BinaryIO, path: str, start: int, stop: int) -> Iterator[RawRow]:
    file.seek(start)
    while start < stop:
        line = file.readline()
        if start + len(line) < stop and not line.endswith(b"\n"):
            raise shorter(path)
        yield RawRow(line.removesuffix(b"\n"), start, start + len(line))
        start += len(line)


def _csv_rows(path: str) -> Iterator[RawRow]:
    """The rows below the header as objects of texts.

    A row with more or fewer cells than it cannot be read, nor one under a header that has a name twice.
    """
    # The default refuses cells of more than 128 kB, and one may hold a whole conversation.
    csv.field_size_limit(LARGEST_CELL)
    with opened(path) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as lines:
        try:
            rows = csv.reader(lines, strict=True)
            header = next(rows, [])
            distinct = len(set(header)) == len(header)
            for number, cells in enumerate(filter(None, rows)):
                data = msgspec.json.encode(dict(zip(header, cells, strict=False)))
                yield RawRow(data, number, number + 1, _csv_fault(header, cells, distinct))
        except (csv.Error, UnicodeDecodeError) as error:
            raise UserError(f"{path} cannot be read as CSV in UTF-8: {error}", ErrorCode.DAMAGED_FILE) from error


_kept = threading.local()
"""The CSV file that a thread has read last, and how far: parts come in order, and rows are found by counting."""


def _csv_slice(path: str, start: int, stop: int) -> Iterator[RawRow]:
    key = (path, _modified_ns(path))
    held: tuple[tuple[str, int], int, Iterator[RawRow]] | None = getattr(_kept, "csv", None)
    _kept.csv = None  # only one may go on reading it
    place, rows = held[1:] if held is not None and held[0] == key and held[1] <= start else (0, _csv_rows(path))
    readable = True
    try:
        for row in itertools.islice(rows, stop - place):
            place = row.stop
            if row.start >= start:
                yield row
    except UserError:
        readable = False
        raise
    finally:
        if readable:
            _kept.csv = key, place, rows


def _csv_fault(header: list[str], cells: list[str], distinct: bool) -> str:
    """What of a CSV row cannot be read; empty columns without a name, as spreadsheets leave, do no harm."""
    if len(cells) != len(header):
        return f"{len(cells)} cells under a header of {len(header)}"
    if distinct:
        return ""
    named = Counter(name for name, cell in zip(header, cells, strict=True) if name or cell)
    return "; ".join(f"column {name!r} cannot be read (it is there twice)" for name, n in named.items() if n > 1)


def _documents(path: str) -> list[bytes]:
    """The elements of a list, or the one document that the file is; one that is no JSON is passed on as it is."""
    return _decoded(path, _modified_ns(path))


@lru_cache(maxsize=1)
def _decoded(path: str, modified_ns: int) -> list[bytes]:
    # A part of the key of the cache, so that a file that has changed is read again.
    del modified_ns
    data = _content(path).removeprefix(MARK)
    if not data.lstrip().startswith(b"["):
        return [data]
    try:
        return [bytes(each) for each in msgspec.json.decode(data, type=list[msgspec.Raw])]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _elements(data)


def _elements(data: bytes) -> list[bytes]:
    """The elements of a list of which some are no JSON, or are nested too deeply.

    Of a list that breaks off, the last is what is left; ``data`` if something is behind the list.
    """
    elements, depth, start = [], 0, 0
    for token in _TOKEN.finditer(data):
        mark = token[0]
        if mark in (b"[", b"{"):
            depth += 1
            start = start or token.end()
        elif depth == 1 and mark in (b",", b"]"):
            elements.append(data[start : token.start()].strip())
            start = token.end()
        if mark in (b"]", b"}"):
            depth -= 1
            if depth == 0:
                return elements if data[token.end() :].isspace() or token.end() == len(data) else [data]
    # With the comma where nothing is behind it, so that the end that is missing is reported.
    return [*elements, data[start:].strip() or data[start - 1 :]] if elements else [data]


def _parquet(path: str) -> pq.ParquetFile:
    """Arrow's threads get no file of Python's: one that lets go of it as the interpreter ends aborts the process."""
    remote = hub.is_address(path)
    try:
        return pq.ParquetFile(hub.opened(path) if remote else path, pre_buffer=not remote)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read as Parquet: {error}", ErrorCode.DAMAGED_FILE) from error


def _parquet_rows(path: str, wanted: Sequence[int] | None) -> Iterator[RawRow]:
    """The rows at the places ``wanted``, which ascend, or all; no row group is read twice."""
    with _parquet(path) as file:
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    wanted = range(sum(sizes)) if wanted is None else wanted
    first, modified_ns = 0, _modified_ns(path)
    for group, size in enumerate(sizes):
        here = wanted[bisect_left(wanted, first) : bisect_left(wanted, first + size)]
        if here:
            encoded = _row_group(path, modified_ns, group)
            for number in here:
                row = encoded[number - first]
                yield RawRow(row.data, number, number + 1, row.fault, row.not_finite)
        first += size


@lru_cache(maxsize=1)
def _row_group(path: str, modified_ns: int, group: int) -> list[EncodedRow]:
    """The rows of a row group as JSON; kept, since the rows of a group of steps are read one by one."""
    del modified_ns
    with _parquet(path) as file:
        try:
            table = file.read_row_group(group, use_threads=not hub.is_address(path))
            return encoded_rows(table)
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path} cannot be read as Parquet: {error}", ErrorCode.DAMAGED_FILE) from error


def decoded(data: bytes) -> Any:
    """The JSON value in ``data``; ``None`` if it is none, which reading will tell."""
    try:
        return decode_counted(data)[0]
    except FormatError:
        return None


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
        data = b"[" + b",".join(bare(row.data) for _, row in members) + b"]"
        fault = "; ".join(row.fault for _, row in members if row.fault)
        yield RawRecord(data, first, repeats.get(first, 0), fault, sum(row.not_finite for _, row in members))


def bare(data: bytes) -> bytes:
    """A row as it is in the list of its group."""
    return data.removeprefix(MARK).strip()


def numbered(part: RawPart) -> Iterator[tuple[int, RawRow]]:
    """The rows of a part, each with its number."""
    paths = [slice_.path for slice_ in part.slices]
    # A row of JSON lines is found by its byte, and any other by reading what is before it.
    if part.kind != "jsonl" and len(set(paths)) < len(paths):
        yield from _gathered(part)
        return
    with ExitStack() as open_file:
        path, lines = None, None
        for slice_ in part.slices:
            with read_errors(slice_.path):
                if part.kind == "jsonl" and slice_.path != path:
                    # Kept for the next slice: rows of a group may lie far apart.
                    open_file.close()
                    path, lines = slice_.path, open_file.enter_context(opened(slice_.path))
                rows = rows_in(slice_, part.kind, lines)
                for number in range(slice_.row, slice_.row + slice_.rows):
                    row = next(rows, None)
                    if row is None:
                        raise shorter(slice_.path)
                    yield number, row


def _gathered(part: RawPart) -> Iterator[tuple[int, RawRow]]:
    """As ``numbered``, with one pass over each file; holds the rows of the part."""
    wanted: dict[str, list[int]] = {}
    for slice_ in part.slices:
        wanted.setdefault(slice_.path, []).extend(range(slice_.start, slice_.stop))
    rows: dict[tuple[str, int], RawRow] = {}
    for path, places in wanted.items():
        with read_errors(path):
            rows.update({(path, row.start): row for row in _rows_at(path, part.kind, sorted(places))})
    for slice_ in part.slices:
        for number in range(slice_.row, slice_.row + slice_.rows):
            row = rows.pop((slice_.path, slice_.start + number - slice_.row), None)
            if row is None:
                raise shorter(slice_.path)
            yield number, row


def _rows_at(path: str, kind: RawKind, wanted: Sequence[int]) -> Iterator[RawRow]:
    """The rows at the places ``wanted``, which ascend, as far as the file has them."""
    if kind == "parquet":
        yield from _parquet_rows(path, wanted)
        return
    rows, read = rows_of(path, kind), 0
    for place in wanted:
        yield from itertools.islice(rows, place - read, place - read + 1)
        read = place + 1


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
        raise UserError(
            f"{path} cannot be read ({reason}); run the same command again to go on", ErrorCode.NOT_READABLE
        ) from error
