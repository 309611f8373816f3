"""JSON text in the spellings that foreign records have it in, so that it can be written as it was read."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec

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
    """The styles that ``text`` may be in, told by its first key."""
    colon = text.find('":')
    if colon < 0:
        return STYLES
    if text[colon + 2 : colon + 3] != " ":
        return ("compact",)
    return ("ascii",) if text.isascii() else ("spaced",)


def spelled(value: Any, spelling: Spelling) -> Any:
    """``value`` as it stands in a record: itself, or as JSON text."""
    return value if spelling == "object" else dumped(value, spelling)


def spelling_of(given: Any, value: Any) -> Spelling | None:
    """How ``given`` spells ``value``, if it is one of these ways."""
    return style_of(given, value) if isinstance(given, str) else "object"
