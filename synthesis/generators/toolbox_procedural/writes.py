"""Tools that change something: texts and kinds, numbers, what belongs to what, new and old rows."""

from __future__ import annotations

import random
from collections.abc import Callable

from agentmill.synthesis.environments.toolbox.toolbox import Parameter, Requirement
from agentmill.synthesis.generators.toolbox_procedural.draft import (
    Draft,
    Entity,
    exists,
    key_parameter,
    requires,
    tool_of,
    usable,
    value_parameter,
    words_of,
)
from agentmill.synthesis.generators.toolbox_procedural.lifecycle import advance, create, delete

Operation = Callable[[Draft, Entity, random.Random], None]


def add_writes(draft: Draft, chance: random.Random, least: int = 3, most: int = 7) -> None:
    """The life of records, ways to make rows, and some of all the other operations that the tables allow."""
    record = draft.entities["record"]
    advance(draft, record, chance)
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
    words = words_of(entity, column)
    # A call that sets the value that is there already would be an action without an effect.
    needs = [requires("changed", words), *_gate(entity, chance)]
    draft.add(tool_of("set", entity, words, [value_parameter(entity, column)], needs), "set")


def adjust(draft: Draft, entity: Entity, chance: random.Random) -> None:
    """More or less of a number, which may not fall below its least value."""
    column = entity.of("counter")
    assert column is not None
    template = "raise" if chance.random() < 0.5 else "lower"
    words = words_of(entity, column, least=column.least or 0)
    needs = _gate(entity, chance)
    if template == "lower":
        needs.append(requires("enough", words))
    draft.add(tool_of(template, entity, words, [_amount(entity)], needs), template)


def transfer(draft: Draft, entity: Entity, chance: random.Random) -> None:
    """Some of a number from one row to another; sometimes only between rows of the same parent."""
    column, target = entity.of("counter"), f"to_{entity.key}"
    assert column is not None
    words = words_of(entity, column, least=column.least or 0, target=target)
    needs = [exists(entity, target), requires("two_rows", words), requires("enough", words)]
    shared = [parent for parent in entity.parents() if parent.references != draft.entities["party"].table]
    if shared and chance.random() < 0.5:
        needs.append(requires("same_parent", words_of(entity, chance.choice(shared), target=target)))
    parameters = [key_parameter(entity, target), _amount(entity)]
    draft.add(tool_of("transfer", entity, words, parameters, needs), "transfer")


def switch(draft: Draft, entity: Entity, chance: random.Random) -> None:
    """One of two tools that turn a flag."""
    column = entity.of("flag")
    assert column is not None
    before, after = column.values if chance.random() < 0.5 else column.values[::-1]
    words = words_of(entity, column, before=before, after=after)
    draft.add(tool_of("switch", entity, words, needs=[requires("not_yet_switched", words)]), "switch")


def reassign(draft: Draft, entity: Entity, chance: random.Random) -> None:
    """Another parent; where the parent has a limit, it must not be full, and where it has a flag, it must be on."""
    column = chance.choice(entity.parents())
    parent = draft.entity(column.references)
    words = words_of(entity, column, parent)
    needs = [exists(parent, column.name), requires("not_yet_moved", words)]
    limit, flag = parent.of("limit"), parent.of("flag")
    if limit is not None:
        needs.append(requires("room_left", words | {"limit": limit.name, "limit_label": limit.words}))
    if flag is not None and chance.random() < 0.6:
        needs.append(usable(parent, flag, column.name))
    draft.add(tool_of("move", entity, words, [key_parameter(parent, column.name)], needs), "move")


def swap(draft: Draft, entity: Entity, chance: random.Random) -> None:
    """Two records of different parents change places."""
    column, other = chance.choice(entity.parents()), f"other_{entity.key}"
    words = words_of(entity, column, other=other, column_word=column.name.removesuffix("_id"))
    parameters = [key_parameter(entity), key_parameter(entity, other)]
    needs = [exists(entity), exists(entity, other), requires("other_parent", words)]
    draft.add(tool_of("swap", entity, words, parameters, needs), "swap")


def _amount(entity: Entity) -> Parameter:
    """How much of its number to add, take or move."""
    column = entity.path(entity.kinds["counter"])
    return Parameter(name="amount", column=column, least=1, most=9, description="how many")


def _gate(entity: Entity, chance: random.Random) -> list[Requirement]:
    """Sometimes a row must be in a certain status, or its flag on."""
    column = entity.of("status") or entity.of("flag")
    if column is None or chance.random() < 0.5:
        return []
    return [requires("has_value", words_of(entity, column, value=column.values[0]))]
