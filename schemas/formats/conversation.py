"""A run that is read from, or written as, a list of chat messages, and what is noted of it for ``extra``.

Everything in ``extra`` under the name of a format has one layout: the fields of the record by their own names, and

* ``content``: fields of messages that we have none for, by the index of the message's first item (or ``system``);
* ``tool_calls``: fields of calls that we have none for, by the index of the call;
* ``spelling``: how things were written where there is more than one way, so that they can be written so again;
* ``side``: ``chosen`` or ``rejected``, for one of the two runs of a pair;
* ``row``: the fields of the record, where one of them has one of these names.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from schemas.formats.format import Origin, Raw, Remarks, provenance
from schemas.record import JsonObject
from schemas.trajectory import AnyItem, Trajectory

RESERVED = frozenset({"content", "tool_calls", "spelling", "side", "row"})
_NUMBERS = (int, float)
SYSTEM = "system"
"""Stands for the system prompt where an index stands for an item."""


class Flag(NamedTuple):
    """The field that says whether a message carries loss, and its values for no and yes."""

    field: str
    no: Any
    yes: Any

    def read(self, value: Any) -> bool | None:
        """What ``value`` says: of numbers, any above zero is yes; ``None`` where it is of another type."""
        if isinstance(value, bool) != isinstance(self.no, bool) or not isinstance(value, _NUMBERS):
            return None
        return bool(value > 0)

    def says(self, value: Any) -> bool:
        """Whether yes or no, as this field spells them, is all that ``value`` says."""
        return type(value) is type(self.no) and value in (self.no, self.yes)


class Text(msgspec.Struct, frozen=True, gc=False):
    """A message that is a text, of the agent or of the user, and nothing else but, of the agent, a flag."""

    content: str
    agent: bool
    train: bool | None = None


class Conversation:
    """The items that messages became. ``starts`` has the index of the first item of each, -1 for the system prompt."""

    def __init__(self) -> None:
        self.system_prompt: str | None = None
        self.content: list[AnyItem] = []
        self.turn = 0
        self.starts: list[int] = []
        self.fields: dict[str, JsonObject] = {}
        self.call_fields: dict[str, JsonObject] = {}
        self.spelling: JsonObject = {}
        self.remarks: Remarks = Remarks()
        self.unnumbered: list[int] = []
        """Indices of calls and results that have no id in the source."""

    def note(self, index: int, **spelling: Any) -> None:
        """Note how the message or call at ``index`` is spelled; -1 is the system prompt."""
        self.spelling.setdefault(key(index), {}).update(spelling)


class Layout(NamedTuple):
    """What stands in ``extra`` under the name of a format."""

    row: JsonObject
    content: JsonObject
    tool_calls: JsonObject
    spelling: JsonObject
    side: str | None


def key(index: int) -> str:
    """The name of an item, or of the system prompt, in notes."""
    return str(index) if index >= 0 else SYSTEM


def layout(trajectory: Trajectory, name: str) -> Layout:
    """What was kept of a record in format ``name``; nothing for a trajectory that comes from elsewhere."""
    held = trajectory.extra.get(name, {})
    row = held.get("row", {field: value for field, value in held.items() if field not in RESERVED})
    content, tool_calls, spelling = (held.get(part, {}) for part in ("content", "tool_calls", "spelling"))
    return Layout(row, content, tool_calls, spelling, held.get("side"))


def to_trajectory(
    talk: Conversation, raw: Raw, origin: Origin, name: str, version: str, row: JsonObject, **fields: Any
) -> Trajectory:
    """The trajectory of a conversation; ``row`` are the other fields of the record, ``fields`` those of ours."""
    trajectory_id, source = provenance(raw, origin, name, version)
    return Trajectory(
        trajectory_id=trajectory_id,
        content=talk.content,
        system_prompt=talk.system_prompt,
        source=source,
        extra=kept(talk, name, row),
        **fields,
    )


def kept(talk: Conversation, name: str, row: JsonObject) -> JsonObject:
    """What goes into ``extra``, for which ``row`` is taken."""
    if talk.unnumbered:
        talk.spelling["unnumbered"] = talk.unnumbered
    held = row if RESERVED.isdisjoint(row) else {"row": row}
    for part, noted in (("content", talk.fields), ("tool_calls", talk.call_fields), ("spelling", talk.spelling)):
        if noted:
            held[part] = noted
    return {name: held} if held else {}
