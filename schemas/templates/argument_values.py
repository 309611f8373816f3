"""Where a chat template shows the values of a call's arguments, so that they can carry no loss, or all of it.

Templates write arguments in many ways: as JSON, in XML, with their own escapes. So values are found by rendering the
conversation once more with other values in their places: what differs are the values. Where that leaves open which text
belongs to which value, or a template shows the rest otherwise, too, the turn is rendered once more for each value.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import count
from typing import Any

import msgspec

from agentmill.schemas.chat import decoded_json
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.rows import Message, MessageCall
from agentmill.schemas.templates.rendering import ChatTemplate, Ranges, Rendered, TemplateError, texts

_LETTERS = "QXZ"
"""No escape of JSON or HTML begins or ends with one of these."""

FIRST_NUMBER = 9_000_000_000
"""Marks in the place of numbers begin with it, so that none is part of another."""


def all_value_ranges(
    messages: Sequence[Message], tools: list[JsonObject] | None, template: ChatTemplate, rendered: Sequence[Rendered]
) -> dict[int, Ranges]:
    """As ``value_ranges``, of each trained message with another loss on arguments; ``rendered`` are its texts."""
    turns = {index: each.text[start:end] for each in rendered for index, (start, end) in each.spans.items()}
    sought = [index for index in sorted(turns) if messages[index].argument_loss != "trained"]
    if not sought:
        return {}
    marked, marks = _marked(messages, sought)
    try:
        again = texts(marked, tools, template)
    # A template may refuse values of its own choice.
    except TemplateError:
        again = []
    shown = {index: each.text[start:end] for each in again for index, (start, end) in each.spans.items()}
    found: dict[int, Ranges] = {}
    for index in sought:
        ranges = _aligned(turns[index], shown[index], marks[index]) if index in shown else None
        found[index] = value_ranges(messages, index, tools, template, turns[index]) if ranges is None else ranges
    return found


def _marked(messages: Sequence[Message], places: Sequence[int]) -> tuple[list[Message], dict[int, list[str]]]:
    """The messages with a mark in the place of each value of those at ``places``, all different, and these marks."""
    marked, marks = list(messages), dict[int, list[str]]()
    numbers = count(FIRST_NUMBER)
    for place in places:
        calls, marks[place] = list[MessageCall](), []
        for call in messages[place].tool_calls:
            # That they are an object is checked where the turn is rendered.
            values = {name: _mark(value, next(numbers)) for name, value in decoded_json(call.arguments).items()}
            calls.append(msgspec.structs.replace(call, arguments=msgspec.json.encode(values).decode()))
            marks[place] += map(str, values.values())
        marked[place] = msgspec.structs.replace(messages[place], tool_calls=calls)
    return marked, marks


def _mark(value: Any, number: int) -> str | int:
    # Texts and other values are quoted and escaped in different ways.
    return f"{_LETTERS}{number}{_LETTERS}" if isinstance(value, str) else number


def _aligned(turn: str, marked: str, marks: Sequence[str]) -> Ranges | None:
    """The ranges in ``turn`` of what has ``marks`` in its place in ``marked``; ``None`` where these are not certain."""
    if not marks:
        return () if turn == marked else None
    if any(marked.count(mark) != 1 for mark in marks):
        return None
    places = sorted((marked.index(mark), len(mark)) for mark in marks)
    ends = [0, *(place + size for place, size in places)]
    begins = [*(place for place, _ in places), len(marked)]
    # What the template writes around the values; the turn has the same.
    opening, *between, closing = [marked[end:begin] for end, begin in zip(ends, begins, strict=True)]
    if len(turn) < len(opening) + len(closing) or not (turn.startswith(opening) and turn.endswith(closing)):
        return None
    start, text = len(opening), turn[len(opening) : len(turn) - len(closing)]
    borders = _borders(text, between)
    # From the other side: a value may hold what the template writes between two values.
    backwards = _borders(text[::-1], [part[::-1] for part in reversed(between)])
    mirrored = [(len(text) - end, len(text) - begin) for begin, end in reversed(backwards)]
    if len(borders) < len(between) or borders != mirrored:
        return None
    stops = [0, *(place for border in borders for place in border), len(text)]
    ranges = zip(stops[::2], stops[1::2], strict=True)
    return tuple((start + begin, start + end) for begin, end in ranges if begin < end)


def _borders(text: str, parts: Sequence[str]) -> list[tuple[int, int]]:
    """Where each of ``parts`` is in ``text``, the first place after the part before it; shorter where one is not."""
    found: list[tuple[int, int]] = []
    position = 0
    for part in parts:
        place = text.find(part, position)
        if place < 0:
            break
        position = place + len(part)
        found.append((place, position))
    return found


def value_ranges(
    messages: Sequence[Message], index: int, tools: list[JsonObject] | None, template: ChatTemplate, turn: str
) -> Ranges:
    """The ranges in ``turn``, the text of the trained message at ``index``, that are values of arguments, in order.

    Quotes around a text are no part of it; a list or an object is one value. Raises ``TemplateError`` where the
    template shows a value twice, not at all, or otherwise than alone.
    """
    before = [msgspec.structs.replace(message, train=False) for message in messages[:index]]
    calls = messages[index].tool_calls

    def shown(given: Sequence[MessageCall]) -> str:
        message = msgspec.structs.replace(messages[index], tool_calls=list(given), train=True)
        (rendered,) = texts([*before, message], tools, template)
        start, end = rendered.spans[index]
        return rendered.text[start:end]

    plain = shown(calls)
    found = []
    for number, call in enumerate(calls):
        # That they are an object is checked where the turn is rendered.
        arguments: JsonObject = decoded_json(call.arguments)
        for name, value in arguments.items():
            other = _other(value)
            changed = msgspec.json.encode({**arguments, name: other}).decode()
            replaced = msgspec.structs.replace(call, arguments=changed)
            again = shown([*calls[:number], replaced, *calls[number + 1 :]])
            start, end = _difference(plain, again)
            if again[start : len(again) - (len(plain) - end)] != str(other):
                raise TemplateError(
                    f"the chat template does not show the argument {name!r} of {call.name!r} in assistant message"
                    f" {index} as one text, so that it cannot be told from the rest of the call"
                )
            found += [(start, end)] if start < end else []
    if found and not turn.startswith(plain[: found[-1][1]]):
        raise TemplateError(f"the chat template shows assistant message {index} otherwise where it is the last one")
    return tuple(found)


def _other(value: Any) -> str | int:
    """A value of the same kind that begins and ends with another character, however ``value`` is written."""
    if isinstance(value, str):
        return next(letter for letter in _LETTERS if letter not in (value[:1], value[-1:]))
    written = msgspec.json.encode(value).decode()
    return next(digit for digit in range(1, 10) if str(digit) not in (written[0], written[-1]))


def _difference(one: str, other: str) -> tuple[int, int]:
    """The range of ``one`` in which ``other`` differs."""
    start = common_length(one, other)
    return start, len(one) - common_length(one[start:][::-1], other[start:][::-1])


def common_length(one: str, other: str) -> int:
    """How many characters two texts share from the start on."""
    # Slices are compared in C, of which a walk over characters is far.
    return bisect_left(range(min(len(one), len(other))), True, key=lambda end: one[: end + 1] != other[: end + 1])
