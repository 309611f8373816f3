"""Whether the fields that a profile names are in its records: a misspelt path reads nothing, and must not be silent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from agentmill.schemas.errors import near_match, nearest
from agentmill.schemas.format import NO_FIELD, WRONG_KIND
from agentmill.schemas.profiles.fields import ITEM, at, field_report, is_flag

REMARK = "remark."
"""Before the name of a remark, in the metrics of a table."""

PRESENT = "present."
MISSING = "missing."
NEAR = "near."
UNREAD = "unread."
DIFFERS = "differs."
INCOMPLETE = "incomplete."
"""Before the label of a place: records that have it, and that do not; the nearest path instead, after the label;
records in which its value means nothing; records whose rows have different values there, and of which a row has none.
"""

_OF_THE_RUN = {
    "task_id": "the first row counts",
    "environment_id": "the first row counts",
    "outcome.field": "the last value counts",
    "outcome.reward": "the last value counts",
}
"""Settings of which a run has one value, and which that is where its rows have several."""

_TRAIN = "messages.train"


class Place(NamedTuple):
    """What a setting of a profile names: one of ``paths``, in the record or in the objects of its list ``within``."""

    setting: str
    paths: tuple[str, ...]
    within: str | None = None

    @property
    def label(self) -> str:
        """The setting and what it says, as in messages."""
        return _label(self)


@lru_cache(maxsize=1024)
def _label(place: Place) -> str:
    """Kept: it is looked up for each record."""
    return f"{place.setting} {' or '.join(map(repr, place.paths))}"


def measured_places(places: Sequence[Place], rows: Sequence[Any]) -> dict[str, int]:
    """``PRESENT`` or ``MISSING`` with the label of each place, and ``NEAR`` with what may be meant instead.

    ``rows`` are those of one record; a place is there if it is in one of them.
    """
    found: dict[str, int] = {}
    for place in places:
        members = rows if place.within is None else [each for row in rows for each in _members(row, place.within)]
        if any(_is_there(member, place, path) for path in place.paths for member in members):
            found[PRESENT + place.label] = 1
            if place.setting == "group.order" and any(at(row, place.paths[0]) is None for row in rows):
                found[INCOMPLETE + place.label] = 1
            if place.setting == _TRAIN and any(_is_misread(member, place.paths[0]) for member in members):
                found[UNREAD + place.label] = 1
            if place.setting in _OF_THE_RUN and len(rows) > 1 and _differ(rows, place.paths[0]):
                found[DIFFERS + place.label] = 1
            continue
        found[MISSING + place.label] = 1
        # The first record is enough for a hint: a misspelt path is absent from all of them.
        near = _near(members[0], place.paths[0]) if members else None
        if near is not None:
            found[f"{NEAR}{place.label} {near}"] = 1
    return found


def absent(places: Sequence[Place], metrics: Mapping[str, float]) -> list[str]:
    """In words, the places that no record has, with what may be meant."""
    found = []
    for place in places:
        missing = metrics.get(MISSING + place.label, 0)
        if missing and not metrics.get(PRESENT + place.label):
            start = f"{NEAR}{place.label} "
            near = {name.removeprefix(start): n for name, n in metrics.items() if name.startswith(start)}
            hint = f". Did you mean {max(near, key=lambda name: near[name])!r}?" if near else ""
            found.append(f"{place.label} is in none of {missing:.0f} records{hint}")
    return found


def absent_options(metrics: Mapping[str, float], runs: float) -> list[str]:
    """In words, the paths in the options of a format that are in none of the records, which gave ``runs``, or whose
    values are of another kind in all of them."""
    start = f"{REMARK}{NO_FIELD}"
    paths = [name.removeprefix(start) for name, n in metrics.items() if name.startswith(start) and n == runs]
    known = [each.field.removeprefix(ITEM) for each in field_report(metrics)]
    found = []
    for path in paths:
        near = near_match(path, known)
        found.append(f"options name {path!r}, which is in none of {runs:.0f} records{near and f'.{near}'}")
    return [*found, *(line for line, n in _misread(metrics) if n == runs)]


def option_notes(metrics: Mapping[str, float]) -> list[str]:
    """Warnings for values at the paths in the options of a format that could not be read as what they name."""
    return [f"warning: {line}; it is kept in extra" for line, _ in _misread(metrics)]


def _misread(metrics: Mapping[str, float]) -> list[tuple[str, float]]:
    """In words, the values of another kind than their option takes, and in how many records they are."""
    start = f"{REMARK}{WRONG_KIND}"
    found = {name.removeprefix(start): n for name, n in metrics.items() if name.startswith(start) and n}
    kinds = ((name.partition(" "), n) for name, n in found.items())
    return [(f"options name {path!r}, which is no {kind} in {n:.0f} records", n) for (kind, _, path), n in kinds]


def place_notes(places: Sequence[Place], metrics: Mapping[str, float]) -> list[str]:
    """Warnings for places that some records lack, or whose values mean nothing."""
    notes = []
    for place in places:
        present, missing = metrics.get(PRESENT + place.label, 0), metrics.get(MISSING + place.label, 0)
        if present and missing:
            notes.append(f"{place.label} is missing in {missing:.0f} of {present + missing:.0f} records")
        unread = metrics.get(UNREAD + place.label)
        if unread and place.setting == _TRAIN:
            line = f"{place.label} is neither a boolean nor a number in {unread:.0f} of {present:.0f} records"
            notes.append(f"warning: {line}: it is kept in extra, and says nothing of what is trained on")
        elif present and unread == present:
            line = f"{place.label} says of no run whether it succeeded; its values are none of those that mean so"
            notes.append(f"warning: {line}: set outcome.success, outcome.failure or outcome.success_from")
        elif unread:
            notes.append(f"{place.label} says neither success nor failure in {unread:.0f} of {present:.0f} records")
        if differing := metrics.get(DIFFERS + place.label):
            line = f"{place.label} differs between the rows of {differing:.0f} of {present:.0f} runs"
            notes.append(f"warning: {line}: {_OF_THE_RUN[place.setting]}")
        if lacking := metrics.get(INCOMPLETE + place.label):
            notes.append(f"warning: {place.label} is missing in rows of {lacking:.0f} runs: these rows come last")
    return notes


def _differ(rows: Sequence[Any], path: str) -> bool:
    values = [value for row in rows if (value := at(row, path)) is not None]
    return any(value != values[0] for value in values[1:])


def _is_misread(message: Any, name: str) -> bool:
    value = message.get(name) if isinstance(message, dict) else None
    return value is not None and not is_flag(value)


def _members(document: Any, within: str) -> list[Any]:
    members = document.get(within) if isinstance(document, dict) else None
    return members if isinstance(members, list) else []


def _is_there(value: Any, place: Place, path: str) -> bool:
    # A field that is renamed is one at the top, whose name may have dots in it.
    for name in (path,) if place.setting == "rename" else path.split("."):
        if not isinstance(value, dict) or name not in value:
            return False
        value = value[name]
    return True


def _near(value: Any, path: str) -> str | None:
    """The path with the nearest known name in the place of the first that is unknown."""
    names = path.split(".")
    for place, name in enumerate(names):
        if not isinstance(value, dict):
            return None
        if name not in value:
            known = _nearest(name, tuple(value))
            return known and ".".join([*names[:place], known, *names[place + 1 :]])
        value = value[name]
    return None


@lru_cache(maxsize=1024)
def _nearest(name: str, known: tuple[str, ...]) -> str | None:
    return nearest(name, known)
