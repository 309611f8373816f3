"""Whether what an agent writes rests on what it was shown: checks by code, which need no model.

``ShownValues`` has the numbers and texts that an agent has read. ``fault_of`` is what is wrong with a thought: it is
``empty`` or ``over_length``, in ``other_language`` than the conversation, names the action of another step and not its
own (``other_action``), or has something of a later step that nothing before has shown (``not_known_yet``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pydantic import JsonValue

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

NUMBER = re.compile(r"(?<![\w.])[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?(?!\w|\.\d)")
"""A number. An address or a version, such as 10.0.1.12, is none."""

DOTTED = re.compile(r"(?<![\w.])v?(\d+(?:\.\d+){2,})(?!\w)")
"""What is written with several dots: an address, a version or a date."""

_SIGNED_CURRENCY = re.compile(r"(?<![\w.])([-+])[$€£¥]\s?(?=\d)")
_INSIDE_BEFORE = re.compile(r"[\w.]")
_INSIDE_AFTER = re.compile(r"\w|\.\d")


class ShownValues:
    """The values in the texts that were added."""

    def __init__(self, text: str) -> None:
        self._text = ""
        self._numbers: set[float] = set()
        self.add(text)

    def add(self, text: str) -> None:
        """A text that was shown next."""
        self._text += f"\n{text}".casefold()
        self._numbers.update(numbers_in(text))

    def has(self, value: str | float) -> bool:
        """Whether a text was shown, in any case and not within a longer word or number; a number in any notation."""
        if not isinstance(value, str) and float(str(value)) in self._numbers:
            return True
        return _has_whole(self._text, str(value).casefold())


def numbers_in(text: str) -> list[float]:
    """The numbers in a text, also with commas between thousands and a currency between sign and digits."""
    return [float(found.replace(",", "")) for found in NUMBER.findall(with_plain_signs(text))]


def with_plain_signs(text: str) -> str:
    """``text`` with hyphens as minus signs, and the sign of an amount at its digits: ``-$5`` is ``-5``."""
    # A sign after a word or a number is none (5-$10 is a range), nor is one before a blank (a list: - $5).
    return _SIGNED_CURRENCY.sub(r"\1", text.replace("\N{MINUS SIGN}", "-"))


def leaves(value: JsonValue) -> Iterator[str | float]:
    """The texts and numbers in a value of JSON."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from leaves(each)
    elif not isinstance(value, bool | None):
        yield value


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
            yield from map(str, leaves(item.kwargs))


def _words(text: str) -> str:
    """The words of a text between blanks, so that one text has another only where it has all of its words."""
    return f" {' '.join(WORD.findall(text.casefold()))} "


def _has_any(words: str, texts: set[str]) -> bool:
    return any(text in words for text in texts if text.strip())


def _has_whole(text: str, value: str) -> bool:
    # An expression for each value, over all text, would take seconds for a long trajectory.
    start = text.find(value)
    while start >= 0:
        before = start > 0 and _INSIDE_BEFORE.match(text, start - 1)
        if not before and not _INSIDE_AFTER.match(text, start + len(value)):
            return True
        start = text.find(value, start + 1)
    return False
