"""``<function=name><parameter=key>value</parameter></function>``, as OpenHands, SWE-agent and Qwen3-Coder write it.

Values are texts and stay as they are: ``01`` is ``"01"``, indentation is kept. Only the line breaks right inside the
tags, which are around values of several lines, are no part of a value. A ``</parameter>`` inside a value is taken for
its end only where the next parameter, or the end of the call, follows.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from agentmill.schemas.dialects.options import DialectConfig, terminal_calls
from agentmill.schemas.dialects.tool_text import function_xml
from agentmill.schemas.messages.dialect import Block, ParsedText, lines, unsayable, with_prose
from agentmill.schemas.records.trajectory import Action, ApiAction, CodeAction

_FUNCTION = "<function="
_PARAMETER = "\n<parameter="
_CLOSING = "</parameter>"
_LAST = f"{_CLOSING}\n</function>"
# Bounded, as a model may repeat the beginning of a call without end.
_OPENING = re.compile(r"<function=([^<>\n]{1,200})>")
_TAG = "<tool_call>"
_NEXT = re.compile(r"\s*(?:<parameter=([^>\n]+)>|</function>)")
_END = re.compile(f"</parameter>{_NEXT.pattern}")
_WRAPPER = re.compile(r"\s*</tool_call>")


class FunctionXml(DialectConfig):
    """Calls as ``<function=…>`` with a tag per argument; several in a text are parallel calls."""

    terminal: list[str] = terminal_calls("finish")

    def read(self, text: str) -> ParsedText | None:
        """The calls; one that is cut off, or names a parameter twice, stays prose."""
        start = text.find(_FUNCTION)
        return None if start < 0 else _single(text, start) or with_prose(text, _blocks(text))

    def compose(self, actions: Sequence[Action]) -> str:
        """There are words for arguments that are texts, and for no others."""
        return lines(actions, [_call(action) for action in actions])


def _single(text: str, start: int) -> ParsedText | None:
    """The call from ``start`` to the end of a text, laid out as ``compose`` does it; ``None`` also where in doubt.

    Nearly all texts are so, but for line breaks inside the tags of a parameter: to find the tags takes a third of the
    time that patterns and composing take. The text is not cut before: of long ones, copies take as long as the search.
    """
    prose, stop = text[: max(start - 1, 0)], len(text) - len(_LAST)
    if not text.endswith(_LAST) or _TAG in prose or (start and (text[start - 1] != "\n" or _is_blank(prose))):
        return None
    end = text.find(">", start + len(_FUNCTION), stop)
    if end < 0:
        return None
    name, place = text[start + len(_FUNCTION) : end], end + 1
    kwargs: dict[str, str] = {}
    plainest = True
    while end != stop:
        end = text.find(_CLOSING, place, stop)
        end = stop if end < 0 else end
        tag = text.find(">", place, end)
        key = text[place + len(_PARAMETER) : tag]
        if tag < 0 or not key or key in kwargs or not text.startswith(_PARAMETER, place, end):
            return None
        kwargs[key] = value = _value(text, tag + 1, end)
        plainest = plainest and ("\n" in value) == (len(value) < end - tag - 1)
        place = end + len(_CLOSING)
    if not name or "\n" in "".join([name, *kwargs]):
        return None
    return ParsedText([ApiAction(function=name, kwargs=kwargs, description=prose or None)], plainest=plainest)


def _is_blank(text: str) -> bool:
    return not text or text.isspace()


def _blocks(text: str) -> Iterator[Block]:
    done, last = 0, text.rfind("</function>")
    # Found once, as each call would be searched for its own to the end of the text.
    ends = list(_END.finditer(text)) if last >= 0 else []
    for opening in _OPENING.finditer(text):
        if opening.start() < done:
            continue
        # What is never closed would be searched to the end of the text each time.
        if opening.end() > last:
            return
        found = _arguments(text, opening.end(), ends)
        if found is not None:
            kwargs, closed = found
            start, done = _with_wrapper(text, opening.start(), closed, done)
            yield Block(start, done, ApiAction(function=opening[1], kwargs=kwargs))


def _arguments(text: str, start: int, ends: Sequence[re.Match[str]]) -> tuple[dict[str, str], int] | None:
    """The parameters from ``start`` on, and where the call ends; ``None`` if it does not, or names one twice.

    ``ends`` are the ends of all parameters in the text.
    """
    kwargs: dict[str, str] = {}
    after = _NEXT.match(text, start)
    while after and after[1]:
        place = bisect_left(ends, after.end(), key=lambda end: end.start())
        if place == len(ends) or after[1] in kwargs:
            return None
        closing = ends[place]
        kwargs[after[1]] = _value(text, after.end(), closing.start())
        after = closing
    return (kwargs, after.end()) if after else None


def _with_wrapper(text: str, start: int, end: int, done: int) -> tuple[int, int]:
    """The span of a call and of the ``<tool_call>`` tags right around it, if there are any."""
    tag = text.rfind(_TAG, done, start)
    closing = _WRAPPER.match(text, end) if tag >= 0 and not text[tag + len(_TAG) : start].strip() else None
    return (tag, closing.end()) if closing else (start, end)


def _value(text: str, start: int, end: int) -> str:
    wrapped = end - start > 1 and text[start] == text[end - 1] == "\n"
    return text[start + 1 : end - 1] if wrapped else text[start:end]


def _call(action: Action) -> str | None:
    if not isinstance(action, ApiAction):
        if isinstance(action, CodeAction):
            raise unsayable("code is no tool call in this dialect")
        return None
    arguments: dict[str, str] = {}
    for name, value in action.kwargs.items():
        if not isinstance(value, str):
            raise unsayable(f"arguments of {action.function!r} are no texts")
        arguments[name] = value
    if action.raw_arguments is not None:
        raise unsayable(f"arguments of {action.function!r} are no texts")
    return function_xml(action.function, arguments)
