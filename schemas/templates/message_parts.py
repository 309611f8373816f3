"""The parts of an assistant message (reasoning, content, calls), and whether a rendered text holds them."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from agentmill.schemas.chat import decoded_json
from agentmill.schemas.records.rows import Message
from agentmill.schemas.templates.prefix_texts import TemplateError

INLINE = re.compile(r"(<think>\s*)(.*?)(\s*</think>\s*)(.*)", re.DOTALL)
"""Content that begins with its reasoning, as many data sets have it; templates take it apart."""


def missing_part(message: Message, text: str, decoded: Callable[[str], str] | None = None) -> str | None:
    """The first part of an assistant message (reasoning, content, names of calls) that ``text`` does not hold.

    ``decoded`` is how tokens may have changed a part; ``text`` may hold it so instead.
    """
    missing = (part for part in _parts(message) if part not in text)
    return next((part for part in missing if decoded is None or decoded(part) not in text), None)


def missing_marked_part(message: Message, marked: Message, text: str) -> str | None:
    """The first part of ``message`` whose counterpart in ``marked`` is not in ``text``."""
    pairs = zip(_parts(message), _parts(marked), strict=True)
    return next((part for part, counterpart in pairs if counterpart not in text), None)


def _parts(message: Message) -> list[str]:
    return [*filter(None, reasoning_and_content(message)), *(call.name for call in message.tool_calls)]


def reasoning_and_content(message: Message) -> tuple[str, str]:
    """The reasoning and the content of a message, also where the one is written at the beginning of the other."""
    reasoning, content = (message.reasoning_content or "").strip(), (message.content or "").strip()
    inline = None if reasoning else INLINE.fullmatch(content)
    return (inline[2], inline[4]) if inline else (reasoning, content)


def with_reasoning_apart(message: Message) -> Message:
    """A message whose content begins with its reasoning, with that as ``reasoning_content``; others as they are."""
    reasoning, content = reasoning_and_content(message)
    if message.role != "assistant" or message.reasoning_content or not reasoning:
        return message
    return msgspec.structs.replace(message, reasoning_content=reasoning, content=content)


def after_content(message: Message, text: str) -> str:
    """What ``text`` has after the content of a message."""
    _, content = reasoning_and_content(message)
    return text[text.find(content) + len(content) :].strip()


def check_arguments(message: Message, index: int) -> None:
    """Raises ``TemplateError`` for arguments of calls that no template shows."""
    for call in message.tool_calls:
        if not isinstance(decoded_json(call.arguments), dict):
            raise TemplateError(
                f"the arguments of {call.name!r} in assistant message {index} are no JSON object, so no chat template"
                " shows them as they were written"
            )


def marked_message(message: Message, name: str = "") -> Message:
    """The message with a mark before and after each of its parts, all of them different; ``name`` is in each.

    A text may be in a rendering by chance, as a word of another part or of the template; with its marks it does not.
    """
    names = ("reasoning_content", "content")
    texts = {part: getattr(message, part).strip() for part in names if (getattr(message, part) or "").strip()}
    marked = {part: _between_marks(text, name + part) for part, text in texts.items()}
    inline = INLINE.fullmatch(texts["content"]) if list(texts) == ["content"] else None
    if inline:
        opening, thought, closing, rest = inline.groups()
        thought = thought and _between_marks(thought, f"{name}thought")
        rest = rest and _between_marks(rest, f"{name}content")
        marked["content"] = f"{opening}{thought}{closing}{rest}"
    calls = [
        msgspec.structs.replace(call, name=_between_marks(call.name, f"{name}call{number}"))
        for number, call in enumerate(message.tool_calls)
    ]
    return msgspec.structs.replace(message, tool_calls=calls, **marked)


def _between_marks(text: str, name: str) -> str:
    return f"mark_{name}_{text}_{name}_mark"
