"""What of a trajectory is gone once it was written in a format and read back."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from agentmill.schemas.format import Losses
from agentmill.schemas.records.trajectory import AnyItem, ApiAction, Trajectory, WebObservation

_ASIDE = ("trajectory_id", "content", "source", "extra")


def differences(given: Trajectory, back: Trajectory, name: str) -> Losses:
    """Fields of ``given`` that ``back``, its copy by way of format ``name``, does not have, by how often.

    Fields that the copy has on top (ids of calls) are no loss. An item that came back as another, or not at all, is one
    ``content.class_``; a turn that begins, or ends, elsewhere one ``content.turn``.
    """
    losses = Losses()
    losses.update(field for field in Trajectory.__struct_fields__ if field not in _ASIDE and _gone(given, back, field))
    losses.update(f"extra.{key}" for key, value in given.extra.items() if key != name and back.extra.get(key) != value)
    # One turn that begins elsewhere moves all later ones, and is one loss.
    shift = 0
    for item, other in _matched(given.content, back.content):
        if other is None:
            losses["content.class_"] += 1
            continue
        fields = item.__struct_fields__
        losses.update(f"content.{field}" for field in fields if field != "turn" and _gone(item, other, field))
        if other.turn - item.turn != shift:
            losses["content.turn"] += 1
            shift = other.turn - item.turn
    return losses


def _matched(content: Sequence[AnyItem], others: Sequence[AnyItem]) -> Iterator[tuple[AnyItem, AnyItem | None]]:
    """Each item with the next of ``others`` that is of its class and says the same."""
    places: dict[Any, list[int]] = {}
    for index, other in enumerate(others):
        places.setdefault(_key_of(other), []).append(index)
    start = 0
    for item in content:
        found = places.get(_key_of(item), [])
        # Formats keep the order of what they keep, so an item is looked for after the last one that was found.
        place = bisect.bisect_left(found, start)
        if place == len(found):
            yield item, None
        else:
            start = found[place] + 1
            yield item, others[found[place]]


def _key_of(item: AnyItem) -> tuple[str, str | None]:
    if isinstance(item, ApiAction):
        return type(item).__name__, item.function
    # Formats keep different parts of a page, so its text cannot be the key.
    return type(item).__name__, None if isinstance(item, WebObservation) else item.content


def _gone(given: Any, back: Any, name: str) -> bool:
    value = getattr(given, name)
    return bool(value != _defaults(given.__class__).get(name) and value != getattr(back, name))


@functools.cache
def _defaults(record_type: type[msgspec.Struct]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(record_type):
        if field.default is not msgspec.NODEFAULT:
            found[field.name] = field.default
        elif field.default_factory is not msgspec.NODEFAULT:
            found[field.name] = field.default_factory()
    return found
