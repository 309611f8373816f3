"""The contract of a foreign format: a reader and a writer, both pure, that say what they could not carry over.

Reading invents nothing and drops no run: what a record lacks stays ``None``, and a failed run is read like any other.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from agentmill.schemas.ids import ingested_id
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Source, Trajectory


class Tally(Counter[str]):
    """A counter. Most stay empty or hold one name, and a record has a dozen: to make and to add these costs little."""

    if TYPE_CHECKING:

        def __init__(self, given: Mapping[str, int] = ...) -> None: ...
    else:
        __init__ = dict.__init__  # which is not written in Python

    def __add__(self, other: Counter[str]) -> Tally:  # type: ignore[override]
        if not (self and other):
            return +(self or Tally(other))
        found = dict(self)
        for name, n in other.items():
            found[name] = found.get(name, 0) + n
        return +Tally(found)

    def __pos__(self) -> Tally:
        return Tally({name: n for name, n in self.items() if n > 0}) if self else Tally()


Losses = Tally
"""What the other side cannot say, by field (``content.state_digest``), with how often it was left out."""

Remarks = Tally
"""Reason codes of what is odd about a record, with how often it is."""


NO_FIELD = "no_field."
"""Before a path that an option of a format names, as a remark on a record that has nothing there."""


WRONG_KIND = "wrong_kind."
"""Before the kind of value that an option takes and the path that it names: a remark on a record that has another."""


NOT_FINITE = "not_finite"
"""The remark on numbers that are NaN or infinite, which JSON does not have; they are read as null."""

# Texts are matched too, so that NaN inside of one stays. The possessive `*+` keeps a broken text linear in time.
_TEXT_OR_NOT_FINITE = re.compile(rb'"(?:[^"\\]|\\.)*+"?|-?\b(?:NaN|Infinity)\b', re.DOTALL)


class FormatError(ValueError):
    """A record that cannot be read, or a trajectory that cannot be written. ``reason`` is a short code."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type[FormatError], tuple[str, str]]:
        return type(self), (self.reason, self.detail)


class Origin(msgspec.Struct, frozen=True, gc=False):
    """The place of a raw record; ``occurrence`` counts records of equal bytes before it in the dataset's split."""

    dataset: str
    split: str | None = None
    row: int | None = None
    licence: str | None = None
    occurrence: int = 0


class Decoded(msgspec.Struct, frozen=True, gc=False):
    """A raw record whose JSON value is known already, so that it is not decoded twice."""

    data: bytes
    value: Any


Raw = bytes | Decoded
"""A raw record, as readers take it."""


class Read(NamedTuple):
    """A trajectory that was read, and what of the record it does not hold.

    What the record says and our fields do not is in ``trajectory.extra`` under the format's name: fields of the
    record by their own names, fields of one item under ``content``, by the index of the item as text. So a field of a
    record is represented, in ``extra``, or counted in ``losses``. ``others`` are further runs in the same record:
    branches of a search tree, attempts, sub-agents, rejected answers. ``remarks`` are reason codes, counted, of what
    breaks the format's rules and was read all the same: ``orphan_result``, ``repeated_call_id``, ``unknown_kind`` …
    """

    trajectory: Trajectory
    losses: Losses
    others: tuple[Trajectory, ...] = ()
    remarks: Remarks = Remarks()


class Written(NamedTuple):
    """A JSON document that was written, and what of the trajectory it does not hold."""

    document: JsonObject
    losses: Losses


class Reader(Protocol):
    """A format that can be read: a ``Config`` whose fields are its options."""

    def read(self, raw: Raw, origin: Origin) -> Read:
        """The trajectory of one raw record, any version of the format, which stays as it is. Raises ``FormatError``."""


class Format(Reader, Protocol):
    """A format that can be read and written; options say which version of it is written."""

    def write(self, trajectory: Trajectory) -> Written:
        """One trajectory as a document of the format. Raises ``FormatError`` if the format cannot say it."""


def decode(raw: Raw) -> Any:
    """The JSON value in ``raw``.

    Raises ``FormatError``: ``blank``, ``invalid_json``, ``number_out_of_range`` or ``too_deep``.
    """
    if isinstance(raw, Decoded):
        return raw.value
    try:
        # A byte order mark before the record is no JSON for msgspec.
        return msgspec.json.decode(raw.removeprefix(b"\xef\xbb\xbf"))
    # A subclass of DecodeError, so it comes first.
    except msgspec.ValidationError as error:
        raise FormatError("number_out_of_range", f"a number is larger than any that can be stored: {error}") from error
    except RecursionError as error:
        raise FormatError("too_deep", "values are nested deeper than can be read") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if not raw or raw.isspace():
            raise FormatError("blank", "the record is empty") from error
        raise FormatError("invalid_json", str(error)) from error


def decode_counted(raw: bytes) -> tuple[Any, int]:
    """As ``decode``, but NaN and infinities, as Python's ``json`` writes them, are null; with how many they were."""
    try:
        # Few records have such numbers, so the text is gone over only if it is no JSON.
        return decode(raw), 0
    except FormatError as error:
        finite, found = _finite(raw) if error.reason == "invalid_json" else (raw, 0)
        if not found:
            raise
        return decode(finite), found


def _finite(text: bytes) -> tuple[bytes, int]:
    """JSON text with null for NaN and infinities, and how many they were."""
    found = 0

    def replaced(token: re.Match[bytes]) -> bytes:
        nonlocal found
        if token[0].startswith(b'"'):
            return token[0]
        found += 1
        return b"null"

    return _TEXT_OR_NOT_FINITE.sub(replaced, text), found


def parse(raw: Raw) -> JsonObject:
    """The JSON object in ``raw``, for the caller to take fields from.

    Raises ``FormatError``: those of ``decode``, or ``not_an_object``.
    """
    document = decode(raw)
    if not isinstance(document, dict):
        raise FormatError("not_an_object", f"expected a JSON object, got {type(document).__name__}")
    # A copy: readers take fields out of it, and a value that was decoded before belongs to the caller.
    return dict(document)


def present(fields: JsonObject) -> JsonObject:
    """``fields`` without nulls: a table fills each field that a record lacks with one."""
    return {name: value for name, value in fields.items() if value is not None}


def provenance(raw: Raw, origin: Origin, converter: str, version: str) -> tuple[str, Source]:
    """The id and the source of an ingested trajectory."""
    sha256 = hashlib.sha256(raw.data if isinstance(raw, Decoded) else raw).hexdigest()
    source = Source(
        dataset=origin.dataset,
        sha256=sha256,
        converter=converter,
        converter_version=version,
        split=origin.split,
        row=origin.row,
        licence=origin.licence,
    )
    return ingested_id(origin.dataset, origin.split, sha256, origin.occurrence), source
