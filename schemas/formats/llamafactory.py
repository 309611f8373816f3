"""LLaMA-Factory v1: ``messages`` of parts, ``tools`` as JSON text, ``extra_info``; for preferences two conversations.

Calls have no ids: results belong to the calls before them, in order. ``loss_weight`` says whether a message carries
loss; a weight other than 0 and 1 is kept with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from agentmill.schemas.config import Config
from agentmill.schemas.format import FormatError, Origin, Raw, Read, Written, parse
from agentmill.schemas.formats.differences import differences
from agentmill.schemas.formats.openai import take_messages
from agentmill.schemas.formats.pairs import Pair, common, pair_losses, pair_remarks, paired
from agentmill.schemas.messages.calls import link_remarks, named_call
from agentmill.schemas.messages.conversation import Conversation, Flag, Layout, key, layout, to_trajectory
from agentmill.schemas.messages.parts import REASONING
from agentmill.schemas.messages.reader import MessageReader
from agentmill.schemas.messages.surface_text import Style, dumped, style_of
from agentmill.schemas.messages.tools import read_tools, write_tools
from agentmill.schemas.messages.writer import MessageWriter, WrittenMessage, in_order_of_calls
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Trajectory

ROLES = ("system", "user", "assistant", "tool")
_USUAL = ["reasoning", "text", "tool_call"]
_OPENAI = frozenset({"tool_calls", "function_call", "tool_call_id", *REASONING})


class PartsReader:
    """Messages of one record to OpenAI messages, each with notes for itself and for each of its calls."""

    def __init__(self) -> None:
        self.style: Style | None = None

    def read(self, messages: Any) -> list[tuple[JsonObject, JsonObject, list[JsonObject]]]:
        """Raises ``FormatError``: ``invalid``, ``unknown_role``, ``unknown_part``, ``unknown_call``."""
        if not isinstance(messages, list):
            raise FormatError("invalid", f"expected a list of messages, got {messages!r:.60}")
        return [self._read(message, place) for place, message in enumerate(messages)]

    def _read(self, message: Any, place: int) -> tuple[JsonObject, JsonObject, list[JsonObject]]:
        parts = message.get("content") if isinstance(message, dict) else None
        if not isinstance(parts, list) or any(message.get(name) is not None for name in _OPENAI):
            raise FormatError("invalid", f"message {place} is {message!r:.60}, expected a role and a list of parts")
        if message.get("role") not in ROLES:
            known = ", ".join(ROLES)
            raise FormatError("unknown_role", f"message {place} is of role {message.get('role')!r:.60}; known: {known}")
        for part in parts:
            if not isinstance(part, dict) or not isinstance(part.get("value"), str):
                raise FormatError("unknown_part", f"expected a part with a value that is a text, got {part!r:.80}")
        if message["role"] == "assistant":
            return self._assistant(message, parts)
        plain = len(parts) == 1 and parts[0].get("type") == "text" and len(parts[0]) == 2
        return {**message, "content": parts[0]["value"] if plain else list(map(_to_openai, parts))}, {}, []

    def _assistant(
        self, message: JsonObject, parts: list[JsonObject]
    ) -> tuple[JsonObject, JsonObject, list[JsonObject]]:
        kinds = [part.get("type") for part in parts]
        if unknown := [kind for kind in kinds if kind not in _USUAL]:
            raise FormatError(
                "unknown_part", f"the assistant message has a part of type {unknown[0]!r:.60}; known: {_USUAL}"
            )
        by_kind = {kind: [part["value"] for part in parts if part["type"] == kind] for kind in _USUAL}
        result = {**message, "content": "".join(by_kind["text"]) if by_kind["text"] else None}
        if by_kind["reasoning"]:
            result[REASONING[0]] = "".join(by_kind["reasoning"])
        calls = [self._call(value) for value in by_kind["tool_call"]]
        if calls:
            result["tool_calls"] = [{"type": "function", "function": function} for function, _ in calls]
        usual = [kind for kind in _USUAL[:2] if by_kind[kind]] + ["tool_call"] * len(calls)
        note = (
            {} if kinds == usual and all(len(part) == 2 for part in parts) else {"outline": list(map(_outline, parts))}
        )
        return result, note, [note for _, note in calls]

    def _call(self, text: str) -> tuple[JsonObject, JsonObject]:
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            value = None
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            raise FormatError("unknown_call", f"expected a call as JSON text, got {text!r:.80}")
        function = named_call(value)
        # One style is kept for the record; calls in another are kept with their text.
        if self.style is None:
            self.style = style_of(text, value)
        return function, {} if dumped(function, self.style or "spaced") == text else {"value": text}


class PartsWriter:
    """OpenAI messages of one record to those of LLaMA-Factory."""

    def __init__(self, layout: Layout) -> None:
        self.spelling = layout.spelling
        self.style: Style = layout.spelling.get("value", "spaced")

    def write(self, written: Sequence[WrittenMessage]) -> list[JsonObject]:
        """The messages."""
        return [self._write(dict(each.message), each.start) for each in in_order_of_calls(written)]

    def _write(self, message: JsonObject, start: int) -> JsonObject:
        message.pop("tool_call_id", None)
        # LLaMA-Factory has no developer, which is OpenAI's later name for the system.
        message["role"] = "system" if message["role"] == "developer" else message["role"]
        content = message["content"]
        if message["role"] != "assistant":
            parts = (
                [{"type": "text", "value": content}] if isinstance(content, str) else list(map(_from_openai, content))
            )
            return {**message, "content": parts}
        by_kind = {"reasoning": message.pop(REASONING[0], None), "text": content}
        calls = [self._call(call, start + place) for place, call in enumerate(message.pop("tool_calls", ()))]
        outline = self.spelling.get(key(start), {}).get("outline")
        return {**message, "content": _parts(by_kind, calls, _plain(by_kind, calls) if outline is None else outline)}

    def _call(self, call: JsonObject, index: int) -> str:
        note = self.spelling.get(key(index), {})
        return str(note["value"]) if "value" in note else dumped(call["function"], self.style)


def _outline(part: JsonObject) -> JsonObject:
    """A part with the length of its value in the place of it."""
    return {**part, "value": len(part["value"])}


def _plain(by_kind: dict[str, str | None], calls: list[str]) -> list[JsonObject]:
    texts = [{"type": kind, "value": len(text)} for kind, text in by_kind.items() if text is not None]
    return texts + [{"type": "tool_call", "value": len(call)} for call in calls]


def _parts(by_kind: dict[str, str | None], calls: list[str], outline: list[JsonObject]) -> list[JsonObject]:
    rest = {"reasoning": by_kind["reasoning"] or "", "text": by_kind["text"] or "", "tool_call": "".join(calls)}
    parts = []
    for entry in outline:
        kind, length = entry["type"], entry["value"]
        parts.append({**entry, "value": rest[kind][:length]})
        rest[kind] = rest[kind][length:]
    return parts


def _to_openai(part: JsonObject) -> JsonObject:
    rest = {name: value for name, value in part.items() if name != "value"}
    return {**rest, ("text" if part.get("type") == "text" else str(part.get("type"))): part["value"]}


def _from_openai(part: JsonObject) -> JsonObject:
    name = part["type"]
    value = part[name]
    rest = {field: each for field, each in part.items() if field != name}
    return {**rest, "value": value["url"] if isinstance(value, dict) else value}


CONVERTER_VERSION = "1"
NAME = "llamafactory"
WEIGHT = Flag("loss_weight", 0.0, 1.0)
SIDES = ("chosen_messages", "rejected_messages")


class LlamaFactory(Config):
    """Conversations and pairs of them as LLaMA-Factory v1 keeps them."""

    flag: ClassVar[Flag] = WEIGHT

    def read(self, raw: Raw, origin: Origin) -> Read:
        """One conversation, or two: the chosen one, and the rejected one with it. Raises ``FormatError``.

        Reasons: those of ``parse``; ``invalid`` for messages that are missing or broken; ``unknown_role``;
        ``unknown_part``; ``unknown_call``.
        """
        row = parse(raw)
        tools, note, losses = read_tools(row.pop("tools", None), "spaced")
        sides = [row.pop(side) for side in SIDES] if all(isinstance(row.get(side), list) for side in SIDES) else []
        conversation = _conversation(sides[0] if sides else take_messages(row, NAME))
        if note:
            conversation.spelling["tools"] = note
        run = to_trajectory(conversation, raw, origin, NAME, CONVERTER_VERSION, row, tools=tools)
        remarks = conversation.remarks + link_remarks(run.content, tools)
        if not sides:
            return Read(run, losses, remarks=remarks)
        other = _conversation(sides[1])
        shared = common(*sides)
        pair = paired(run, other, NAME, other.starts[shared] if shared < len(other.starts) else len(other.content))
        return Read(pair.chosen, losses, (pair.rejected,), remarks + pair_remarks(other, pair))

    def write(self, trajectory: Trajectory) -> Written:
        """One conversation."""
        document = _document(trajectory, {"messages": _messages(trajectory)})
        # Losses are what a reader misses, which holds whatever way this writer took.
        back = self.read(msgspec.json.encode(document), Origin("")).trajectory
        return Written(document, differences(trajectory, back, NAME))

    def write_pair(self, chosen: Trajectory, rejected: Trajectory) -> Written:
        """One row of two conversations. Raises ``FormatError`` (``tied_pair``)."""
        sides = [_messages(chosen), _messages(rejected)]
        if sides[0] == sides[1] and not layout(chosen, NAME).side:
            raise FormatError("tied_pair", "the better and the worse run are the same")
        document = _document(chosen, dict(zip(SIDES, sides, strict=True)))
        back = self.read(msgspec.json.encode(document), Origin(""))
        return Written(document, pair_losses(Pair(chosen, rejected), back, NAME))


def _conversation(given: Any) -> Conversation:
    reader = PartsReader()
    found = reader.read(given)
    conversation = MessageReader("object", WEIGHT).read([message for message, _, _ in found])
    for start, (_, note, calls) in zip(conversation.starts, found, strict=True):
        for index, each in [(start, note), *((start + place, call) for place, call in enumerate(calls))]:
            if each:
                conversation.note(index, **each)
    if reader.style not in (None, "spaced"):
        conversation.spelling["value"] = reader.style
    return conversation


def _messages(trajectory: Trajectory) -> list[JsonObject]:
    held = layout(trajectory, NAME)
    return PartsWriter(held).write(MessageWriter(held, "object", WEIGHT).write(trajectory))


def _document(trajectory: Trajectory, messages: JsonObject) -> JsonObject:
    held = layout(trajectory, NAME)
    tools = write_tools(trajectory.tools, held.spelling.get("tools", {}), "spaced")
    return {**held.row, **messages, **({} if tools is None else {"tools": tools})}
