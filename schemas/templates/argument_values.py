"""Where a chat template shows the values of a call's arguments, so that they can carry no loss, or all of it.

Templates write arguments in many ways: as JSON, in XML, with their own escapes. So a value is found by rendering the
turn once more with another value in its place: what differs is the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import msgspec

from agentmill.schemas.chat import decoded_json
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.rows import Message, MessageCall
from agentmill.schemas.templates.rendering import ChatTemplate, Ranges, TemplateError, texts

_LETTERS = "QXZ"
"""No escape of JSON or HTML begins or ends with one of these."""


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
    if other.startswith(one):
        return len(one)
    return next(index for index, pair in enumerate(zip_longest(one, other)) if pair[0] != pair[1])
