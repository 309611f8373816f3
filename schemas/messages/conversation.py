"""A run that is read from, or written as, a list of chat messages, and what is noted of it for ``extra``.

Everything in ``extra`` under the name of a format has one layout: the fields of the record by their own names, and

* ``content``: fields of messages that we have none for, by the index of the message's first item (or ``system``);
* ``tool_calls``: fields of calls that we have none for, by the index of the call;
* ``spelling``: how things were written where there is more than one way, so that they can be written so again;
* ``side``: ``chosen`` or ``rejected``, for one of the two runs of a pair;
* ``row``: the fields of the record, where one of them has one of these names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from agentmill.schemas.format import Origin, Raw, Remarks, provenance
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import (
    Action,
    AnyItem,
    ImageObservation,
    ObservationSource,
    TextObservation,
    Trajectory,
)

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
        """What ``value`` means: true, or any number above zero, is yes; ``None`` where it is neither."""
        return bool(value > 0) if isinstance(value, _NUMBERS) else None

    def matches(self, value: Any) -> bool:
        """Whether yes or no, as this field spells them, is all that ``value`` says."""
        return type(value) is type(self.no) and value in (self.no, self.yes)


WEIGHT = Flag("weight", 0, 1)
"""The field of OpenAI's messages."""

Text = tuple[str, bool, bool | None]
"""A message that is a text and nothing else: the text, whether it is the agent's, and its flag, which only that has."""


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
        self.with_nulls: list[int] = []
        """Indices of calls whose arguments are an object, not a text, and one of them is null."""

    def note(self, index: int, **spelling: Any) -> None:
        """Note how the message or call at ``index`` is spelled; -1 is the system prompt."""
        self.spelling.setdefault(key(index), {}).update(spelling)


class Layout(NamedTuple):
    """What is in ``extra`` under the name of a format."""

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
    conversation: Conversation, raw: Raw, origin: Origin, name: str, version: str, row: JsonObject, **fields: Any
) -> Trajectory:
    """The trajectory of a conversation; ``row`` are the other fields of the record, ``fields`` those of ours."""
    trajectory_id, source = provenance(raw, origin, name, version)
    return Trajectory(
        trajectory_id=trajectory_id,
        content=conversation.content,
        system_prompt=conversation.system_prompt,
        source=source,
        extra=kept(conversation, name, row),
        **fields,
    )


def kept(conversation: Conversation, name: str, row: JsonObject) -> JsonObject:
    """What goes into ``extra``, for which ``row`` is taken."""
    if conversation.unnumbered:
        conversation.spelling["unnumbered"] = conversation.unnumbered
    held = row if RESERVED.isdisjoint(row) else {"row": row}
    for part, noted in (
        ("content", conversation.fields),
        ("tool_calls", conversation.call_fields),
        ("spelling", conversation.spelling),
    ):
        if noted:
            held[part] = noted
    return {name: held} if held else {}


class Transcript:
    """``content`` are the items, ``rest`` what is kept of each in ``extra``; ``turn`` is that of the next item."""

    def __init__(self) -> None:
        self.content: list[AnyItem] = []
        self.rest: list[JsonObject] = []
        self.turn = 0
        self.system_prompt: str | None = None
        self.remarks: Remarks = Remarks()
        self._waiting: dict[str, list[str]] = {}
        self._used: set[str] = set()
        self._repeated: dict[str, int] = {}
        """The number that made an id unique, the last time that it was repeated."""

    def add(self, item: AnyItem, rest: JsonObject) -> None:
        """Append an item of the current turn."""
        self.rest.append(rest)
        # Most items have their turn already, and a copy of each would cost more than the comparison.
        self.content.append(item if item.turn == self.turn else msgspec.structs.replace(item, turn=self.turn))

    def see(self, content: Any, source: ObservationSource, rest: JsonObject, **fields: Any) -> None:
        """Append what was shown: a text, or a list of parts as in OpenAI messages, each image an item of its own.

        Of the texts among the parts one observation is made; parts that it does not say in full are kept.
        """
        text, more = read_text(content)
        more = {"content": None} if content is None else more
        self.add(TextObservation(content=text, source=source, turn=self.turn, **fields), {**rest, **more})
        for part in content if isinstance(content, list) else ():
            url = part.get("image_url") if isinstance(part, dict) else None
            url = url.get("url") if isinstance(url, dict) else url
            if isinstance(url, str):
                self.add(ImageObservation(content=url, source=source, turn=self.turn), {})

    def call_id(self, given: Any, rest: JsonObject) -> str:
        """The id of a call: ``given``, made unique, or one by position. A call that is answered needs no more."""
        name = given if isinstance(given, str) and given else f"call_{len(self.content)}"
        unique = name
        # Counting on from the last number: a search from 2 on would take quadratic time where an id repeats thousands
        # of times.
        number = self._repeated.get(name, 1)
        while unique in self._used:
            number += 1
            unique = f"{name}_{number}"
        self._repeated[name] = number
        if unique != given and given:
            rest["tool_call_id"] = given
            self.remarks["repeated_call_id"] += 1
        self._used.add(unique)
        self._waiting.setdefault(name, []).append(unique)
        return unique

    def answer(self, given: Any, rest: JsonObject, among: Sequence[str] | None = None) -> str | None:
        """The id of the call that a result with id ``given`` answers: the earliest of that id that has no result yet.

        ``among`` are the calls that it can answer, where not all. A result of no call is remarked on as
        ``orphan_result``, one more result of a call as ``duplicate_result``; they keep what they said in ``rest`` and
        have no link.
        """
        waiting = self._waiting.get(given) if isinstance(given, str) else None
        for place, name in enumerate(waiting or ()):
            if waiting is not None and (among is None or name in among):
                return waiting.pop(place)
        if given is not None:
            rest["tool_call_id"] = given
            self.remarks["orphan_result" if waiting is None else "duplicate_result"] += 1
        return None

    def notes(self) -> JsonObject:
        """Under ``content`` what is kept of the items, by their indices as text."""
        kept = {str(index): rest for index, rest in enumerate(self.rest) if rest}
        return {"content": kept} if kept else {}

    def arrange(self) -> None:
        """Put the actions of each turn before its observations: so the model made and saw them."""
        order = sorted(
            range(len(self.content)),
            key=lambda index: (self.content[index].turn, not isinstance(self.content[index], Action)),
        )
        self.content = [self.content[index] for index in order]
        self.rest = [self.rest[index] for index in order]


def read_text(content: Any) -> tuple[str, JsonObject]:
    """The text of a message's content, and its parts under ``content`` where the text does not say all of them."""
    if content is None or isinstance(content, str):
        return content or "", {}
    if not isinstance(content, list):
        return "", {"content": content}
    texts = [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
    plain = len(content) == len(texts) == 1 and content[0].keys() <= {"type", "text"}
    return "\n".join(texts), {} if plain else {"content": content}


def read_thinking(blocks: Any) -> tuple[str | None, JsonObject]:
    """Hidden reasoning in Anthropic's blocks, and under ``thinking_blocks`` what the text does not say."""
    if not isinstance(blocks, list) or not blocks:
        return None, {"thinking_blocks": blocks} if blocks else {}
    texts = [each["thinking"] for each in blocks if isinstance(each, dict) and isinstance(each.get("thinking"), str)]
    if len(texts) != 1 or len(blocks) != 1:
        return "\n".join(texts) if texts else None, {"thinking_blocks": blocks}
    more = {key: value for key, value in blocks[0].items() if key not in ("type", "thinking") and value is not None}
    return texts[0], {"thinking_blocks": [more]} if more else {}
