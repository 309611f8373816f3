"""Fields of a record by path, and how many of them ended where: the field-by-field report of what was kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from pydantic import Field, JsonValue

from agentmill.schemas.config import Config
from agentmill.schemas.format import FormatError, Losses
from agentmill.schemas.messages.conversation import RESERVED, WEIGHT, Flag
from agentmill.schemas.messages.parts import renamed
from agentmill.schemas.records.record import JsonObject

ITEM = "[]."
"""Before the name of a field of the objects in a list, whichever list it is."""


def at(value: Any, path: str) -> Any:
    """The value at ``path`` (names joined by dots) of a JSON value; ``None`` if there is none."""
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def last_at(rows: Sequence[Any], path: str) -> Any:
    """The value at ``path`` in the last of ``rows`` that has a value there, or ``None``."""
    return next((value for row in reversed(rows) if (value := at(row, path)) is not None), None)


def fields_of(document: Any) -> dict[str, int]:
    """How often each field has a value: of the record, and of the objects in its lists (``[].role``)."""
    counted: dict[str, int] = {}
    for record in document if isinstance(document, list) else (document,):
        if isinstance(record, dict):
            _count((record,), "", counted)
            for value in record.values():
                if isinstance(value, list):
                    _count(value, ITEM, counted)
    return counted


def _count(members: Sequence[Any], prefix: str, counted: dict[str, int]) -> None:
    """Add to ``counted`` how many of the objects in ``members`` have a value for each name."""
    found: dict[str, int] = {}
    for member in members:
        if isinstance(member, dict):
            for name, value in member.items():
                if value is not None:
                    found[name] = found.get(name, 0) + 1
    for name, n in found.items():
        counted[prefix + name] = counted.get(prefix + name, 0) + n


def fields_in_extra(extra: JsonObject) -> dict[str, int]:
    """The fields that a reader put into ``extra``, by the names that ``fields_of`` gives them."""
    counted: dict[str, int] = {}
    for kept in extra.values():
        if not isinstance(kept, dict):
            continue
        for name in kept.get("row", kept):
            if name not in RESERVED:
                counted[name] = counted.get(name, 0) + 1
        for items in (kept.get("content"), kept.get("tool_calls")):
            for member in items.values() if isinstance(items, dict) else ():
                for name in member if isinstance(member, dict) else ():
                    counted[ITEM + name] = counted.get(ITEM + name, 0) + 1
    return counted


_KINDS = ("source", "extra", "dropped")


def measured(document: Any, extra: JsonObject, losses: Losses) -> dict[str, int]:
    """``source.FIELD``, ``extra.FIELD`` and ``dropped.FIELD``, with how often each was."""
    found = {f"source.{name}": n for name, n in fields_of(document).items()}
    found |= {f"extra.{name}": n for name, n in fields_in_extra(extra).items()}
    return found | {f"dropped.{name}": n for name, n in losses.items() if n} if losses else found


class Kept(msgspec.Struct, frozen=True):
    """How often a field had a value, and how often that was put into ``extra``, or left out; else it has a place."""

    field: str
    source: int
    extra: int
    dropped: int


def field_report(metrics: Mapping[str, float]) -> list[Kept]:
    """By name, what became of every field that the metrics of a table tell of (see ``measured``)."""
    names = sorted({name.partition(".")[2] for name in metrics if _tells_of_a_field(name)})
    return [Kept(name, *(int(metrics.get(f"{kind}.{name}", 0)) for kind in _KINDS)) for name in names]


def without_fields(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics of a table that do not tell of fields."""
    return {name: n for name, n in metrics.items() if not _tells_of_a_field(name)}


def _tells_of_a_field(name: str) -> bool:
    return name.partition(".")[0] in _KINDS


ROWS = "rows"
"""The field of a joined record that holds what its rows do not share."""


def renamed_fields(row: JsonObject, names: Mapping[str, str]) -> JsonObject:
    """``row`` with new ``names`` for some fields; none takes the place of another that has a value.

    What has such a name already gets one that is free, and so does the second of two that would be called the same.
    """
    new: dict[str, str] = {}
    for name, value in row.items():
        if name in names and names[name] not in new.values() and (value is not None or names[name] not in row):
            new[name] = names[name]
    others = [name for name in row if name not in new]
    new |= zip(others, renamed(dict.fromkeys(others), set(new.values())), strict=True)
    return {new[name]: value for name, value in row.items()}


class MessageFields(Config):
    """Where messages and their parts lie, in a record that has chat messages under other names."""

    of: str = Field(description="the field with the list of messages")
    role: str = Field(default="role", description="the field of a message with its role")
    content: list[str] = Field(default=["content"], description="its fields with the text; the first that is not null")
    train: str | None = Field(
        default=None, description="its field with whether it is trained on, a boolean or a number (0: no)"
    )
    roles: dict[str, str] = Field(default={}, description="roles that have another name in OpenAI's messages")

    def apply(self, document: JsonObject, flag: Flag = WEIGHT) -> JsonObject:
        """The record with OpenAI's ``messages``, and in them the ``flag`` of the format that reads them.

        Raises ``FormatError`` (``invalid``) if it has no list of them.
        """
        given = document.get(self.of)
        if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
            raise FormatError("invalid", f"expected {self.of!r}, a list of messages, got {given!r:.60}")
        # A field of that name that is there already keeps its value under another one.
        rest = renamed({name: value for name, value in document.items() if name != self.of}, {"messages"})
        return {**rest, "messages": [self._message(each, flag) for each in given]}

    def _message(self, given: JsonObject, flag: Flag) -> JsonObject:
        rest = dict(given)
        # A message without the fields that are named may have OpenAI's own.
        role = rest.pop(self.role if rest.get(self.role) is not None else "role", None)
        used = next((name for name in (*self.content, "content") if rest.get(name) is not None), self.content[0])
        read = {"role": self.roles.get(role, role) if isinstance(role, str) else role, "content": rest.pop(used, None)}
        if self.train is not None and is_flag(weight := rest.get(self.train)):
            del rest[self.train]
            read[flag.field] = weight if weight not in (0, 1) else flag.yes if weight else flag.no
        # What is null was filled in where messages of all roles became one table.
        unread = {name: value for name, value in rest.items() if value is not None}
        return {**read, **renamed(unread, read)}


def is_flag(value: JsonValue) -> bool:
    """Whether ``value`` states, as a boolean or a number, if a message is trained on."""
    return isinstance(value, int | float)


def join(rows: Sequence[Any], field: str) -> JsonObject:
    """The rows of a run as one record: the lists at ``field`` one after the other, and what else they share.

    A message that opens all lists, or a system message that opens several, is kept once. What differs between rows is
    kept under ``rows``. Raises ``FormatError`` (``invalid``) for a row without such a list.
    """
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get(field), list) or not row[field]:
            raise FormatError("invalid", f"expected rows with {field!r}, a list, got {row!r:.60}")
    opening = rows[0][field][0]
    members = list(rows[0][field])
    # An opening that only some rows share may be a text that the user wrote twice.
    is_repeated = _is_system(opening) or all(row[field][0] == opening for row in rows)
    for row in rows[1:]:
        members += row[field][1:] if is_repeated and row[field][0] == opening else row[field]
    names = [name for name in rows[0] if name != field]
    shared = {name: rows[0][name] for name in names if all(row.get(name) == rows[0][name] for row in rows)}
    own = [{name: value for name, value in row.items() if name != field and name not in shared} for row in rows]
    return {**shared, field: members, **({ROWS: own} if any(own) else {})}


def _is_system(message: Any) -> bool:
    return isinstance(message, dict) and any(message.get(name) == "system" for name in ("role", "from"))
