"""Calls that may be tried of a tool of which only the schema is known."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from schemas.record import JsonObject
from schemas.trajectory import ApiAction, Tool

_VALUES = 3
_CALLS = 6


def candidates(tool: Tool, known: Sequence[Any]) -> list[ApiAction]:
    """A few calls with values that the schemas of the parameters take; texts are some of ``known``."""
    properties: dict[str, JsonObject] = tool.parameters["properties"]
    choices = [_values(schema, known)[:_VALUES] for schema in properties.values()]
    return [
        ApiAction(function=tool.name, kwargs=dict(zip(properties, values, strict=True)))
        for values in itertools.islice(itertools.product(*choices), _CALLS)
    ]


def _values(schema: JsonObject, known: Sequence[Any]) -> list[Any]:
    if "enum" in schema:
        return list(schema["enum"])
    match schema.get("type"):
        case "integer" | "number":
            least = schema.get("minimum", 0)
            return [value for value in (least, least + 1, least + 2) if value <= schema.get("maximum", value)]
        case "boolean":
            return [False, True]
        case "string":
            return [each for each in known if isinstance(each, str)] or [""]
        case "array":
            return [[]]
    return []
