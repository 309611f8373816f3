"""Whether a record can be written and read back exactly, and if not, which field is in the way.

A record is representable if it equals itself after a trip through JSON under its declared types, and its integers
fit in 64 bits. That covers NaN and infinities, lone surrogates, keys that are no text, tuples and other types in
open-ended values, unknown literals, and values of another type than declared.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from agentmill.schemas.records.record import Record

MOST_LEVELS = 200
"""Lists and objects inside each other; Python's stack ends at 1,000 calls, and readers take several for a level."""


def is_too_deep(value: Any) -> bool:
    """Whether lists and objects in ``value`` are nested in more than ``MOST_LEVELS`` levels."""
    # Level by level and not by recursion, which would itself fail on what is to be found here.
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterable[Any]:
    """What is directly in a list or an object; an empty one counts as a level, too."""
    if isinstance(value, dict):
        return value.values() or (None,)
    return (value or (None,)) if isinstance(value, list | tuple) else ()


TOO_DEEP = f"nested too deeply (more than {MOST_LEVELS} levels)"
Fault = tuple[str, str]
"""The path to a value, and what is wrong with it."""


class RecordError(ValueError):
    """A record that no table can hold: ``index`` is its place in the batch, ``field`` the path to the culprit."""

    def __init__(self, index: int, field: str, detail: str) -> None:
        super().__init__(f"record {index}: field {field!r}: {detail}")
        self.index = index
        self.field = field
        self.detail = detail

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.index, self.field, self.detail)


def check(records: Sequence[Record], record_type: type[Record]) -> None:
    """Raises ``RecordError`` for the first record that does not survive JSON, or is nested too deeply for a table."""
    decode, encode = _decoder(record_type).decode, msgspec.json.encode
    # The whole batch is tried first. Looking for the field that is in the way is far slower, and seldom needed.
    if not all(_survives(record, encode, decode) and not _is_too_deep(record) for record in records):
        raise first_fault(records, record_type)


def _survives(record: Record, encode: Callable[[Record], bytes], decode: Callable[[bytes], Any]) -> bool:
    with contextlib.suppress(ValueError, TypeError, RecursionError, OverflowError):
        return bool(decode(encode(record)) == record)
    return False


def _is_too_deep(record: Record) -> bool:
    return any(detail == TOO_DEEP for _, detail in _bad_values(record, "", in_json=False))


def first_fault(records: Sequence[Record], record_type: type[Record]) -> RecordError:
    """Why a batch is refused: its first record with a fault, examined one by one."""
    for index, record in enumerate(records):
        for field, detail in _faults(record, record_type):
            return RecordError(index, field, detail)
    return RecordError(0, "", f"these are no {record_type.__name__} records that Arrow can hold")


@functools.cache
def _decoder(record_type: type[Record]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(record_type)


def _faults(record: Record, record_type: type[Record]) -> Iterator[Fault]:
    try:
        yield from _bad_values(record, "", in_json=False)
        text = msgspec.json.encode(record)
        yield from _differences(record, msgspec.json.decode(text, type=record_type), "")
    except msgspec.ValidationError as error:
        # msgspec gives the path of a broken value only in the text of the message.
        detail, _, path = str(error).partition(" - at `$.")
        yield path.rstrip("`"), detail
    except RecursionError:
        yield "", TOO_DEEP
    except (ValueError, TypeError) as error:
        yield "", str(error)


def _bad_values(value: Any, path: str, in_json: bool, level: int = 1) -> Iterator[Fault]:
    """What JSON, or a 64-bit column, cannot hold. ``in_json``: inside an open-ended value, at this ``level`` of it."""
    if level > MOST_LEVELS and isinstance(value, dict | list | tuple):
        yield path, TOO_DEEP
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _bad_values(getattr(value, name), f"{path}.{name}" if path else name, in_json)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                yield path, f"the key {key!r} is no text"
            yield from _bad_text(str(key), path)
            yield from _bad_values(item, f"{path}.{key}", in_json=True, level=level + 1)
    elif isinstance(value, list | tuple):
        if in_json and isinstance(value, tuple):
            yield path, "a tuple is no JSON value, a list is"
        for index, item in enumerate(value):
            yield from _bad_values(item, f"{path}[{index}]", in_json, level + 1)
    elif isinstance(value, str):
        yield from _bad_text(value, path)
    elif isinstance(value, float) and not math.isfinite(value):
        yield path, f"{value} is not a value; use None where there is none"
    elif isinstance(value, int) and not in_json and not -(2**63) <= value < 2**63:
        yield path, f"{value} does not fit in 64 bits"
    elif in_json and not (value is None or isinstance(value, bool | int | float)):
        yield path, f"{type(value).__name__} is no JSON value"


def _bad_text(text: str, path: str) -> Iterator[Fault]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        yield path, f"lone surrogate {text[error.start]!a} at character {error.start} cannot be written as UTF-8"


def _differences(given: Any, read: Any, path: str) -> Iterator[Fault]:
    """Where a value differs from what comes back."""
    if given == read:
        return
    if isinstance(given, msgspec.Struct) and type(given) is type(read):
        for name in given.__struct_fields__:
            yield from _differences(getattr(given, name), getattr(read, name), f"{path}.{name}" if path else name)
    elif isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        for index, (one, other) in enumerate(zip(given, read, strict=True)):
            yield from _differences(one, other, f"{path}[{index}]")
    else:
        yield path, f"{type(given).__name__} {given!r:.80} would come back as {type(read).__name__} {read!r:.80}"


def is_utf8(text: str) -> bool:
    """Whether a text can be encoded, as in a table: one with half characters (lone surrogates) cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
