"""The turns of ShareGPT, as OpenAI messages and back.

A ``function_call`` turn holds the JSON of a call, or of a list of calls, and no ids; reasoning comes before it, and
before any answer, as ``<think>`` text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from agentmill.schemas.format import FormatError, Losses, Remarks
from agentmill.schemas.messages.calls import named_call
from agentmill.schemas.messages.conversation import Flag, Layout, Text, key
from agentmill.schemas.messages.parts import REASONING
from agentmill.schemas.messages.surface_text import Style, dumped, style_of
from agentmill.schemas.messages.writer import WrittenMessage, in_order_of_calls
from agentmill.schemas.records.record import JsonObject

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
LOSS_FIELD = "loss"
LOSS = Flag(LOSS_FIELD, False, True)
"""The field of a turn that says whether it is trained on."""
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
        style = {"value": self.style} if self.style not in (None, "spaced") else {}
        return {**_run_spelling(self.names, self.aliases), **style}

    def _read(self, turn: Any, place: int) -> tuple[JsonObject, JsonObject]:
        if not isinstance(turn, dict):
            raise FormatError("invalid", f"turn {place} is {turn!r:.60}, expected an object")
        if self.names is None:
            self.names = Names("role", "content") if turn.get("from") is None and turn.get("role") else Names()
        by, text_field = self.names
        speaker = turn.get(by)
        kind = KINDS.get(speaker) if isinstance(speaker, str) else None
        if speaker is None or kind is None:
            raise FormatError("unknown_role", f"turn {place} is from {speaker!r:.60}; known: {', '.join(KINDS)}")
        note: JsonObject = {}
        if self.aliases.setdefault(kind, speaker) != speaker:
            note["from"] = speaker
        # Taking one of the two would drop the other silently.
        if by != "role" and not (turn.get("role") is None and turn.get("content") is None):
            raise FormatError("invalid", f"turn {place} has fields of two formats: {', '.join(turn)}")
        message: JsonObject = {"role": "assistant" if kind == "function_call" else kind}
        for name, value in turn.items():
            if name == text_field:
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
        functions = [named_call(call) for call in calls]
        message["content"] = None
        message["tool_calls"] = [{"type": "function", "function": function} for function in functions]
        if reasoning is not None:
            message[REASONING[0]] = reasoning
        # One style is kept for the record; calls in another are kept with their text.
        if self.style is None:
            self.style = style_of(body, value)
        plain = functions[0] if len(functions) == 1 else functions
        return {} if body == dumped(plain, self.style or "spaced") else {"value": body}


def read_texts(turns: Sequence[Any]) -> tuple[list[Text], JsonObject] | None:
    """The messages of turns that are all texts of agent and user, and notes on the whole run; ``None`` for others.

    Most data sets have no other turns, and a ``TurnReader`` takes three times as long for these.
    """
    first = turns[0] if turns else None
    if type(first) is not dict:
        return None
    names = Names() if "from" in first else Names("role", "content")
    by, text_field = names
    texts: list[Text] = []
    aliases: dict[str, str] = {}
    for turn in turns:
        if type(turn) is not dict or len(turn) - (LOSS_FIELD in turn) != 2:
            return None
        text, speaker, train = turn.get(text_field), turn.get(by), turn.get(LOSS_FIELD)
        if type(text) is not str or type(speaker) is not str:
            return None
        kind = KINDS.get(speaker)
        if kind == "assistant" and (train is None or type(train) is bool) and not text.startswith(_OPEN):
            texts.append((text, True, train))
        elif kind == "user" and train is None:
            texts.append((text, False, None))
        else:
            return None
        if aliases.setdefault(kind, speaker) != speaker:
            return None
    return texts, _run_spelling(names, aliases)


def _run_spelling(names: Names | None, aliases: Mapping[str, str]) -> JsonObject:
    """Notes on the names of a run that are not the usual ones."""
    unusual = {kind: name for kind, name in aliases.items() if USUAL[kind] != name}
    written: JsonObject = {"names": list(names)} if names not in (None, Names()) else {}
    return {**written, "roles": unusual} if unusual else written


class TurnWriter:
    """Messages of one record to turns."""

    def __init__(self, layout: Layout) -> None:
        self.spelling = layout.spelling
        self.names = Names(*layout.spelling.get("names", Names()))
        self.aliases = {**USUAL, **layout.spelling.get("roles", {})}
        self.style: Style = layout.spelling.get("value", "spaced")

    def write(self, written: Sequence[WrittenMessage]) -> list[JsonObject]:
        """The turns; a message with a text and calls becomes two."""
        return [turn for each in in_order_of_calls(written) for turn in self._write(dict(each.message), each.start)]

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
        flag = {LOSS_FIELD: message[LOSS_FIELD]} if LOSS_FIELD in message else {}
        opening = []
        if content:
            # The model thought before it wrote the text.
            thought, reasoning = (reasoning, None) if isinstance(content, str) else (None, reasoning)
            opening = [self._turn("assistant", {}, with_thought(thought, content), flag)]
        return [*opening, self._turn("function_call", note, with_thought(reasoning, body), message)]

    def _turn(self, kind: str, note: JsonObject, content: Any, rest: JsonObject) -> JsonObject:
        speaker = note.get("from", self.aliases[kind])
        text_field = {} if content is _ABSENT else {self.names.text: content}
        return {self.names.speaker: speaker, **text_field, **rest}


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


_ANSWERING = ("assistant", "function_call")
_SYSTEM = ("system", "developer")


class LoadableOrder:
    """Writes turns so that none is skipped. ``merged`` counts what this changed, by ``order.`` and what was done.

    ``joined_turns`` went into a neighbour of their side, without their ``joined_fields``; ``joined_loss`` are those
    that lost their loss there, as the neighbour has none; ``text_in_reasoning`` is text that stood before a call and
    is in its ``<think>``; ``call_in_text`` are calls before a text, written into it in ``<tool_call>``;
    ``turns_after_the_last_answer`` are left out; an ``empty_turn`` was put before a model that speaks first;
    ``role`` are names of who speaks that differ from the others of their kind, or system turns in between.
    """

    def __init__(self, names: Names, aliases: Mapping[str, str], style: Style) -> None:
        self._names = names
        self._aliases = aliases
        self._style: Style = style
        self.merged = Losses()

    def write(self, turns: Sequence[JsonObject]) -> list[JsonObject]:
        """``turns`` in that order; those that have it already stay as they are.

        Raises ``FormatError``: ``no_answer`` if the model says nothing, ``turn_order`` for turns that would have to be
        joined and are no texts.
        """
        opening = [self._as(turns[0], "system")] if turns and self._kind(turns[0]) in _SYSTEM else []
        sides = groupby(turns[len(opening) :], lambda turn: self._kind(turn) in _ANSWERING)
        groups = [(answers, list(group)) for answers, group in sides]
        # LLaMA-Factory pairs each message with the answer after it, and these have none.
        if groups and not groups[-1][0]:
            self._count("turns_after_the_last_answer", len(groups.pop()[1]))
        if not groups:
            raise FormatError("no_answer", "no assistant message has content, so LLaMA-Factory has nothing to train on")
        # The same pairing needs a message before the first answer.
        if groups[0][0]:
            self._count("empty_turn")
            opening.append({self._names.speaker: self._aliases["user"], self._names.text: ""})
        return [
            *opening,
            *(self._answered(group) if answers else self._user_message(group) for answers, group in groups),
        ]

    def _user_message(self, group: list[JsonObject]) -> JsonObject:
        """The message to the model: a result, if one is among it."""
        kinds = [self._kind(turn) for turn in group]
        turn = self._as(group[0], "tool" if "tool" in kinds else "user")
        if len(group) == 1:
            return turn
        self._count_joined(group[1:])
        turn = self._with_loss(turn, group, by_default=False)
        values = [each.get(self._names.text) or "" for each in group]
        if any(isinstance(value, list) for value in values):
            return {**turn, self._names.text: [part for value in values for part in _parts(value)]}
        return {**turn, self._names.text: "\n".join(map(self._text, group))}

    def _answered(self, group: list[JsonObject]) -> JsonObject:
        """What the model says: calls, with what it says before as their reasoning, or else a text with calls in it."""
        kinds = [self._kind(turn) for turn in group]
        turn = self._as(group[-1], kinds[-1])
        if len(group) == 1:
            return turn
        self._count_joined(group[:-1])
        turn = self._with_loss(turn, group, by_default=True)
        first = kinds.index("function_call") if "function_call" in kinds else len(kinds)
        if first == len(kinds):
            return {**turn, self._names.text: "\n".join(map(self._text, group))}
        if "assistant" in kinds[first:]:
            self._count("call_in_text", kinds.count("function_call"))
            return {**self._as(turn, "assistant"), self._names.text: "\n".join(map(self._hermes, group))}
        self._count("text_in_reasoning", first)
        thoughts = [part for turn in group[:first] for part in without_thought(self._text(turn)) if part]
        calls: list[Any] = []
        for each in group[first:]:
            thought, called = self._calls(each)
            thoughts += [thought] if thought else []
            calls += called
        body = dumped(calls[0] if len(calls) == 1 else calls, self._style)
        return {**turn, self._names.text: with_thought("\n".join(thoughts) or None, body)}

    def _count_joined(self, turns: Sequence[JsonObject]) -> None:
        """Count turns that go into a neighbour, and what else they have."""
        self._count("joined_turns", len(turns))
        own = {self._names.speaker, self._names.text, LOSS_FIELD}
        if fields := sum(len(turn.keys() - own) for turn in turns):
            self._count("joined_fields", fields)

    def _with_loss(self, turn: JsonObject, group: Sequence[JsonObject], by_default: bool) -> JsonObject:
        """``turn``, made of ``group``, without loss if one of these has none; unmarked ones have it ``by_default``."""
        flags = [each.get(LOSS_FIELD) for each in group]
        carried = [by_default if (train := LOSS.read(flag)) is None else train for flag in flags]
        if all(carried) or not any(carried):
            return turn
        # What must not be trained counts for more than what could be.
        self._count("joined_loss", sum(carried))
        return {**turn, LOSS_FIELD: False}

    def _hermes(self, turn: JsonObject) -> str:
        if self._kind(turn) == "assistant":
            return self._text(turn)
        thought, calls = self._calls(turn)
        text_field = "\n".join(f"<tool_call>\n{dumped(call, self._style)}\n</tool_call>" for call in calls)
        return with_thought(thought, text_field)

    def _calls(self, turn: JsonObject) -> tuple[str | None, list[Any]]:
        thought, body = without_thought(self._text(turn))
        try:
            value = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise FormatError("turn_order", f"a call that has to be joined is no JSON: {body!r:.60}") from error
        return thought, value if isinstance(value, list) else [value]

    def _text(self, turn: JsonObject) -> str:
        text = turn.get(self._names.text) or ""
        if not isinstance(text, str):
            raise FormatError("turn_order", f"turns of one side follow each other, and one is no text: {text!r:.60}")
        return text

    def _kind(self, turn: JsonObject) -> str:
        return KINDS[turn[self._names.speaker]]

    def _as(self, turn: JsonObject, kind: str) -> JsonObject:
        """``turn`` said by ``kind``, under the name that this has in the run."""
        speaker = self._aliases[kind]
        if turn[self._names.speaker] == speaker:
            return turn
        self._count("role")
        return {**turn, self._names.speaker: speaker}

    def _count(self, what: str, n: int = 1) -> None:
        if n:
            self.merged[f"order.{what}"] += n


def _parts(value: Any) -> list[Any]:
    """What a turn with images says, in parts as OpenAI has them."""
    return value if isinstance(value, list) else [{"type": "text", "text": value}]
