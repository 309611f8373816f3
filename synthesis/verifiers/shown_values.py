"""Which values an agent was shown: numbers and texts found in what it has read."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic import JsonValue

NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w])")
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
    """The numbers in a text, also with commas between thousands."""
    return [float(found.replace(",", "")) for found in NUMBER.findall(text)]


def leaves(value: JsonValue) -> Iterator[str | float]:
    """The texts and numbers in a value of JSON."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from leaves(each)
    elif not isinstance(value, bool | None):
        yield value


def _has_whole(text: str, value: str) -> bool:
    # An expression for each value, over all text, would take seconds for a long trajectory.
    start = text.find(value)
    while start >= 0:
        before = start > 0 and _INSIDE_BEFORE.match(text, start - 1)
        if not before and not _INSIDE_AFTER.match(text, start + len(value)):
            return True
        start = text.find(value, start + 1)
    return False
