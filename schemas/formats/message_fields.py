"""The fields of a chat message beside its role and content."""

from __future__ import annotations

from typing import Any

from schemas.formats.format import FormatError
from schemas.record import JsonObject

REASONING = ("reasoning_content", "reasoning", "thinking")
"""Names of the field for hidden reasoning, the usual one first."""

_REASONING = frozenset(REASONING)


def reasoning_of(message: JsonObject) -> tuple[str | None, str | None]:
    """The name of the field with the reasoning, and the reasoning."""
    if not _REASONING.isdisjoint(message):
        for name in REASONING:
            if isinstance(message.get(name), str):
                return name, message[name]
    return None, None


def speaker_of(message: JsonObject) -> str | None:
    """The name of who speaks. Raises ``FormatError`` (``invalid``) if it is no text."""
    name = message.get("name")
    if name is not None and not isinstance(name, str):
        raise FormatError("invalid", f"the name of who speaks is {name!r:.60}, expected a text")
    return name


def rest_of(message: JsonObject, known: frozenset[str], said: str | None) -> dict[str, Any]:
    """The fields that have a value and are neither ``known`` nor ``said``."""
    return {
        field: value for field, value in message.items() if field not in known and field != said and value is not None
    }
