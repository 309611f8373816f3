"""Whether a thought fits the action that it was written for: checks by code, which need no model.

A thought is ``empty`` or ``over_length``, in ``other_language`` than the conversation, names the action of another step
and not its own (``other_action``), or has something of a later step that nothing before has shown (``not_known_yet``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from agentmill.schemas.chat import to_messages
from agentmill.schemas.records.trajectory import (
    Action,
    AnyItem,
    ApiAction,
    CodeAction,
    MessageAction,
    TextObservation,
    Trajectory,
)
from agentmill.synthesis.language import sure_language

LEAST = 4
"""Characters of a text of a step; shorter ones are in a thought by chance."""

WORD = re.compile(r"\w+")
NAME = re.compile(r"\w[\W_]+\w|\d")
"""A name of two words, or with a digit; single words such as ``open`` are in a thought by chance."""


def fault_of(thought: str, trajectory: Trajectory, turn: int, longest: int) -> str | None:
    """What is wrong with a thought before the actions of ``turn``; ``None``: nothing is."""
    if not WORD.search(thought):
        return "empty"
    if len(thought) > longest:
        return "over_length"
    content, words = trajectory.content, _words(thought)
    language = sure_language(thought)
    if language and (language_of(content, turn) or language) != language:
        return "other_language"
    own = {_words(name) for name in _names(content, turn)}
    others = {_words(name) for name in _names(content, None) if NAME.search(name)} - own
    if _has_any(words, others) and not _has_any(words, own):
        return "other_action"
    before = [item for item in content if item.turn < turn]
    known = _words("\n".join([_shown(before, trajectory.system_prompt), *_texts(content, turn)]))
    later = {_words(text) for each in content if each.turn > turn for text in _texts([each], each.turn)}
    unknown = {text for text in later if len(text.strip()) >= LEAST and text not in known}
    return "not_known_yet" if _has_any(words, unknown) else None


def language_of(content: Sequence[AnyItem], turn: int) -> str | None:
    """The language of what users and the agent wrote before ``turn``, where that is sure."""
    texts = [
        item.content
        for item in content
        if item.turn < turn
        and (isinstance(item, MessageAction) or (isinstance(item, TextObservation) and item.source == "user"))
    ]
    return sure_language(" ".join(texts))


def _shown(content: Sequence[AnyItem], system_prompt: str | None) -> str:
    """All that an agent has seen, with the arguments of calls."""
    messages = to_messages(system_prompt, content)
    calls = [call.arguments for message in messages for call in message.tool_calls]
    return "\n".join([*(message.content or "" for message in messages), *calls])


def _names(content: Sequence[AnyItem], turn: int | None) -> Iterator[str]:
    """What the actions of a turn, or of all, are called: commands, and the names of tools."""
    for item in content:
        if isinstance(item, Action) and item.turn > 0 and turn in (None, item.turn):
            if isinstance(item, MessageAction):
                yield item.content
            elif isinstance(item, ApiAction):
                yield item.function


def _texts(content: Sequence[AnyItem], turn: int) -> Iterator[str]:
    """What only these actions have: commands and messages, code, and the values of arguments."""
    for item in content:
        if item.turn == turn and isinstance(item, MessageAction | CodeAction):
            yield item.content
        elif item.turn == turn and isinstance(item, ApiAction):
            yield from _values(item.kwargs)


def _values(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for each in value.values():
            yield from _values(each)
    elif isinstance(value, list):
        for each in value:
            yield from _values(each)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield str(value)


def _words(text: str) -> str:
    """The words of a text between blanks, so that one text has another only where it has all of its words."""
    return f" {' '.join(WORD.findall(text.casefold()))} "


def _has_any(words: str, texts: set[str]) -> bool:
    return any(text in words for text in texts if text.strip())
