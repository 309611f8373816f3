"""Values of foreign records where our fields want one type: what is of another type, or too large, is none."""

from __future__ import annotations

from typing import Any

from schemas.record import JsonObject


def text_of(given: JsonObject, name: str, rest: JsonObject) -> str | None:
    """The text that ``given`` has under ``name``; a value of another type, unless null, is kept in ``rest``."""
    value = given.get(name)
    if value is None or isinstance(value, str):
        return value
    rest[name] = value
    return None


def count_of(value: Any) -> int | None:
    """``value``, if it is an integer of at most 64 bits."""
    return value if type(value) is int and -(2**63) <= value < 2**63 else None


def number_of(value: Any) -> float | None:
    """``value`` as a float, if it is a number that one can hold."""
    if type(value) not in (int, float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None
