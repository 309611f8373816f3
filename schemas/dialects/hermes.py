"""``<tool_call>`` around a JSON object with ``name`` and ``arguments``, as Hermes and Qwen2.5 models write it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

import msgspec

from agentmill.schemas.dialects.options import DialectConfig, terminal_calls
from agentmill.schemas.dialects.tool_text import TOOL_TEXTS
from agentmill.schemas.messages.calls import arguments_of, read_arguments
from agentmill.schemas.messages.dialect import Block, ParsedText, lines, unsayable, with_prose
from agentmill.schemas.messages.surface_text import dumped
from agentmill.schemas.records.rows import MessageCall
from agentmill.schemas.records.trajectory import Action, ApiAction, CodeAction

_OPENING = re.compile(r"<tool_call>\s*(?=\{)")
_CLOSING = re.compile(r"\s*</tool_call>")
_scan = json.JSONDecoder().raw_decode


class _Unnumbered(str):
    """A text whose lines are not counted: an error of ``json`` counts all before it, for each beginning of a call."""

    __slots__ = ()

    def count(self, *_given: object) -> int:
        return 0

    def rfind(self, *_given: object) -> int:
        return -1


class Hermes(DialectConfig):
    """Calls as JSON in ``<tool_call>`` tags; several in a text are parallel calls."""

    terminal: list[str] = terminal_calls("finish", "Finish")

    def read(self, text: str) -> ParsedText | None:
        """The calls; a tag around anything but an object with a ``name`` stays prose."""
        return with_prose(text, _blocks(text)) if "<tool_call>" in text else None

    def compose(self, actions: Sequence[Action]) -> str:
        """JSON as Python's ``json`` spaces it. There are no words for code."""
        return lines(actions, [_call(action) for action in actions])


def _blocks(text: str) -> Iterator[Block]:
    done, last = 0, text.rfind("</tool_call>")
    unnumbered = _Unnumbered(text)
    for opening in _OPENING.finditer(text):
        if opening.start() < done:
            continue
        # What is never closed would be searched to the end of the text each time.
        if opening.end() > last:
            return
        try:
            _, end = _scan(unnumbered, opening.end())
            call = msgspec.json.decode(text[opening.end() : end])
        except (ValueError, RecursionError):
            continue
        closing = _CLOSING.match(text, end)
        if closing and isinstance(call, dict) and isinstance(call.get("name"), str):
            kwargs, raw = read_arguments(arguments_of(call))
            done = closing.end()
            yield Block(opening.start(), done, ApiAction(function=call["name"], kwargs=kwargs, raw_arguments=raw))


def _call(action: Action) -> str | None:
    if isinstance(action, CodeAction):
        raise unsayable("code is no tool call in this dialect")
    if not isinstance(action, ApiAction):
        return None
    arguments = dumped(action.kwargs, "spaced") if action.raw_arguments is None else action.raw_arguments
    return TOOL_TEXTS["hermes"].call(MessageCall(name=action.function, arguments=arguments))
