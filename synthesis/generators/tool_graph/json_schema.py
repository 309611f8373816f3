"""JSON Schema as far as it tells arguments and rows: types, required, enum, bounds, and references within a document.

``$ref`` is resolved where it begins with ``#/``; one to another document is refused. Of ``allOf`` all parts count. Of
``anyOf`` and ``oneOf`` the one that is not null counts; several make a ``nested`` field, which nothing here can hold.
Objects are looked into no deeper than a row goes, so schemas that contain themselves are read like any other.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any
from urllib.parse import unquote

from agentmill.synthesis.generators.tool_graph.given_tools import Field, Kind, ToolError
from agentmill.synthesis.generators.tool_graph.naming import identified

MOST_STEPS = 30
"""References and ``allOf`` that are followed for one schema."""

MOST_WRAPPERS = 4
"""Lists and envelopes such as ``{"data": {"items": [...]}}`` around the row of a result."""

MOST_LETTERS = 80
"""The longest text that can be one of ``enum`` or of ``examples``."""

_LARGEST = 10**9
_SHAPES: dict[str, tuple[type, str]] = {
    "properties": (dict, "mapping"),
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), (list, "list")),
}
_SCALARS: tuple[Kind, ...] = ("integer", "number", "string", "boolean")


class SchemaReader:
    """Reads the schemas of one document, in which ``#/`` references are looked up."""

    def __init__(self, document: Any) -> None:
        self._document = document

    def resolve(self, schema: Any) -> dict[str, Any]:
        """The schema with its references, ``allOf`` and null alternatives replaced. Raises ``ToolError``."""
        return self._resolve(schema, [MOST_STEPS])

    def fields(self, schema: Any) -> list[Field]:
        """The properties of an object. Raises ``ToolError``."""
        found = self.resolve(schema)
        properties, required = found.get("properties") or {}, found.get("required") or []
        if not isinstance(required, list):
            raise ToolError("malformed", f"`required` is {str(required)[:60]!r}, expected a list")
        return [self.field(name, each, name in required) for name, each in properties.items()]

    def field(self, name: str, schema: Any, required: bool = False, *, in_path: bool = False) -> Field:
        """One property. Raises ``ToolError``."""
        found = self.resolve(schema)
        if "const" in found:
            found = {**found, "enum": [found["const"]]}
        kind, choices = _kind(found), found.get("enum", [])
        texts = [each for each in choices if isinstance(each, str)] if isinstance(choices, list) else []
        numbers = [each for each in choices if _is_number(each)] if isinstance(choices, list) else []
        least = _bound(math.ceil, min(numbers) if numbers else found.get("minimum"))
        most = _bound(math.floor, max(numbers) if numbers else found.get("maximum"))
        # There may be no whole number in a range of decimal ones, which become whole.
        if least is not None and most is not None and least > most:
            least, most = most, least
        return Field(
            name=name,
            kind=kind,
            form=str(found.get("format", "")),
            values=tuple(dict.fromkeys(filter(_fits, texts))) if kind == "string" else _apart(kind, numbers),
            examples=tuple(_examples(found)) if kind == "string" else (),
            least=least,
            most=most,
            required=required,
            in_path=in_path,
        )

    def row(self, schema: Any) -> tuple[Field, ...]:
        """The fields of a row of a result, without lists and envelopes around it; none of what is no row.

        Raises ``ToolError``.
        """
        found = self.resolve(schema)
        for _ in range(MOST_WRAPPERS):
            inner = found.get("items") if _kind(found) == "nested" and "items" in found else self._enveloped(found)
            if inner is None:
                break
            found = self.resolve(inner)
        return tuple(self.fields(found)) if "properties" in found else ()

    def _enveloped(self, found: dict[str, Any]) -> Any:
        """The one list of objects, or the only property, an object; ``None`` of what has an identifier of its own."""
        parts = found.get("properties") or {}
        if any(identified(name, "row") for name in parts):
            return None
        inner = {name: self.resolve(each) for name, each in parts.items()}
        lists = [each for each in inner.values() if "items" in each and "properties" in self.resolve(each["items"])]
        if len(lists) == 1:
            return lists[0]
        only = next(iter(inner.values())) if len(inner) == 1 else {}
        return only if "properties" in only else None

    def _resolve(self, schema: Any, steps: list[int]) -> dict[str, Any]:
        steps[0] -= 1
        if steps[0] < 0:
            raise ToolError("circular_ref", f"a schema leads through more than {MOST_STEPS} references, or to itself")
        if schema is True or schema is None:
            return {}
        if not isinstance(schema, dict):
            raise ToolError("malformed", f"a schema is {str(schema)[:60]!r}, expected a mapping")
        for key, (shape, called) in _SHAPES.items():
            if schema.get(key) is not None and not isinstance(schema[key], shape):
                raise ToolError("malformed", f"`{key}` is {str(schema[key])[:60]!r}, expected a {called}")
        found = dict(schema)
        if "$ref" in found:
            found = {**self._resolve(self.target(found.pop("$ref")), steps), **found}
        for part in found.pop("allOf", None) or []:
            found = _joined(found, self._resolve(part, steps))
        options = [
            each
            for key in ("anyOf", "oneOf")
            for each in found.get(key) or []
            if not (isinstance(each, dict) and each.get("type") == "null")
        ]
        if len(options) == 1:
            rest = {key: value for key, value in found.items() if key not in ("anyOf", "oneOf")}
            found = {**self._resolve(options[0], steps), **rest}
        return found

    def target(self, reference: Any) -> Any:
        """What a ``$ref`` names. Raises ``ToolError`` for one that leads nowhere or to another document."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise ToolError("foreign_ref", f"$ref {str(reference)[:120]!r} leads to another document; put it into this")
        at = self._document
        for part in reference.lstrip("#/").split("/") if reference != "#" else []:
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(at, dict) and name in at:
                at = at[name]
            elif isinstance(at, list) and name.isdecimal() and int(name) < len(at):
                at = at[int(name)]
            else:
                raise ToolError("dangling_ref", f"$ref {reference[:120]!r} leads nowhere: there is no {name[:60]!r}")
        return at


def _joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Two schemas that both hold."""
    first, more = one.get("properties") or {}, other.get("properties") or {}
    properties = {**first, **{name: each for name, each in more.items() if name not in first}}
    listed = [each["required"] for each in (one, other) if isinstance(each.get("required"), list)]
    required = [name for names in listed for name in names]
    joined = {**other, **one}
    return {**joined, "properties": properties, "required": required} if properties else joined


def _kind(found: dict[str, Any]) -> Kind:
    given = found.get("type")
    if isinstance(given, list):
        named = [each for each in given if each != "null"]
        given = named[0] if len(named) == 1 else "several"
    if "properties" in found or "items" in found or found.get("anyOf") or found.get("oneOf"):
        return "nested"
    if given is None:
        listed = found.get("enum")
        choices = listed if isinstance(listed, list) else []
        if choices and all(isinstance(each, str) for each in choices):
            return "string"
        return "integer" if choices and all(map(_is_number, choices)) else "unknown"
    return next((kind for kind in _SCALARS if kind == given), "nested")


def _examples(found: dict[str, Any]) -> Iterator[str]:
    listed = found.get("examples")
    given = [found.get("example"), *(listed if isinstance(listed, list) else [])]
    yield from dict.fromkeys(each for each in given if isinstance(each, str) and _fits(each))


def _fits(text: str) -> bool:
    return bool(text.strip()) and text.isprintable() and len(text) <= MOST_LETTERS


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _apart(kind: Kind, choices: Collection[int]) -> tuple[str, ...]:
    """Whole numbers to choose from, as texts, where a range would hold others, too."""
    numbers = sorted({*choices})
    is_range = not numbers or numbers[-1] - numbers[0] == len(numbers) - 1
    return () if kind != "integer" or is_range else tuple(map(str, numbers))


def _bound(whole: Any, value: Any) -> int | None:
    """A bound as a whole number that a database holds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # A whole number may be larger than any float.
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return max(-_LARGEST, min(_LARGEST, int(whole(value))))
