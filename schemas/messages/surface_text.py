"""How a turn is worded around what its actions hold, so that its text can be written again and is not kept twice.

A wording is the pieces of a text before, between and behind what its actions hold: of ``Thought: why Action: go[home]``
they are ``Thought: ``, `` Action: ``, ``[`` and ``]``. Most turns of a run have the same one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal

import msgspec

from agentmill.schemas.messages.conversation import Conversation
from agentmill.schemas.records.trajectory import AnyAction, ApiAction

Wording = tuple[str, ...]
"""One piece more than the actions hold texts."""

_GLANCE = 16
"""Characters that tell most texts from others. To find a whole text, Python first goes over all of it."""


class Wordings:
    """The wordings of the turns of one run; ``None`` stands for the plainest."""

    def __init__(self) -> None:
        self._places: dict[Wording | None, list[int]] = {}

    def add(self, index: int, found: Wording | None) -> None:
        """The turn whose first item is at ``index`` is worded so."""
        self._places.setdefault(found, []).append(index)

    def note(self, conversation: Conversation) -> None:
        """Note the wording of most turns for the run, and that of others for each; of the plainest run nothing."""
        if self._places.keys() <= {None}:
            return
        # The first of several: a dict keeps the order of the turns, so the notes do not depend on chance.
        usual = max(self._places, key=lambda each: len(self._places[each]))
        if usual is not None:
            conversation.spelling["wording"] = list(usual)
        for found, places in self._places.items():
            if found != usual:
                for place in places:
                    conversation.note(place, wording=None if found is None else list(found))


def wording(text: str, actions: Sequence[AnyAction]) -> Wording | None:
    """How ``text`` is worded; ``None`` where it does not have all that its actions hold, in order."""
    parts, done = [], 0
    for held in _held(actions):
        start = text.find(held if len(held) <= _GLANCE else held[:_GLANCE], done)
        if start >= 0 and len(held) > _GLANCE and not text.startswith(held, start):
            start = text.find(held, start)
        if start < 0:
            return None
        parts.append(text[done:start])
        done = start + len(held)
    parts.append(text[done:])
    return tuple(parts)


def worded(parts: Sequence[str], actions: Sequence[AnyAction]) -> str | None:
    """The text of ``actions`` in a wording; ``None`` if it is that of others."""
    held = _held(actions)
    if len(parts) != len(held) + 1:
        return None
    return "".join(chain.from_iterable(zip(parts, [*held, ""], strict=True)))


def _held(actions: Sequence[AnyAction]) -> list[str]:
    """What the actions hold, as it is in a text: thoughts, names of tools, arguments that are texts, contents."""
    held = []
    for action in actions:
        if action.description:
            held.append(action.description)
        if not isinstance(action, ApiAction):
            held.append(action.content)
            continue
        held.append(action.function)
        if action.raw_arguments is None:
            held += [value for value in action.kwargs.values() if isinstance(value, str)]
        else:
            held.append(action.raw_arguments)
    return held


Style = Literal["compact", "spaced", "ascii"]
"""Without blanks; as Python's ``json`` does it, in Unicode; as Python's ``json`` does it, in ASCII."""

Spelling = Style | Literal["object"]
"""A style of JSON text, or no text at all but the value itself."""

STYLES: tuple[Style, ...] = ("compact", "ascii", "spaced")
_compact = msgspec.json.Encoder().encode
_spaced = json.JSONEncoder(ensure_ascii=False).encode
_ascii = json.JSONEncoder().encode


def dumped(value: Any, style: Style) -> str:
    """``value`` as JSON text."""
    if style == "compact":
        return _compact(value).decode()
    return _spaced(value) if style == "spaced" else _ascii(value)


def style_of(text: str, value: Any) -> Style | None:
    """The style that spells ``value`` as ``text``, if there is one."""
    return next((style for style in _candidates(text) if dumped(value, style) == text), None)


def _candidates(text: str) -> tuple[Style, ...]:
    """The styles that ``text`` may be in, by its first key."""
    colon = text.find('":')
    if colon < 0:
        return STYLES
    if text[colon + 2 : colon + 3] != " ":
        return ("compact",)
    return ("ascii",) if text.isascii() else ("spaced",)


def spelled(value: Any, spelling: Spelling) -> Any:
    """``value`` as it is in a record: itself, or as JSON text."""
    return value if spelling == "object" else dumped(value, spelling)


def spelling_of(given: Any, value: Any) -> Spelling | None:
    """How ``given`` spells ``value``, if it is one of these ways."""
    return style_of(given, value) if isinstance(given, str) else "object"
