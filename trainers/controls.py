"""Control tokens that the text of a message spells out, as a tool or a web page may: they stay text.

Otherwise `<|im_end|>` in a tool's result would end the turn. While a conversation is rendered, a private character
takes the place of each; what the template itself writes keeps its meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec

from agentmill.schemas.chat import decoded_json
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.rows import Message
from agentmill.trainers.template import control_tokens

PRIVATE = range(0xF0000, 0x10FFFE)
"""Characters that Unicode leaves to private use."""


@dataclass(frozen=True)
class Shielded:
    """A conversation with private characters in the place of control tokens; ``texts`` says which is which.

    ``count`` is how many control tokens the messages and tools spell out.
    """

    messages: Sequence[Message]
    tools: list[JsonObject] | None
    texts: dict[str, str] = field(default_factory=dict)
    count: int = 0

    def pieces(self, text: str) -> list[str]:
        """The text, cut at the private characters, which are pieces of their own."""
        if not self.texts:
            return [text]
        return [piece for piece in re.split(f"([{''.join(self.texts)}])", text) if piece]


def shielded(messages: Sequence[Message], tools: list[JsonObject] | None, tokenizer: Any) -> Shielded:
    """The conversation, shielded from the control tokens of the tokenizer that its texts spell out."""
    pattern = _pattern(control_tokens(tokenizer))
    texts = list(_texts([*map(msgspec.to_builtins, messages), tools]))
    found = [match[0] for text in texts for match in pattern.finditer(text)]
    if not found:
        return Shielded(messages, tools)
    used = set("".join(texts))
    free = (chr(code) for code in PRIVATE if chr(code) not in used)
    places = {text: next(free) for text in dict.fromkeys(found)}

    def hide(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub(lambda match: places[match[0]], value)
        if isinstance(value, list):
            return [hide(each) for each in value]
        return {hide(key): hide(each) for key, each in value.items()} if isinstance(value, dict) else value

    hidden = [_hidden(message, hide) for message in messages]
    return Shielded(hidden, hide(tools), {place: text for text, place in places.items()}, len(found))


def text_ids(text: str, tokenizer: Any) -> list[int] | None:
    """The tokens of a control token's text, none of which is one; ``None`` where the tokenizer has no such."""
    return _text_ids(text, tokenizer)


@lru_cache(maxsize=256)
def _text_ids(text: str, tokenizer: Any) -> list[int] | None:
    special = {tokenizer.convert_tokens_to_ids(token) for token in control_tokens(tokenizer)}
    ways: list[list[str]] = [[text], [text[:1], text[1:]]]
    for parts in ways:
        ids = [
            one
            for part in parts
            for one in tokenizer(part, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        ]
        if ids and not special & set(ids):
            return ids
    return None


@lru_cache(maxsize=8)
def _pattern(controls: tuple[str, ...]) -> re.Pattern[str]:
    # Without control tokens there is nothing to find.
    return re.compile("|".join(map(re.escape, controls)) or r"(?!)")


def _texts(value: Any) -> Iterator[str]:
    """All texts in a JSON value; those in the arguments of calls as their JSON says them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield key
            arguments = decoded_json(each) if key == "arguments" and isinstance(each, str) else None
            yield from _texts(arguments if isinstance(arguments, dict) else each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def _hidden(message: Message, hide: Any) -> Message:
    calls = []
    for call in message.tool_calls:
        arguments = decoded_json(call.arguments)
        hidden = hide(arguments)
        text = call.arguments if hidden == arguments else msgspec.json.encode(hidden).decode()
        calls.append(msgspec.structs.replace(call, name=hide(call.name), arguments=text))
    return msgspec.structs.replace(
        message,
        content=hide(message.content),
        reasoning_content=hide(message.reasoning_content),
        name=hide(message.name),
        tool_calls=calls,
    )
