"""Removing private fields from a record, also inside of lists, nested objects and JSON text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from agentmill.schemas.format import FormatError
from agentmill.schemas.messages.surface_text import dumped, style_of

ANY = "*"
"""Stands for any name of an object's fields."""

_ROOT = "$."
_JSON_TEXT = ("{", "[", '"')


class PrivatePath:
    """The place of a private field: names joined by dots, from the top of the record.

    Lists on the way are entered, with or without ``[]`` in the path, and so is text that is a JSON object or list.
    ``*`` is any one name. A single name is the field of that name wherever it is; ``$.name`` only the one at the top.
    """

    def __init__(self, path: str) -> None:
        """Raises ``ValueError`` for a path without a name."""
        names = [name.removesuffix("[]") for name in path.removeprefix(_ROOT).split(".")]
        self.text = path
        self._names = tuple(name for place, name in enumerate(names) if name or place)
        if not self._names or not all(self._names):
            raise ValueError(f"{path!r} is no path of a field; expected names joined by dots, such as user.email")
        self.name = self._names[-1]
        self._anywhere = len(self._names) == 1 and self._names[0] != ANY and not path.startswith(_ROOT)
        self._mention = re.compile(rf"""(["'])\s*{re.escape(self.name)}\s*\\*\1\s*:""")

    def remove(self, value: Any, found: Counter[str]) -> Any:
        """``value`` without the field. ``found`` counts what was removed, and texts that name it and are no JSON.

        Raises ``FormatError`` (``too_deep``).
        """
        try:
            return self._removed(value, self._names, found)
        except RecursionError as error:
            raise FormatError("too_deep", "values are nested deeper than can be read") from error

    def _removed(self, value: Any, names: tuple[str, ...], found: Counter[str]) -> Any:
        if isinstance(value, list):
            return [self._removed(each, names, found) for each in value]
        if isinstance(value, dict):
            below = _below(names)
            # Most objects of a record are not on the way to the field: they are neither copied nor looked into.
            if names[0] != ANY and not self._anywhere and below.keys().isdisjoint(value):
                return value
            kept = {}
            for name, inner in value.items():
                rest = names[1:] if names[0] == ANY else below.get(name)
                if rest == ():
                    found[REMOVED + self.text] += 1
                elif rest is not None or self._anywhere:
                    kept[name] = self._removed(inner, names if rest is None else rest, found)
                else:
                    kept[name] = inner
            return kept
        # A text without the name cannot hold the field, so most texts need not be decoded.
        named = isinstance(value, str) and (names[-1] in value or names[-1] == ANY)
        return self._text(value, names, found) if named else value

    def _text(self, text: str, names: tuple[str, ...], found: Counter[str]) -> str:
        """A text without the field, if it is JSON; what was removed of it is not counted as left."""
        if text.lstrip().startswith(_JSON_TEXT):
            try:
                value = msgspec.json.decode(text)
            except (msgspec.DecodeError, RecursionError):
                value = None
            if value is not None:
                before = found[REMOVED + self.text]
                kept = self._removed(value, names, found)
                # A text from which nothing was removed stays as it was to the byte.
                return text if found[REMOVED + self.text] == before else dumped(kept, style_of(text, value) or "spaced")
        found[LEFT + self.text] += self._mention.search(text) is not None
        return text


REMOVED = "private."
LEFT = "private_in_text."
"""Before the path: fields that were removed, and texts that name the field but are no JSON, which stay as they are."""


@lru_cache(maxsize=1024)
def _below(names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """What of the path is left below a field, by its name, which may have dots in it."""
    return {".".join(names[:end]): names[end:] for end in range(len(names), 0, -1)}


class PrivateFields:
    """All private fields of the records of a data set."""

    def __init__(self, paths: Sequence[str]) -> None:
        """Raises ``ValueError`` for a path without a name."""
        self._paths = [PrivatePath(path) for path in paths]

    def remove(self, record: Any) -> tuple[Any, dict[str, int]]:
        """The record without them, and how often each was there, by ``REMOVED`` or ``LEFT`` and its path."""
        found: Counter[str] = Counter()
        for path in self._paths:
            record = path.remove(record, found)
        return record, {name: n for name, n in found.items() if n}
