"""When two steps do the same, and when the same was said before them.

How a thing is written down does not count: neither ids of calls, nor the order of arguments, nor white space around a
text. Of what is done, thoughts do not count either; of what was said before, they do, since the model reads them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec

from schemas.ids import digest
from schemas.rows import Message, MessageCall
from schemas.trajectory import Action, AnyAction, AnyItem, ApiAction, CodeAction


def done(content: Sequence[AnyItem], items: Sequence[int]) -> str:
    """Digest of what the actions ``items`` of one message do."""
    actions = [content[index] for index in items]
    return digest("done", [_deed(action) for action in actions if isinstance(action, Action)])


def said_before(tools: str | None, messages: Sequence[Message]) -> list[str]:
    """Digest of what precedes each message, the tools included, and at the end of what precedes a next one."""
    plain = map(_plain, messages)
    return list(itertools.accumulate(plain, lambda before, message: digest(before, message), initial=digest(tools)))


def _deed(action: AnyAction) -> list[Any]:
    if isinstance(action, ApiAction):
        return ["call", action.function, action.kwargs if action.raw_arguments is None else action.raw_arguments]
    if isinstance(action, CodeAction):
        return ["code", action.language, action.content.strip()]
    return ["text", action.content.strip()]


def _plain(message: Message) -> list[Any]:
    calls = [[call.name, _arguments(call)] for call in message.tool_calls]
    return [message.role, message.name, (message.content or "").strip(), message.reasoning_content, calls]


def _arguments(call: MessageCall) -> Any:
    try:
        return msgspec.json.decode(call.arguments)
    except (ValueError, RecursionError):
        return call.arguments
