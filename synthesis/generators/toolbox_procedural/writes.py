"""Tools that change something: texts and kinds, numbers, what belongs to what, new and old rows."""

from __future__ import annotations

import random
from collections.abc import Callable

from agentmill.synthesis.environments.toolbox.toolbox import Column, Parameter, Requirement, Tool
from agentmill.synthesis.generators.toolbox_procedural.draft import (
    Draft,
    Entity,
    exists,
    fields,
    key_parameter,
    of_row,
    select,
    updating,
    usable,
)
from agentmill.synthesis.generators.toolbox_procedural.lives import lives
from agentmill.synthesis.generators.toolbox_procedural.rows_made import create, delete

Operation = Callable[[Draft, Entity, random.Random], None]


def add_writes(draft: Draft, chance: random.Random, least: int = 3, most: int = 7) -> None:
    """The life of records, ways to make rows, and some of all the other operations that the tables allow."""
    record = draft.entities["record"]
    lives(draft, record, chance)
    create(draft, record, chance)
    options: list[tuple[Operation, Entity]] = []
    for entity in draft.entities.values():
        options += [(set_value, entity)] * bool({"text", "category", "amount", "day", "contact"} & set(entity.kinds))
        options += [(adjust, entity)] * ("counter" in entity.kinds)
        options += [(transfer, entity)] * ("counter" in entity.kinds)
        options += [(switch, entity)] * ("flag" in entity.kinds)
        options += [(reassign, entity)] * bool(entity.parents())
        options += [(create, entity), (delete, entity)] * (
            entity.role in ("note", "review", "waiting", "line", "account")
        )
        options += [(swap, entity)] * ("status" in entity.kinds)
    chance.shuffle(options)
    wanted = len(draft.tools) + chance.randint(least, most)
    for operation, entity in options:
        if len(draft.tools) >= wanted:
            break
        operation(draft, entity, chance)


def set_value(draft: Draft, entity: Entity, chance: random.Random) -> None:
    """A new value in a column; where rows have a status or a flag, sometimes only in one of them."""
    kinds = [kind for kind in ("text", "category", "amount", "day", "contact") if kind in entity.kinds]
    column = entity.of(chance.choice(kinds))
    assert column is not None
    requires = [
        of_row(
            entity,
            f"{column.name} <> :{column.name}",
            f"the {column.words} of {entity.noun} {{{entity.key}}} is {{{column.name}}} already",
            "nothing is left to do here",
        )
    ]
    requires += _gate(entity, chance)
    updating(
        draft,
        entity,
        f"change_{entity.word}_{column.name}",
        f"Changes the {column.words} of a {entity.noun}.",
        f"{column.name} = :{column.name}",
        f"change the {column.words} of {{{entity.key}}} to {{{column.name}}}",
        parameters=(Parameter(name=column.name, column=entity.path(column.name), least=column.least),),
        requires=tuple(requires),
        part="set",
    )


def adjust(draft: Draft, entity: Entity, chance: random.Random) -> None:
    """More or less of a number, which may not fall below its least value."""
    column = entity.of("counter")
    assert column is not None
    up = chance.random() < 0.5
    amount = Parameter(name="amount", column=entity.path(column.name), least=1, most=9, description="how many")
    requires = list(_gate(entity, chance))
    if not up:
        requires.append(_enough(entity, column))
    sign, verb, side = ("+", "add", "to") if up else ("-", "take", "from")
    updating(
        draft,
        entity,
        f"{verb}_{entity.word}_{column.name}",
        f"{'Raises' if up else 'Lowers'} the {column.words} of a {entity.noun} by an amount.",
        f"{column.name} = {column.name} {sign} :amount",
        f"{verb} {{amount}} {side} the {column.words} of {{{entity.key}}}",
        parameters=(amount,),
        requires=tuple(requires),
        part="raise" if up else "lower",
    )


def transfer(draft: Draft, entity: Entity, chance: random.Random) -> None:
    """Some of a number from one row to another; sometimes only between rows of the same parent."""
    column, target = entity.of("counter"), f"to_{entity.key}"
    assert column is not None
    requires = [
        exists(entity, target),
        Requirement(
            query=f"SELECT :{entity.key} <> :{target}", message="source and target are the same", hint="name two"
        ),
        _enough(entity, column),
    ]
    shared = [parent for parent in entity.parents() if parent.references != draft.entities["party"].table]
    if shared and chance.random() < 0.5:
        parent = chance.choice(shared)
        requires.append(
            of_row(
                entity,
                f"{parent.name} = (SELECT {parent.name} FROM {entity.table} WHERE {entity.key} = :{target})",
                f"the two do not belong to the same {parent.words}",
                f"choose two with the same {parent.name}",
            )
        )
    updating(
        draft,
        entity,
        f"transfer_{entity.word}_{column.name}",
        f"Moves an amount of {column.words} from one {entity.noun} to another.",
        f"{column.name} = {column.name} - :amount",
        f"transfer {{amount}} of {column.words} from {{{entity.key}}} to {{{target}}}",
        parameters=(
            key_parameter(entity, target),
            Parameter(name="amount", column=entity.path(column.name), least=1, most=9, description="how many"),
        ),
        requires=tuple(requires),
        also=(f"UPDATE {entity.table} SET {column.name} = {column.name} + :amount WHERE {entity.key} = :{target}",),
        part="transfer",
    )


def switch(draft: Draft, entity: Entity, chance: random.Random) -> None:
    """One of two tools that turn a flag."""
    column = entity.of("flag")
    assert column is not None
    before, after = column.values if chance.random() < 0.5 else column.values[::-1]
    updating(
        draft,
        entity,
        f"set_{entity.word}_{after}",
        f"Sets the {column.words} from {before} to {after}.",
        f"{column.name} = '{after}'",
        f"set {{{entity.key}}} to {after}",
        requires=(
            of_row(
                entity,
                f"{column.name} = '{before}'",
                f"{entity.noun} {{{entity.key}}} is {after} already",
                "nothing is left to do here",
            ),
        ),
        part="switch",
    )


def reassign(draft: Draft, entity: Entity, chance: random.Random) -> None:
    """Another parent; where the parent has a limit, it must not be full, and where it has a flag, it must be on."""
    column = chance.choice(entity.parents())
    parent = draft.entity(column.references)
    requires = [
        exists(parent, column.name),
        of_row(
            entity,
            f"coalesce({column.name}, 0) <> :{column.name}",
            f"{entity.noun} {{{entity.key}}} belongs to that {parent.noun} already",
            "nothing is left to do here",
        ),
    ]
    limit, flag = parent.of("limit"), parent.of("flag")
    if limit is not None:
        requires.append(
            Requirement(
                query=f"SELECT {limit.name} > (SELECT count(*) FROM {entity.table} WHERE {column.name} = "
                f":{column.name}) FROM {parent.table} WHERE {parent.key} = :{column.name}",
                message=f"{parent.noun} {{{column.name}}} is full",
                hint=f"choose a {parent.noun} whose {limit.words} is not reached",
            )
        )
    if flag is not None and chance.random() < 0.6:
        requires.append(usable(parent, flag, column.name))
    updating(
        draft,
        entity,
        f"move_{entity.word}_to_{parent.word}",
        f"Gives a {entity.noun} to another {parent.noun}.",
        f"{column.name} = :{column.name}",
        f"move {{{entity.key}}} to {{{column.name}}}",
        parameters=(key_parameter(parent, column.name),),
        requires=tuple(requires),
        part="move",
    )


def swap(draft: Draft, entity: Entity, chance: random.Random) -> None:
    """Two records of different parents change places."""
    column, other = chance.choice(entity.parents()), f"other_{entity.key}"
    theirs = f"(SELECT {column.name} FROM {entity.table} WHERE {entity.key} = :{other})"
    both = f"{column.name} = (SELECT sum(coalesce({column.name}, 0)) FROM {entity.table} WHERE {entity.key} IN "
    draft.add(
        Tool(
            name=f"swap_{entity.word}_{column.name.removesuffix('_id')}",
            description=f"Exchanges the {column.words} of two {entity.table.replace('_', ' ')}.",
            parameters=(key_parameter(entity), key_parameter(entity, other)),
            requires=(
                exists(entity),
                exists(entity, other),
                of_row(entity, f"{column.name} <> {theirs}", f"both have the same {column.words}", "choose two others"),
            ),
            writes=(
                f"UPDATE {entity.table} SET {both}(:{entity.key}, :{other})) - {column.name} "
                f"WHERE {entity.key} IN (:{entity.key}, :{other})",
            ),
            returns=select(entity, f"{entity.key} IN (:{entity.key}, :{other})"),
            columns=fields(entity),
            request=f"exchange the {column.words} of {{{entity.key}}} and {{{other}}}",
        ),
        "swap",
    )


def _gate(entity: Entity, chance: random.Random) -> list[Requirement]:
    """Sometimes a row must be in a certain status, or its flag on."""
    column = entity.of("status") or entity.of("flag")
    if column is None or chance.random() < 0.5:
        return []
    wanted = column.values[0]
    told = f"the {column.words} of {entity.noun} {{{entity.key}}} is not {wanted}"
    return [of_row(entity, f"{column.name} = '{wanted}'", told, f"choose a {entity.noun} that is {wanted}")]


def _enough(entity: Entity, column: Column) -> Requirement:
    least = column.least or 0
    message = f"{entity.noun} {{{entity.key}}} has less than {{amount}} left"
    return of_row(entity, f"{column.name} - :amount >= {least}", message, "choose a smaller amount")
