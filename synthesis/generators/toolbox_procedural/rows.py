"""Rows for the tables of a draft, by chance; every column has the values that its definition allows."""

from __future__ import annotations

import random

from agentmill.synthesis.environments.toolbox.toolbox import Column, Rows, Value
from agentmill.synthesis.generators.toolbox_procedural.draft import Draft, Entity
from agentmill.synthesis.generators.toolbox_procedural.vocabulary import FIRST_NAMES, LAST_NAMES

_REGIONS = ("North", "South", "East", "West")
_EMPTY = 0.3
"""How often an optional reference is empty."""


def rows(draft: Draft, chance: random.Random) -> Rows:
    """Rows of every table, with keys from 1."""
    found: Rows = {}
    for entity in draft.entities.values():
        names = _names(draft, entity, chance)
        listed: list[tuple[Value, ...]] = []
        for key in range(1, entity.size + 1):
            name = names[key - 1] if names else None
            values = [_value(draft, entity, column, name, chance) for column in entity.columns]
            listed.append((key, *values))
        found[entity.table] = listed
    return found


def _names(draft: Draft, entity: Entity, chance: random.Random) -> list[str]:
    """Different names; none for what has no names."""
    if entity.role == "thing":
        return chance.sample(draft.theme.things, entity.size)
    if entity.role == "place":
        return chance.sample(draft.theme.places, entity.size)
    if entity.role == "region":
        return list(_REGIONS[: entity.size])
    if "name" not in entity.kinds:
        return []
    first, last = chance.sample(FIRST_NAMES, entity.size), chance.sample(LAST_NAMES, entity.size)
    return [f"{one} {other}" for one, other in zip(first, last, strict=True)]


def _value(draft: Draft, entity: Entity, column: Column, name: str | None, chance: random.Random) -> Value:
    if column.references:
        empty = column.optional and chance.random() < _EMPTY
        return None if empty else chance.randint(1, draft.entity(column.references).size)
    if column.name == entity.kinds.get("name"):
        return name
    if column.name == entity.kinds.get("contact") and name is not None:
        return f"{name.lower().replace(' ', '.')}@example.org"
    if column.values:
        return chance.choice(column.values)
    if column.type == "text":
        return chance.choice(column.examples)
    return chance.randint(column.least or 0, column.most or 9)
