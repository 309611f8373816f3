"""``<function=name><parameter=key>value</parameter></function>``, as OpenHands, SWE-agent and Qwen3-Coder write it.

Values are texts and stay as they are: ``01`` is ``"01"``, indentation is kept. Only the line breaks right inside the
tags, which stand around values of several lines, are no part of a value. A ``</parameter>`` inside a value is taken for
its end only where the next parameter, or the end of the call, follows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from schemas.config import Config
from schemas.formats.dialects.dialect import Block, Spoken, lines, unsayable, with_prose
from schemas.trajectory import Action, ApiAction, CodeAction

_OPENING = re.compile(r"<function=([^>\n]+)>")
_TAG = "<tool_call>"
_END = "</parameter>"
_NEXT = re.compile(r"\s*(?:<parameter=([^>\n]+)>|</function>)")
_WRAPPER = re.compile(r"\s*</tool_call>")


class FunctionXml(Config):
    """Calls as ``<function=…>`` with a tag per argument; several in a text are parallel calls."""

    def read(self, text: str) -> Spoken | None:
        """The calls; one that is cut off, or names a parameter twice, stays prose."""
        return with_prose(text, _blocks(text)) if "<function=" in text else None

    def compose(self, actions: Sequence[Action]) -> str:
        """There are words for arguments that are texts, and for no others."""
        return lines(actions, [_call(action) for action in actions])


def _blocks(text: str) -> Iterator[Block]:
    done = 0
    for opening in _OPENING.finditer(text):
        if opening.start() < done:
            continue
        kwargs: dict[str, str] = {}
        count = 0
        after = _NEXT.match(text, opening.end())
        while after and after[1]:
            end, following = _value_end(text, after.end())
            if following is None:
                break
            kwargs[after[1]] = _value(text, after.end(), end)
            after = following
            count += 1
        if after and not after[1] and count == len(kwargs):
            start, end = _with_wrapper(text, opening.start(), after.end(), done)
            done = end
            yield Block(start, end, ApiAction(function=opening[1], kwargs=kwargs))


def _value_end(text: str, position: int) -> tuple[int, re.Match[str] | None]:
    """Where the value that starts at ``position`` ends, and the tag after it; no tag if it does not end."""
    end = text.find(_END, position)
    following = None
    while end >= 0 and (following := _NEXT.match(text, end + len(_END))) is None:
        end = text.find(_END, end + len(_END))
    return end, following


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
    if action.raw_arguments is not None or not all(isinstance(value, str) for value in action.kwargs.values()):
        raise unsayable(f"arguments of {action.function!r} are no texts")
    parameters = [f"<parameter={name}>{_outside(value)}</parameter>\n" for name, value in action.kwargs.items()]
    return f"<function={action.function}>\n{''.join(parameters)}</function>"


def _outside(value: str) -> str:
    return f"\n{value}\n" if "\n" in value else value
