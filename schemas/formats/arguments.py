"""Arguments of calls as foreign records spell them: an object, JSON text of one, or something else."""

from __future__ import annotations

from typing import Any

import msgspec

from schemas.depth import MOST_LEVELS, is_too_deep
from schemas.record import JsonObject

_decode = msgspec.json.Decoder().decode


def read_arguments(given: Any) -> tuple[JsonObject, str | None]:
    """``kwargs`` and ``raw_arguments`` of a call.

    ``given`` is what stands in the place of the arguments. An object, or JSON text of one, is taken as it is; any other
    text, or one nested too deeply for a table, is kept raw, any other value as its JSON text. No arguments at all
    (``None``) are an empty object.
    """
    if isinstance(given, dict):
        return given, None
    if given is None:
        return {}, None
    if not isinstance(given, str):
        return {}, msgspec.json.encode(given).decode()
    try:
        value = _decode(given)
    except (msgspec.DecodeError, RecursionError):
        return {}, given
    held = isinstance(value, dict) and not (given.count("[") + given.count("{") > MOST_LEVELS and is_too_deep(value))
    return (value, None) if held else ({}, given)
