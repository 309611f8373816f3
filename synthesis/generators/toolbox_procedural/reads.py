"""Tools that look: by name, by key, by parent, by kind, and sums."""

from __future__ import annotations

import random

from agentmill.synthesis.environments.toolbox.toolbox import Column, Parameter
from agentmill.synthesis.generators.toolbox_procedural.draft import (
    Draft,
    Entity,
    exists,
    fields,
    key_parameter,
    tool_of,
    words_of,
)


def add_reads(draft: Draft, chance: random.Random) -> None:
    """At least one way to every table, and some more."""
    for entity in draft.entities.values():
        named = entity.of("name")
        if named is not None:
            _find(draft, entity, named)
        contact = entity.of("contact")
        if contact is not None and chance.random() < 0.5:
            _find(draft, entity, contact)
        for column in _listed_by(entity, chance):
            _list(draft, entity, column, chance)
        if named is None or chance.random() < 0.2:
            _show(draft, entity)
        kinds = [kind for kind in ("category", "status", "flag", "text") if kind in entity.kinds and entity.of(kind)]
        if kinds and chance.random() < 0.3:
            _search(draft, entity, chance.choice(kinds))
        if entity.size <= 9 and chance.random() < 0.3:
            _all(draft, entity)
        if chance.random() < 0.2:
            _sum(draft, entity, chance)


def _listed_by(entity: Entity, chance: random.Random) -> list[Column]:
    """The parents whose rows of this entity can be listed: one for sure where it has no name."""
    parents = entity.parents()
    if not parents:
        return []
    sure = [] if "name" in entity.kinds else [chance.choice(parents)]
    return sure + [column for column in parents if column not in sure and chance.random() < 0.25]


def _find(draft: Draft, entity: Entity, column: Column) -> None:
    parameter = Parameter(name=column.name, column=entity.path(column.name))
    draft.add(tool_of("find", entity, words_of(entity, column), [parameter]), "find")


def _show(draft: Draft, entity: Entity) -> None:
    draft.add(tool_of("show", entity, words_of(entity), [key_parameter(entity)], [exists(entity)]), "show")


def _list(draft: Draft, entity: Entity, column: Column, chance: random.Random) -> None:
    """All rows of a parent; sometimes with one more condition, or with few columns only."""
    parent = draft.entity(column.references)
    template, parameters = "list", [key_parameter(parent, column.name)]
    words, shown = words_of(entity, column, parent), fields(entity)
    status = entity.of("status") or entity.of("category")
    if status is not None and chance.random() < 0.25:
        template = "list_with"
        words |= {"given": status.name, "given_label": status.words}
        parameters.append(Parameter(name=status.name, column=entity.path(status.name)))
    elif chance.random() < 0.25:
        shown.pop(column.name)
    draft.add(tool_of(template, entity, words, parameters, [exists(parent, column.name)], columns=shown), "list")


def _search(draft: Draft, entity: Entity, kind: str) -> None:
    column = entity.of(kind)
    assert column is not None
    parameter = Parameter(name=column.name, column=entity.path(column.name))
    draft.add(tool_of("search", entity, words_of(entity, column), [parameter]), "search")


def _all(draft: Draft, entity: Entity) -> None:
    draft.add(tool_of("all", entity, words_of(entity)), "all")


def _sum(draft: Draft, entity: Entity, chance: random.Random) -> None:
    """How many rows of a parent there are, and the sum of a number over them."""
    if not entity.parents():
        return
    column = chance.choice(entity.parents())
    parent = draft.entity(column.references)
    number = entity.of("counter") or entity.of("amount")
    words, columns = words_of(entity, column, parent), {f"number_of_{entity.table}": ""}
    if number is not None:
        words |= {"summed": number.name, "summed_label": number.words}
        columns[f"sum_of_{number.name}"] = ""
    template = "count" if number is None else "count_and_sum"
    parameters, needs = [key_parameter(parent, column.name)], [exists(parent, column.name)]
    draft.add(tool_of(template, entity, words, parameters, needs, columns=columns), "count")
