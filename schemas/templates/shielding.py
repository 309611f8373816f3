"""Control tokens that a message spells out stay text, so that what a tool or a web page returns cannot end a turn.

While a conversation is rendered, a private character takes the place of each; what the chat template itself writes
keeps its meaning. Training and scoring share this, so that a score is read from the tokens that the model was trained
on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec

from agentmill.schemas.chat import decoded_json
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.rows import Message

CONTROL = re.compile(r"<\|.+\|>|<｜.+｜>")
"""How control tokens look in most vocabularies."""

PRIVATE = range(0xF0000, 0x10FFFE)
"""Characters that Unicode leaves to private use."""


@dataclass(frozen=True)
class ShieldedConversation:
    """A conversation with private characters in the place of control tokens; ``texts`` maps them back.

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


def control_texts(added: Iterable[tuple[str, bool]], special: Iterable[str]) -> tuple[str, ...]:
    """The texts of control tokens, the longest first: special ones, and of those ``added`` the ones that look so.

    ``added`` has each added token with whether it is marked as special. DeepSeek's tokens that open a message are added
    to the vocabulary, but not marked as special.
    """
    texts = {text for text, marked in added if marked or CONTROL.fullmatch(text)}
    # A regular expression takes the first alternative that fits, so a token must come before one that it begins with.
    return tuple(sorted(texts.union(special), key=lambda text: (-len(text), text)))


def shield_control_tokens(
    messages: Sequence[Message], tools: list[JsonObject] | None, controls: tuple[str, ...]
) -> ShieldedConversation:
    """The conversation, shielded from the control tokens ``controls`` that its texts spell out."""
    pattern = _pattern(controls)
    texts = list(_texts([*map(msgspec.to_builtins, messages), tools]))
    found = [match[0] for text in texts for match in pattern.finditer(text)]
    if not found:
        return ShieldedConversation(messages, tools)
    # A message may hold private characters of its own, which must come back as they are.
    used = set("".join(texts))
    free = (chr(code) for code in PRIVATE if chr(code) not in used)
    # A dict keeps the order of the messages, where a set would make tokens depend on Python's hash seed.
    places = {text: next(free) for text in dict.fromkeys(found)}

    def hide(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub(lambda match: places[match[0]], value)
        if isinstance(value, list):
            return [hide(each) for each in value]
        return {hide(key): hide(each) for key, each in value.items()} if isinstance(value, dict) else value

    hidden = [_hidden(message, hide) for message in messages]
    return ShieldedConversation(hidden, hide(tools), {place: text for text, place in places.items()}, len(found))


def spelled_ids(text: str, split: Callable[[str], list[int]], controls: Collection[int]) -> list[int] | None:
    """The tokens of a control token's text, none of them in ``controls``; ``None`` where the tokenizer has no such.

    ``split`` tokenises a text and splits special tokens.
    """
    # Only tokens that are marked as special are split on request. Others, such as DeepSeek's, are broken by a cut.
    ways: list[list[str]] = [[text], [text[:1], text[1:]]]
    for parts in ways:
        ids = [one for part in parts for one in split(part)]
        if ids and not set(controls) & set(ids):
            return ids
    return None


@lru_cache(maxsize=8)
def _pattern(controls: tuple[str, ...]) -> re.Pattern[str]:
    # Without control tokens there is nothing to find.
    return re.compile("|".join(map(re.escape, controls)) or r"(?!)")


def _texts(value: Any) -> Iterator[str]:
    """All texts in a JSON value; those in the arguments of calls as decoded from their JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield key
            # JSON text may write a control token with escapes, which the template shows decoded.
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
        # Arguments without control tokens keep their exact spelling.
        text = call.arguments if hidden == arguments else msgspec.json.encode(hidden).decode()
        calls.append(msgspec.structs.replace(call, id=hide(call.id), name=hide(call.name), arguments=text))
    return msgspec.structs.replace(
        message,
        content=hide(message.content),
        reasoning_content=hide(message.reasoning_content),
        name=hide(message.name),
        tool_call_id=hide(message.tool_call_id),
        tool_calls=calls,
    )
