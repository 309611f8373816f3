"""Transcripts for models that judge: data between delimiters that nothing inside can forge.

What an environment, a user or an agent wrote may hold instructions to whoever judges it (indirect prompt injection,
Greshake et al., arXiv:2302.12173). So each message is one line of JSON, in which no line break and no other message can
be faked, and the delimiters hold a digest of all that is between them, which no text can hold of itself (spotlighting,
Hines et al., arXiv:2403.14720).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from agentmill.schemas.chat import decoded_json, to_messages
from agentmill.schemas.ids import digest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.rows import Message
from agentmill.schemas.records.trajectory import AnyItem
from agentmill.synthesis.prompts import prompt

ID_LETTERS = 16


def judging_prompt(name: str) -> str:
    """The prompt of a model that judges transcripts: the text of that name, and how they are delimited."""
    return f"{prompt(name)}\n\n{prompt('delimited')}"


def delimited(content: Sequence[AnyItem], system_prompt: str | None = None, **ending: Any) -> str:
    """``content`` as lines of JSON between delimiters; ``ending``, if given, is a last line about the whole."""
    return between([*message_lines(content, system_prompt), *([ending] if ending else [])])


def message_lines(content: Sequence[AnyItem], system_prompt: str | None = None) -> list[JsonObject]:
    """The messages of ``content``, one object each."""
    return [_line(message) for message in to_messages(system_prompt, content)]


def between(lines: Sequence[Any]) -> str:
    """``lines``, each as JSON, between delimiters that hold their digest."""
    body = "\n".join(msgspec.json.encode(line).decode() for line in lines)
    mark = digest("transcript", body)[:ID_LETTERS]
    return f"<transcript {mark}>\n{body}\n</transcript {mark}>"


def _line(message: Message) -> JsonObject:
    # Arguments as values: as text they would be JSON within JSON, which models read badly.
    # Those that are no JSON are shown as they were written.
    decoded = [decoded_json(call.arguments) for call in message.tool_calls]
    calls = [
        {"name": call.name, "arguments": call.arguments if value is None else value}
        for call, value in zip(message.tool_calls, decoded, strict=True)
    ]
    given = {"reasoning": message.reasoning_content, "content": message.content, "calls": calls}
    return {"role": message.role, **{name: value for name, value in given.items() if value}}
