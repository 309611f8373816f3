"""Which tables a toolbox has: a party, a thing, a record between them and what chance adds around these; and rows."""

from __future__ import annotations

import random
from string import Template

import msgspec

from agentmill.synthesis.environments.toolbox.toolbox import Column, Rows, Value
from agentmill.synthesis.generators.toolbox_procedural.draft import Draft, Entity
from agentmill.synthesis.generators.toolbox_procedural.vocabulary import Theme, names, tables

_EMPTY = 0.3
"""How often an optional reference is empty."""


def entities(theme: Theme, chance: random.Random) -> Draft:
    """A draft with tables and no tools."""
    draft = Draft(theme)
    drawn = {role for role, entry in tables().items() if entry.likely is not None and chance.random() < entry.likely}
    # These two refer to places and would otherwise refer to nothing.
    drawn -= set() if "place" in drawn else {"region", "stockpile"}
    if "region" in drawn:
        _add(draft, "region", chance)
    if "place" in drawn:
        _refer(draft, _add(draft, "place", chance), "region")
        _columns(draft, "place", chance, "limit", "flag")
    if "staff" in drawn:
        _staff(draft, chance)
    _party(draft, chance)
    # A stock is counted in one table only, or two numbers could contradict each other.
    _thing(draft, chance, counted="stockpile" not in drawn)
    if "account" in drawn:
        _refer(draft, _add(draft, "account", chance), "party")
        _columns(draft, "account", chance, "counter", "category", "flag")
    if "stockpile" in drawn:
        _refer(draft, _add(draft, "stockpile", chance), "thing", "place")
        _columns(draft, "stockpile", chance, "counter")
    _record(draft, chance, lines="line" in drawn)
    if "line" in drawn:
        _refer(draft, _add(draft, "line", chance), "record", "thing")
        _columns(draft, "line", chance, "counter")
    for role in ("note", "review", "waiting"):
        if role in drawn:
            _remark(draft, role, chance)
    return draft


def _add(draft: Draft, role: str, chance: random.Random) -> Entity:
    entry = tables()[role]
    noun = _word(draft.theme, entry.noun)
    size = chance.randint(*entry.size)
    # Names are unique, and a theme has only so many things.
    size = min(size, len(draft.theme.things)) if role == "thing" else size
    entity = draft.entities[role] = Entity(role, noun, size)
    if entry.name:
        entity.add("name", Column(name=entry.name, type="text", label=f"{noun} {entry.name}", unique=True))
    return entity


def _word(theme: Theme, text: str) -> str:
    return Template(text).substitute(msgspec.structs.asdict(theme))


def _columns(draft: Draft, role: str, chance: random.Random, *kinds: str) -> None:
    """Add the columns of some kinds, each as likely as the table says."""
    for kind in kinds:
        entry = tables()[role].columns[kind]
        if entry.likely is None or chance.random() < entry.likely:
            column = Column(
                name=_word(draft.theme, entry.name),
                type=entry.type,
                label=_word(draft.theme, entry.label),
                values=_listed(draft.theme, entry.values),
                examples=_listed(draft.theme, entry.examples),
                least=entry.least,
                most=entry.most,
                unique=entry.unique,
            )
            draft.entities[role].add(kind, column)


def _listed(theme: Theme, values: tuple[str, ...] | str) -> tuple[str, ...]:
    """Values, or those that the theme or the names have under a name. Raises ``KeyError`` for an unknown one."""
    lists = {**msgspec.structs.asdict(theme), **msgspec.structs.asdict(names())}
    found: tuple[str, ...] = lists[values] if isinstance(values, str) else values
    return found


def _refer(draft: Draft, entity: Entity, *roles: str, optional: bool = False) -> None:
    for role in roles:
        if role in draft.entities:
            parent = draft.entities[role]
            column = Column(
                name=parent.key, type="integer", label=parent.noun, references=parent.table, optional=optional
            )
            entity.add(f"to {role}", column)


def _staff(draft: Draft, chance: random.Random) -> None:
    staff = _add(draft, "staff", chance)
    if chance.random() < 0.6:
        _refer(draft, staff, "place")
    _columns(draft, "staff", chance, "category", "counter")


def _party(draft: Draft, chance: random.Random) -> None:
    party = _add(draft, "party", chance)
    _columns(draft, "party", chance, "contact", "text", "category", "counter", "flag")
    if chance.random() < 0.3:
        _refer(draft, party, "staff")
    elif chance.random() < 0.3:
        _refer(draft, party, "place")


def _thing(draft: Draft, chance: random.Random, *, counted: bool) -> None:
    thing = _add(draft, "thing", chance)
    _columns(draft, "thing", chance, "category", "amount", *(["counter"] if counted else []))
    if chance.random() < 0.35:
        _refer(draft, thing, "place")
    _columns(draft, "thing", chance, "flag")


def _record(draft: Draft, chance: random.Random, *, lines: bool) -> None:
    record = _add(draft, "record", chance)
    _refer(draft, record, "party")
    if not lines:
        _refer(draft, record, "thing")
    _columns(draft, "record", chance, "status")
    if "staff" in draft.entities and chance.random() < 0.7:
        _refer(draft, record, "staff", optional=chance.random() < 0.6)
    if chance.random() < 0.4:
        _refer(draft, record, "place")
    _columns(draft, "record", chance, "category", "amount", "text", "day")


def _remark(draft: Draft, role: str, chance: random.Random) -> None:
    """Notes on something, reviews of things, places in a queue."""
    entity = _add(draft, role, chance)
    if role == "note":
        targets = [target for target in ("record", "thing", "party", "place") if target in draft.entities]
        _refer(draft, entity, chance.choice(targets))
        _columns(draft, role, chance, "text", "category")
    else:
        _refer(draft, entity, "party", "thing")
        _columns(draft, role, chance, "amount", "category")


def rows(draft: Draft, chance: random.Random) -> Rows:
    """Rows of every table, with keys from 1."""
    found: Rows = {}
    for entity in draft.entities.values():
        called = _names(draft, entity, chance)
        listed: list[tuple[Value, ...]] = []
        for key in range(1, entity.size + 1):
            name = called[key - 1] if called else None
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
        return list(names().regions[: entity.size])
    if "name" not in entity.kinds:
        return []
    first, last = chance.sample(names().first_names, entity.size), chance.sample(names().last_names, entity.size)
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
