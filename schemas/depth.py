"""How deeply values may be nested: what is stored can then be read again anywhere, whatever calls the reader."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MOST_LEVELS = 200
"""Lists and objects inside each other; Python's stack ends at 1,000 calls, and readers take several for a level."""


def is_too_deep(value: Any) -> bool:
    """Whether lists and objects in ``value`` are nested in more than ``MOST_LEVELS`` levels."""
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterable[Any]:
    """What is directly in a list or an object; an empty one counts as a level, too."""
    if isinstance(value, dict):
        return value.values() or (None,)
    return (value or (None,)) if isinstance(value, list | tuple) else ()
