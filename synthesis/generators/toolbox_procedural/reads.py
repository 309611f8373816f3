"""Tools that look: by name, by key, by parent, by kind, and sums."""

from __future__ import annotations

import random

from agentmill.synthesis.environments.toolbox.toolbox import Column, Parameter, Tool
from agentmill.synthesis.generators.pddl_procedural.theme import plural
from agentmill.synthesis.generators.toolbox_procedural.draft import Draft, Entity, exists, fields, key_parameter, select


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
    draft.add(
        Tool(
            name=f"find_{entity.word}_by_{column.name}",
            description=f"Finds a {entity.noun} by its {column.words}.",
            parameters=(Parameter(name=column.name, column=entity.path(column.name)),),
            returns=select(entity, f"{column.name} = :{column.name}"),
            columns=fields(entity),
        ),
        "find",
    )


def _show(draft: Draft, entity: Entity) -> None:
    draft.add(
        Tool(
            name=f"show_{entity.word}",
            description=f"Shows a {entity.noun}.",
            parameters=(key_parameter(entity),),
            requires=(exists(entity),),
            returns=select(entity, f"{entity.key} = :{entity.key}"),
            columns=fields(entity),
        ),
        "show",
    )


def _list(draft: Draft, entity: Entity, column: Column, chance: random.Random) -> None:
    """All rows of a parent; sometimes with one more condition, or with few columns only."""
    parent = draft.entity(column.references)
    where, parameters = f"{column.name} = :{column.name}", [key_parameter(parent, column.name)]
    shown, more = fields(entity), ""
    status = entity.of("status") or entity.of("category")
    if status is not None and chance.random() < 0.25:
        where += f" AND {status.name} = :{status.name}"
        parameters.append(Parameter(name=status.name, column=entity.path(status.name)))
        more = f" with a given {status.words}"
    elif chance.random() < 0.25:
        shown.pop(column.name)
    draft.add(
        Tool(
            name=f"list_{entity.table}_of_{parent.word}",
            description=f"Lists the {plural(entity.noun)} of a {parent.noun}{more}.",
            parameters=tuple(parameters),
            requires=(exists(parent, column.name),),
            returns=select(entity, where, shown),
            columns=shown,
        ),
        "list",
    )


def _search(draft: Draft, entity: Entity, kind: str) -> None:
    column = entity.of(kind)
    assert column is not None
    draft.add(
        Tool(
            name=f"search_{entity.table}_by_{column.name}",
            description=f"Lists the {plural(entity.noun)} with a given {column.words}.",
            parameters=(Parameter(name=column.name, column=entity.path(column.name)),),
            returns=select(entity, f"{column.name} = :{column.name}"),
            columns=fields(entity),
        ),
        "search",
    )


def _all(draft: Draft, entity: Entity) -> None:
    draft.add(
        Tool(
            name=f"list_{entity.table}",
            description=f"Lists all {plural(entity.noun)}.",
            returns=select(entity, "1"),
            columns=fields(entity),
        ),
        "all",
    )


def _sum(draft: Draft, entity: Entity, chance: random.Random) -> None:
    """How many rows of a parent there are, and the sum of a number over them."""
    if not entity.parents():
        return
    column = chance.choice(entity.parents())
    parent = draft.entity(column.references)
    number = entity.of("counter") or entity.of("amount")
    summed = f", coalesce(sum({number.name}), 0) AS sum_of_{number.name}" if number else ""
    draft.add(
        Tool(
            name=f"count_{entity.table}_of_{parent.word}",
            description=f"Counts the {plural(entity.noun)} of a {parent.noun}"
            + (f" and sums up their {number.words}." if number else "."),
            parameters=(key_parameter(parent, column.name),),
            requires=(exists(parent, column.name),),
            returns=f"SELECT count(*) AS number_of_{entity.table}{summed} FROM {entity.table} "
            f"WHERE {column.name} = :{column.name}",
            columns={f"number_of_{entity.table}": "", **({f"sum_of_{number.name}": ""} if number else {})},
        ),
        "count",
    )
