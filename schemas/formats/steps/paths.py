"""Fields of step records by their paths: their values, and the record without them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from agentmill.schemas.records.record import JsonObject

_CHOICE = re.compile(r"(?P<name>[^\[\]]+)\[(?P<field>[^=\]]+)=(?P<value>[^\]]*)\]")


def value_at(value: Any, path: str) -> Any:
    """The value at ``path``: names joined by dots; JSON text on the way is entered.

    Of a list, ``tags.0`` is the member at a place, and ``tags[kind=x]`` the first object with that value.
    """
    for name in path.split("."):
        value = opened(value)
        chosen = _CHOICE.fullmatch(name)
        if chosen is not None and isinstance(value, dict):
            members = opened(value.get(chosen["name"]))
            value = next((each for each in members if _fits(each, chosen)), None) if isinstance(members, list) else None
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            value = value.get(name) if isinstance(value, dict) else None
    return value


def opened(value: Any) -> Any:
    """The object or list that a JSON text is; anything else as it is."""
    # A look at the first character spares the attempt to decode every text.
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return value
    return value


def is_there(value: Any, path: str) -> bool:
    """Whether ``path`` leads to something, be it null."""
    head, _, last = path.rpartition(".")
    parent = opened(value_at(value, head) if head else value)
    return (isinstance(parent, dict) and last in parent) or value_at(value, path) is not None


def _fits(member: Any, chosen: re.Match[str]) -> bool:
    """Whether an object of a list has the value that is asked for."""
    if not isinstance(member, dict) or chosen["field"] not in member:
        return False
    value = member[chosen["field"]]
    return chosen["value"] == (value if isinstance(value, str) else msgspec.json.encode(value).decode())


def without(value: JsonObject, paths: Iterable[str]) -> JsonObject:
    """``value`` without the values at ``paths``, and without the objects that are empty then. Text stays whole."""
    for path in paths:
        value = _without(value, path.split("."))
    return value


def _without(value: JsonObject, names: Sequence[str]) -> JsonObject:
    kept = dict(value)
    inner = kept.get(names[0])
    if len(names) == 1:
        kept.pop(names[0], None)
    elif isinstance(inner, dict):
        kept[names[0]] = _without(inner, names[1:])
        if not kept[names[0]]:
            del kept[names[0]]
    return kept


def shared_fields(rows: Sequence[JsonObject]) -> JsonObject:
    """What all rows have the same at their top, if they are several."""
    if len(rows) < 2:
        return {}
    return {name: value for name, value in rows[0].items() if all(row.get(name) == value for row in rows[1:])}
