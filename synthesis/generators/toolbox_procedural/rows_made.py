"""Tools that make rows and take rows away."""

from __future__ import annotations

import random

from agentmill.synthesis.environments.toolbox.toolbox import Column, Parameter, Requirement, Tool
from agentmill.synthesis.generators.toolbox_procedural.draft import (
    Draft,
    Entity,
    exists,
    fields,
    key_parameter,
    select,
    usable,
)

_OPEN_RECORDS = (3, 4, 5)


def create(draft: Draft, entity: Entity, chance: random.Random) -> None:
    """A new row: its parents and most values are given, a status begins at its first value, an empty place stays."""
    parents = [column for column in entity.parents() if not column.optional]
    status = entity.of("status")
    given = [column for column in entity.columns if not column.references and column is not status]
    parameters = [key_parameter(draft.entity(column.references), column.name) for column in parents]
    parameters += [Parameter(name=column.name, column=entity.path(column.name), least=column.least) for column in given]
    requires = [exists(draft.entity(column.references), column.name) for column in parents]
    writes = []
    for column in parents:
        more, effect = _conditions(draft, entity, column, chance)
        requires += more
        writes += effect
    names = [column.name for column in (*parents, *given)]
    values = [f":{name}" for name in names]
    if status is not None:
        names, values = [*names, status.name], [*values, f"'{status.values[0]}'"]
    insert = f"INSERT INTO {entity.table} ({', '.join(names)}) VALUES ({', '.join(values)})"
    draft.add(
        Tool(
            name=f"create_{entity.word}",
            description=f"Makes a new {entity.noun}.",
            parameters=tuple(parameters),
            requires=tuple(requires),
            writes=(insert, *writes),
            returns=select(entity, f"{entity.key} = :new_id"),
            columns=fields(entity),
            request=_request(entity, parents, given),
        ),
        f"create{len(requires)}{len(writes)}",
    )


def delete(draft: Draft, entity: Entity, chance: random.Random) -> None:
    """A row less; a row that others refer to stays."""
    requires = [exists(entity)]
    requires += [
        Requirement(
            query=f"SELECT count(*) = 0 FROM {child.table} WHERE {column.name} = :{entity.key}",
            message=f"{entity.noun} {{{entity.key}}} still has {child.table.replace('_', ' ')}",
            hint=f"remove or move its {child.table.replace('_', ' ')} first",
        )
        for child, column in draft.children(entity)
    ]
    category = entity.of("category")
    if category is not None and chance.random() < 0.4:
        wanted = category.values[0]
        requires.append(
            Requirement(
                query=f"SELECT {category.name} = '{wanted}' FROM {entity.table} WHERE {entity.key} = :{entity.key}",
                message=f"the {category.words} of {entity.noun} {{{entity.key}}} is not {wanted}",
                hint=f"only one that is {wanted} can be removed",
            )
        )
    draft.add(
        Tool(
            name=f"remove_{entity.word}",
            description=f"Removes a {entity.noun} for good.",
            parameters=(key_parameter(entity),),
            requires=tuple(requires),
            writes=(f"DELETE FROM {entity.table} WHERE {entity.key} = :{entity.key}",),
            returns=f"SELECT count(*) AS number_of_{entity.table} FROM {entity.table}",
            columns={f"number_of_{entity.table}": ""},
            request=f"remove {{{entity.key}}}",
        ),
        f"remove{len(requires)}",
    )


def _conditions(
    draft: Draft, entity: Entity, column: Column, chance: random.Random
) -> tuple[list[Requirement], list[str]]:
    """What a parent must be like to get a new child, and what that costs it."""
    parent = draft.entity(column.references)
    flag, counter, status = parent.of("flag"), parent.of("counter"), entity.of("status")
    requires, effects = [], []
    if flag is not None and chance.random() < 0.6:
        requires.append(usable(parent, flag, column.name))
    if counter is not None and parent.role == "thing" and entity.role in ("record", "line") and chance.random() < 0.7:
        cost = ":quantity" if entity.role == "line" else "1"
        requires.append(
            Requirement(
                query=f"SELECT {counter.name} >= {cost} FROM {parent.table} WHERE {parent.key} = :{column.name}",
                message=f"{parent.noun} {{{column.name}}} has not enough {counter.words}",
                hint=f"choose a {parent.noun} with more {counter.words}",
            )
        )
        effects.append(
            f"UPDATE {parent.table} SET {counter.name} = {counter.name} - {cost} WHERE {parent.key} = :{column.name}"
        )
    if status is not None and parent.role == "party" and chance.random() < 0.4:
        most = chance.choice(_OPEN_RECORDS)
        first = status.values[0]
        requires.append(
            Requirement(
                query=f"SELECT count(*) < {most} FROM {entity.table} WHERE {column.name} = :{column.name} "
                f"AND {status.name} = '{first}'",
                message=f"{parent.noun} {{{column.name}}} has {most} that are {first} already",
                hint=f"one of them must leave the state {first} first",
            )
        )
    return requires, effects


def _request(entity: Entity, parents: list[Column], given: list[Column]) -> str:
    owners = " and ".join(f"{{{column.name}}}" for column in parents)
    details = " and ".join(f"{column.words} {{{column.name}}}" for column in given)
    return f"make a new {entity.noun}{f' for {owners}' if owners else ''}{f' with {details}' if details else ''}"
