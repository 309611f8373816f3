"""The order of turns that LLaMA-Factory trains on: its loader skips a row that has another.

After the system turn it takes turns to the model (human, observation) and turns of the model (gpt, function_call) in
alternation, the last one of the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from schemas.formats.format import FormatError, Losses
from schemas.formats.json_text import Style, dumped
from schemas.formats.sharegpt_turns import KINDS, Names, with_thought, without_thought
from schemas.record import JsonObject

_ANSWERING = ("assistant", "function_call")
_SYSTEM = ("system", "developer")


class LoadableOrder:
    """Writes turns so that none is skipped. ``merged`` counts what this changed, by ``order.`` and what was done.

    ``joined_turns`` went into a neighbour of their side; ``text_in_reasoning`` is text that stood before a call and
    stands in its ``<think>``; ``call_in_text`` are calls before a text, written into it in ``<tool_call>``;
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
        if groups and not groups[-1][0]:
            self._count("turns_after_the_last_answer", len(groups.pop()[1]))
        if not groups:
            raise FormatError("no_answer", "the model says nothing, so LLaMA-Factory has nothing to train on")
        if groups[0][0]:
            self._count("empty_turn")
            opening.append({self._names.speaker: self._aliases["user"], self._names.text: ""})
        return [*opening, *(self._answered(group) if answers else self._asked(group) for answers, group in groups)]

    def _asked(self, group: list[JsonObject]) -> JsonObject:
        """What is said to the model: a result, if one is among it."""
        kinds = [self._kind(turn) for turn in group]
        turn = self._as(group[0], "tool" if "tool" in kinds else "user")
        if len(group) == 1:
            return turn
        self._count("joined_turns", len(group) - 1)
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
        self._count("joined_turns", len(group) - 1)
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

    def _hermes(self, turn: JsonObject) -> str:
        if self._kind(turn) == "assistant":
            return self._text(turn)
        thought, calls = self._calls(turn)
        said = "\n".join(f"<tool_call>\n{dumped(call, self._style)}\n</tool_call>" for call in calls)
        return with_thought(thought, said)

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
