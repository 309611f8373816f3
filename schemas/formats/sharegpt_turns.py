"""The turns of ShareGPT, as OpenAI messages and back.

A ``function_call`` turn holds the JSON of a call, or of a list of calls, and no ids; reasoning stands before it, and
before any answer, as ``<think>`` text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from schemas.formats.conversation import Layout, Text, key
from schemas.formats.format import FormatError, Remarks
from schemas.formats.json_text import Style, dumped, style_of
from schemas.formats.message_fields import REASONING
from schemas.formats.message_writing import Told
from schemas.record import JsonObject

KINDS = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "function_call": "function_call",
    "observation": "tool",
    "tool": "tool",
    "function": "tool",
    "function_response": "tool",
    "system": "system",
    "developer": "developer",
}
"""Who speaks, by the names in use."""

USUAL = {
    "user": "human",
    "assistant": "gpt",
    "function_call": "function_call",
    "tool": "observation",
    "system": "system",
    "developer": "developer",
}

_OURS = frozenset({"tool_calls", "function_call", "tool_call_id", *REASONING})
"""Fields that belong to OpenAI messages: a turn that has one is left as it is."""
_OPEN, _CLOSE = "<think>\n", "\n</think>\n\n"


class Names(NamedTuple):
    """The names of a turn's two fields."""

    speaker: str = "from"
    text: str = "value"


class TurnReader:
    """Turns of one record to messages. What is noted belongs to the run, or to the message of the same place."""

    def __init__(self) -> None:
        self.names: Names | None = None
        self.aliases: dict[str, str] = {}
        self.style: Style | None = None
        self.remarks: Remarks = Remarks()

    def read(self, turns: Sequence[Any]) -> list[tuple[JsonObject, JsonObject]]:
        """A message and its notes for each turn. Raises ``FormatError``: ``invalid``, ``unknown_role``."""
        return [self._read(turn, place) for place, turn in enumerate(turns)]

    def spelling(self) -> JsonObject:
        """Notes on the whole run: what is not as usual."""
        aliases = {kind: name for kind, name in self.aliases.items() if USUAL[kind] != name}
        names = {"names": list(self.names)} if self.names not in (None, Names()) else {}
        style = {"value": self.style} if self.style not in (None, "spaced") else {}
        return {**names, **({"roles": aliases} if aliases else {}), **style}

    def _read(self, turn: Any, place: int) -> tuple[JsonObject, JsonObject]:
        if not isinstance(turn, dict):
            raise FormatError("invalid", f"turn {place} is {turn!r:.60}, expected an object")
        if self.names is None:
            self.names = Names("role", "content") if "role" in turn and "from" not in turn else Names()
        by, said = self.names
        speaker = turn.get(by)
        kind = KINDS.get(speaker) if isinstance(speaker, str) else None
        if speaker is None or kind is None:
            raise FormatError("unknown_role", f"turn {place} is from {speaker!r:.60}; known: {', '.join(KINDS)}")
        note: JsonObject = {}
        if self.aliases.setdefault(kind, speaker) != speaker:
            note["from"] = speaker
        if by != "role" and ("role" in turn or "content" in turn):
            raise FormatError("invalid", f"turn {place} has fields of two formats: {', '.join(turn)}")
        message: JsonObject = {"role": "assistant" if kind == "function_call" else kind}
        for name, value in turn.items():
            if name == said:
                message["content"] = value
            elif value is not None and name != by:  # nulls fill up what only some turns of a table have
                message[name] = value
        content = message.get("content")
        if not _OURS.isdisjoint(turn) and any(turn.get(field) is not None for field in _OURS):
            note["turn"] = kind
        elif kind == "function_call":
            note |= self._call(message)
        elif kind == "assistant" and isinstance(content, str) and content.startswith(_OPEN):
            reasoning, text = without_thought(content)
            message |= {"content": text} if reasoning is None else {"content": text, REASONING[0]: reasoning}
        return message, note

    def _call(self, message: JsonObject) -> JsonObject:
        text = message.get("content")
        if not isinstance(text, str):
            raise FormatError("invalid", f"a function call is {text!r:.60}, expected JSON text")
        reasoning, body = without_thought(text)
        try:
            value = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError):
            value = None
        calls = value if isinstance(value, list) else [value]
        if not calls or not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
            self.remarks["invalid_call"] += 1
            return {"turn": "function_call"}
        functions = [
            {name: call[name] for name in ("name", "arguments") if call.get(name) is not None} for call in calls
        ]
        message["content"] = None
        message["tool_calls"] = [{"type": "function", "function": function} for function in functions]
        if reasoning is not None:
            message[REASONING[0]] = reasoning
        if self.style is None:
            self.style = style_of(body, value)
        plain = functions[0] if len(functions) == 1 else functions
        return {} if body == dumped(plain, self.style or "spaced") else {"value": body}


def read_texts(turns: Sequence[Any]) -> list[Text] | None:
    """The messages of turns that are all texts by the usual names, with nothing to be noted of them; else ``None``.

    Most data sets have no other turns, and a ``TurnReader`` takes three times as long for these.
    """
    texts = []
    for turn in turns:
        if type(turn) is not dict or len(turn) - ("loss" in turn) != 2:
            return None
        text, speaker, train = turn.get("value"), turn.get("from"), turn.get("loss")
        if type(text) is not str:
            return None
        if speaker == "gpt" and (train is None or type(train) is bool) and not text.startswith(_OPEN):
            texts.append(Text(text, True, train))
        elif speaker == "human" and train is None:
            texts.append(Text(text, False))
        else:
            return None
    return texts


class TurnWriter:
    """Messages of one record to turns."""

    def __init__(self, layout: Layout) -> None:
        self.spelling = layout.spelling
        self.names = Names(*layout.spelling.get("names", Names()))
        self.aliases = {**USUAL, **layout.spelling.get("roles", {})}
        self.style: Style = layout.spelling.get("value", "spaced")

    def write(self, told: Sequence[Told]) -> list[JsonObject]:
        """The turns; a message with a text beside its calls becomes two."""
        return [turn for each in told for turn in self._write(dict(each.message), each.start)]

    def _write(self, message: JsonObject, start: int) -> list[JsonObject]:
        note = self.spelling.get(key(start), {})
        kind = message.pop("role")
        if "turn" in note:
            return [self._turn(note["turn"], note, message.pop("content", _ABSENT), message)]
        message.pop("tool_call_id", None)
        calls = message.pop("tool_calls", None)
        reasoning = message.pop(REASONING[0], None)
        content = message.pop("content", _ABSENT)
        if calls is None:
            content = with_thought(reasoning, content) if isinstance(content, str) else content
            return [self._turn(kind, note, content, message)]
        functions = [call["function"] for call in calls]
        body = note.get("value") or dumped(functions[0] if len(functions) == 1 else functions, self.style)
        call = self._turn("function_call", note, with_thought(reasoning, body), message)
        return [call] if not content else [self._turn("assistant", {}, content, {}), call]

    def _turn(self, kind: str, note: JsonObject, content: Any, rest: JsonObject) -> JsonObject:
        speaker = note.get("from", self.aliases[kind])
        said = {} if content is _ABSENT else {self.names.text: content}
        return {self.names.speaker: speaker, **said, **rest}


_ABSENT = object()


def is_answer(turn: JsonObject, names: Names) -> bool:
    """Whether the model speaks."""
    return KINDS[turn[names.speaker]] in ("assistant", "function_call")


def with_thought(reasoning: str | None, text: str) -> str:
    """``text`` after the reasoning that led to it, if there is any."""
    return text if reasoning is None else f"{_OPEN}{reasoning}{_CLOSE}{text}"


def without_thought(text: str) -> tuple[str | None, str]:
    """Reasoning at the beginning of ``text``, and the rest."""
    if not text.startswith(_OPEN):
        return None, text
    end = text.find(_CLOSE, len(_OPEN))
    return (None, text) if end < 0 else (text[len(_OPEN) : end], text[end + len(_CLOSE) :])
