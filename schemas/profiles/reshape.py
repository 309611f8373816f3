"""Putting the fields of a record where its format looks for them, and the rows of a run together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from schemas.config import Config
from schemas.formats.format import FormatError
from schemas.record import JsonObject

ROWS = "rows"
"""The field of a joined record that holds what its rows do not share."""


class MessageFields(Config):
    """Where messages and their parts lie, in a record that has chat messages under other names."""

    of: str = Field(description="the field with the list of messages")
    role: str = Field(default="role", description="the field of a message that says who speaks")
    content: list[str] = Field(default=["content"], description="its fields with the text; the first that is not null")
    train: str | None = Field(default=None, description="its field that says whether it is trained on")
    roles: dict[str, str] = Field(default={}, description="roles that have another name in OpenAI's messages")

    def apply(self, document: JsonObject) -> JsonObject:
        """The record with OpenAI's ``messages``. Raises ``FormatError`` (``invalid``) if it has no list of them."""
        given = document.get(self.of)
        if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
            raise FormatError("invalid", f"expected {self.of!r}, a list of messages, got {given!r:.60}")
        rest = {name: value for name, value in document.items() if name != self.of}
        return {**rest, "messages": [self._message(each) for each in given]}

    def _message(self, given: JsonObject) -> JsonObject:
        rest = dict(given)
        role = rest.pop(self.role, None)
        used = next((name for name in self.content if rest.get(name) is not None), self.content[0])
        content = rest.pop(used, None)
        # What is null was filled in where messages of all roles became one table.
        told = {name: value for name, value in rest.items() if value is not None and name != self.train}
        weight = rest.get(self.train) if self.train is not None else None
        known = {"weight": int(weight)} if isinstance(weight, bool) else {}
        return {
            "role": self.roles.get(role, role) if isinstance(role, str) else role,
            "content": content,
            **told,
            **known,
        }


def join(rows: Sequence[Any], field: str) -> JsonObject:
    """The rows of a run as one record: the lists at ``field`` one after the other, and what else they share.

    A message that opens several lists stands once. What differs between rows is kept under ``rows``. Raises
    ``FormatError`` (``invalid``) for a row without such a list.
    """
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get(field), list) or not row[field]:
            raise FormatError("invalid", f"expected rows with {field!r}, a list, got {row!r:.60}")
    opening = rows[0][field][0]
    members = list(rows[0][field])
    for row in rows[1:]:
        members += row[field][1:] if row[field][0] == opening else row[field]
    names = [name for name in rows[0] if name != field]
    shared = {name: rows[0][name] for name in names if all(row.get(name) == rows[0][name] for row in rows)}
    own = [{name: value for name, value in row.items() if name != field and name not in shared} for row in rows]
    return {**shared, field: members, **({ROWS: own} if any(own) else {})}
