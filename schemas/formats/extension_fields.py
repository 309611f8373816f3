"""What a document of a foreign format says in our own words: fields of a run that the format has no place for.

They are under one key in what the format leaves open (ADP's ``details``, ATIF's ``extra``) and are read back.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import msgspec

from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Trajectory

OURS = "agentmill"
"""The key."""

_APART = frozenset({"trajectory_id", "content", "source", "extra"})
_PLAIN = Trajectory(trajectory_id="", content=[])


def extension_fields(trajectory: Trajectory, name: str, written: Set[str] = frozenset()) -> JsonObject:
    """The fields of the run that are not at their defaults, without those ``written`` in format ``name`` itself."""
    held: JsonObject = {
        field: msgspec.to_builtins(getattr(trajectory, field))
        for field in Trajectory.__struct_fields__
        if field not in _APART and field not in written and getattr(trajectory, field) != getattr(_PLAIN, field)
    }
    if extra := {key: value for key, value in trajectory.extra.items() if key != name}:
        held["extra"] = extra
    return held


def from_own_words(held: Any, more: Set[str] = frozenset()) -> JsonObject | None:
    """The fields of a run in ``held``, an object or JSON text of one, if we wrote it and a run can still hold them.

    ``more`` are keys that the format has besides.
    """
    try:
        held = msgspec.json.decode(held) if isinstance(held, str) else held
        if not isinstance(held, dict) or held.keys() - set(Trajectory.__struct_fields__) - more:
            return None
        # We write none of these here, so somebody else wrote them.
        if held.keys() & (_APART - {"extra"}):
            return None
        fields = {key: value for key, value in held.items() if key not in more}
        # A key of our name may hold anything, so it counts only if it is valid as a whole.
        msgspec.convert({"trajectory_id": "", "content": [], **fields}, Trajectory)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        return None
    return dict(held)
