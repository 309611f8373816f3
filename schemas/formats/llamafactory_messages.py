"""Messages of LLaMA-Factory v1, as OpenAI messages and back.

A message is a list of parts ``{type, value}``; a ``tool_call`` part holds the JSON of a call, without an id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from schemas.formats.conversation import Layout, key
from schemas.formats.format import FormatError
from schemas.formats.json_text import Style, dumped, style_of
from schemas.formats.message_fields import REASONING
from schemas.formats.message_writing import Told
from schemas.record import JsonObject

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
        if not isinstance(parts, list) or message.keys() & _OPENAI:
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
            raise FormatError("unknown_part", f"the model says a part of type {unknown[0]!r:.60}; known: {_USUAL}")
        said = {kind: [part["value"] for part in parts if part["type"] == kind] for kind in _USUAL}
        result = {**message, "content": "".join(said["text"]) if said["text"] else None}
        if said["reasoning"]:
            result[REASONING[0]] = "".join(said["reasoning"])
        calls = [self._call(value) for value in said["tool_call"]]
        if calls:
            result["tool_calls"] = [{"type": "function", "function": function} for function, _ in calls]
        usual = [kind for kind in _USUAL[:2] if said[kind]] + ["tool_call"] * len(calls)
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
        function = {name: value[name] for name in ("name", "arguments") if value.get(name) is not None}
        if self.style is None:
            self.style = style_of(text, value)
        return function, {} if dumped(function, self.style or "spaced") == text else {"value": text}


class PartsWriter:
    """OpenAI messages of one record to those of LLaMA-Factory."""

    def __init__(self, layout: Layout) -> None:
        self.spelling = layout.spelling
        self.style: Style = layout.spelling.get("value", "spaced")

    def write(self, told: Sequence[Told]) -> list[JsonObject]:
        """The messages."""
        return [self._write(dict(each.message), each.start) for each in told]

    def _write(self, message: JsonObject, start: int) -> JsonObject:
        message.pop("tool_call_id", None)
        message["role"] = "system" if message["role"] == "developer" else message["role"]
        content = message["content"]
        if message["role"] != "assistant":
            parts = (
                [{"type": "text", "value": content}] if isinstance(content, str) else list(map(_from_openai, content))
            )
            return {**message, "content": parts}
        said = {"reasoning": message.pop(REASONING[0], None), "text": content}
        calls = [self._call(call, start + place) for place, call in enumerate(message.pop("tool_calls", ()))]
        outline = self.spelling.get(key(start), {}).get("outline")
        return {**message, "content": _parts(said, calls, _plain(said, calls) if outline is None else outline)}

    def _call(self, call: JsonObject, index: int) -> str:
        note = self.spelling.get(key(index), {})
        return str(note["value"]) if "value" in note else dumped(call["function"], self.style)


def _outline(part: JsonObject) -> JsonObject:
    """A part with the length of its value in the place of it."""
    return {**part, "value": len(part["value"])}


def _plain(said: dict[str, str | None], calls: list[str]) -> list[JsonObject]:
    texts = [{"type": kind, "value": len(text)} for kind, text in said.items() if text is not None]
    return texts + [{"type": "tool_call", "value": len(call)} for call in calls]


def _parts(said: dict[str, str | None], calls: list[str], outline: list[JsonObject]) -> list[JsonObject]:
    rest = {"reasoning": said["reasoning"] or "", "text": said["text"] or "", "tool_call": "".join(calls)}
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
