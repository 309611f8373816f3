"""Spans of a trace, from OTLP JSON or from the plainer forms that exporters and data sets have of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
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
    starts = [str(_first(each, _STARTS) or "") for each in given]
    # By length first: nanoseconds are numbers written as text. Exporters write spans by their end.
    order = sorted(range(len(given)), key=lambda index: (len(starts[index]), starts[index]))
    return [numbered[index] for index in order]


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
    code = status.get("code", status.get("status_code")) if isinstance(status, dict) else status
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
