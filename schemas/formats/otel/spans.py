"""Spans of a trace, from OTLP JSON or from the plainer forms that exporters and data sets have of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import msgspec

from agentmill.schemas.format import FormatError
from agentmill.schemas.records.record import JsonObject

_IDS = ("spanId", "span_id", "spanID")
_PARENTS = ("parentSpanId", "parent_span_id", "parent_id", "parentSpanID")
_STARTS = ("startTimeUnixNano", "start_time_unix_nano", "startTime", "start_time")
_OPEN = ("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions", "gen_ai.tool.definitions")
"""Attributes that may be JSON text of a list."""
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_FRACTION = re.compile(r"(.*:[0-9]{2})[.,]([0-9]+)(.*)")
"""An ISO time with a fraction of a second."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Span(NamedTuple):
    """A span; ``rest`` is what it says beyond its attributes."""

    span_id: str
    parent_id: str | None
    operation: str | None
    attributes: JsonObject
    evaluations: list[JsonObject]
    failed: bool
    rest: JsonObject

    @property
    def shows(self) -> bool:
        """Whether it has messages."""
        return any(self.attributes.get(key) for key in _OPEN[:2])


def read_spans(document: Any) -> list[Span]:
    """The spans by the time of their start. Raises ``FormatError``: ``invalid``, or ``empty`` where there are none."""
    given = [each for each in _spans(document) if isinstance(each, dict)]
    if not given:
        raise FormatError("empty", "there are no spans")
    numbered = [_span(each, number) for number, each in enumerate(given)]
    # Exporters write spans by their end.
    starts = _comparable([str(_first(each, _STARTS) or "") for each in given])
    return [numbered[index] for index in sorted(range(len(given)), key=starts.__getitem__)]


def _comparable(starts: Sequence[str]) -> Sequence[tuple[Decimal, str]]:
    """What spans that start at ``starts`` are sorted by; a span without a start comes first.

    That is their number or time, if all have one, and else their text, of which the shorter comes first.
    """
    for read in (_number, _time):
        found = [read(start) if start else Decimal("-inf") for start in starts]
        known = [(value, "") for value in found if value is not None]
        if len(known) == len(starts):
            return known
    return [(Decimal(len(start)), start) for start in starts]


def _number(text: str) -> Decimal | None:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _time(text: str) -> Decimal | None:
    """Seconds since 1970 at an ISO time, exactly: Python's times have no nanoseconds."""
    match = _FRACTION.fullmatch(text)
    day, fraction, zone = match.groups() if match else (text, "0", "")
    try:
        time = datetime.fromisoformat(day + zone)
        passed = (time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH
    except (ValueError, OverflowError):
        return None
    return passed.days * 86_400 + passed.seconds + Decimal(f"0.{fraction}")


def _spans(document: Any) -> Iterator[Any]:
    if isinstance(document, list):
        for each in document:
            yield from _spans(each)
        return
    if not isinstance(document, dict):
        raise FormatError("invalid", f"expected spans, got {type(document).__name__}")
    inner = [document[key] for key in ("resourceSpans", "scopeSpans", "spans") if isinstance(document.get(key), list)]
    if inner:
        for each in inner:
            yield from _spans(each)
    elif "attributes" in document:
        yield document
    else:
        raise FormatError("invalid", f"expected spans with attributes, got {', '.join(document) or 'nothing'!r:.60}")


def _span(given: JsonObject, number: int) -> Span:
    attributes = _attributes(given.get("attributes"))
    for key in _OPEN:
        attributes = (
            {**attributes, key: _value(attributes[key])} if isinstance(attributes.get(key), str) else attributes
        )
    events = given.get("events") or []
    if not isinstance(events, list) or not all(isinstance(each, dict) for each in events):
        raise FormatError("invalid", f"expected events of a span, a list of objects, got {events!r:.60}")
    found = [_attributes(each.get("attributes")) for each in events]
    found = [attributes, *found]
    parent = _first(given, _PARENTS)
    status = given.get("status")
    code = _first(status, ("code", "status_code")) if isinstance(status, dict) else status
    rest = {key: value for key, value in given.items() if key not in ("attributes", "events")}
    if events:
        rest["events"] = [{**each, "attributes": _attributes(each.get("attributes"))} for each in events]
    return Span(
        span_id=str(_first(given, _IDS) or f"span-{number}"),
        parent_id=str(parent) if parent else None,
        operation=attributes.get("gen_ai.operation.name"),
        attributes=attributes,
        evaluations=[each for each in found if any(key.startswith("gen_ai.evaluation.score.") for key in each)],
        failed=code in (2, "ERROR", "STATUS_CODE_ERROR") or "error.type" in attributes,
        rest=rest,
    )


def _first(given: JsonObject, names: tuple[str, ...]) -> Any:
    context = given.get("context")
    places = [given, context] if isinstance(context, dict) else [given]
    return next((place[name] for place in places for name in names if place.get(name) not in (None, "")), None)


def _attributes(given: Any) -> JsonObject:
    """Attributes as an object: OTLP has a list of keys and typed values. Raises ``FormatError`` (``invalid``)."""
    if isinstance(given, dict):
        return given
    pairs = [] if given is None else given
    if not _are_pairs(pairs):
        raise FormatError("invalid", f"expected attributes, an object or a list of keys and values, got {given!r:.60}")
    return {each["key"]: _typed(each.get("value")) for each in pairs}


def _are_pairs(given: Any) -> bool:
    pairs = given if isinstance(given, list) else [None]
    return all(isinstance(each, dict) and isinstance(each.get("key"), str) for each in pairs)


def _typed(value: Any) -> Any:
    if not isinstance(value, dict) or len(value) != 1:
        return value
    ((kind, inner),) = value.items()
    if kind == "intValue":
        # OTLP writes 64-bit integers as text, since JSON numbers of JavaScript hold only 53 bits.
        return int(inner) if isinstance(inner, str) and _INTEGER.fullmatch(inner) else inner
    values = inner.get("values", []) if isinstance(inner, dict) else [] if inner is None else inner
    if kind == "arrayValue" and isinstance(values, list):
        return [_typed(each) for each in values]
    if kind == "kvlistValue" and _are_pairs(values):
        return _attributes(values)
    return inner if kind in ("stringValue", "boolValue", "doubleValue", "bytesValue") else value


def _value(text: str) -> Any:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    # A text that happens to be JSON of a number is a text.
    return value if isinstance(value, list | dict) else text
