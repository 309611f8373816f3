"""Tools by which rows come, go from one status to the next, and are taken away, with what that changes elsewhere."""

from __future__ import annotations

import random

from agentmill.synthesis.environments.toolbox.toolbox import Column, Requirement
from agentmill.synthesis.generators.toolbox_procedural.draft import (
    Draft,
    Entity,
    Words,
    effect,
    exists,
    key_parameter,
    requires,
    tool_of,
    usable,
    value_parameter,
    words_of,
)

_OPEN_RECORDS = (3, 4, 5)


def advance(draft: Draft, entity: Entity, chance: random.Random) -> None:
    """Steps of a record's life, each with what it brings about elsewhere."""
    life, verbs = draft.theme.life, draft.theme.verbs
    steps: list[tuple[str, tuple[str, ...], str]] = []
    steps += [(verb, (life[number],), life[number + 1]) for number, verb in enumerate(verbs[:-1])]
    open_states = life[: chance.randint(1, len(life) - 2)]
    steps.append((verbs[-1], open_states, life[-1]))
    for verb, before, after in chance.sample(steps, chance.randint(2, len(steps))):
        _step(draft, entity, verb, before, after, chance)


def _step(draft: Draft, entity: Entity, verb: str, before: tuple[str, ...], after: str, chance: random.Random) -> None:
    words = words_of(
        entity,
        entity.of("status"),
        verb=verb,
        verb_words=verb.replace("_", " "),
        before=" or ".join(before),
        after=after,
        listed=", ".join(f"'{state}'" for state in before),
    )
    needs = [requires("in_status", words)]
    also = _consequences(draft, entity, final=after == draft.theme.life[-1], chance=chance)
    staff = entity.of("to staff")
    if staff is not None and staff.optional and chance.random() < 0.5:
        needs.append(requires("has_staff", words_of(entity, staff)))
    draft.add(tool_of("step", entity, words, needs=needs, also=also), f"life{len(also)}{len(needs)}")


def _consequences(draft: Draft, entity: Entity, *, final: bool, chance: random.Random) -> list[str]:
    """What else a step changes: a thing comes back to the stock, the party earns points."""
    found = []
    for role, likely in (("thing", 0.6 if final else 0.0), ("party", 0.0 if final else 0.5)):
        parent, column = draft.entities[role], entity.of(f"to {role}")
        counter = parent.of("counter")
        if column is not None and counter is not None and chance.random() < likely:
            found.append(effect("counted_up", words_of(entity, column, parent, counter=counter.name)))
    return found


def create(draft: Draft, entity: Entity, chance: random.Random) -> None:
    """A new row: its parents and most values are given, a status begins at its first value, an empty place stays."""
    parents = [column for column in entity.parents() if not column.optional]
    status = entity.of("status")
    given = [column for column in entity.columns if not column.references and column is not status]
    parameters = [key_parameter(draft.entity(column.references), column.name) for column in parents]
    parameters += [value_parameter(entity, column) for column in given]
    needs = [exists(draft.entity(column.references), column.name) for column in parents]
    also = []
    for column in parents:
        more, costs = _conditions(draft, entity, column, chance)
        needs += more
        also += costs
    names = [column.name for column in (*parents, *given)]
    values = [f":{name}" for name in names]
    if status is not None:
        names, values = [*names, status.name], [*values, f"'{status.values[0]}'"]
    words = words_of(entity, names=", ".join(names), values=", ".join(values)) | _details(parents, given)
    draft.add(tool_of("create", entity, words, parameters, needs, also), f"create{len(needs)}{len(also)}")


def delete(draft: Draft, entity: Entity, chance: random.Random) -> None:
    """A row less; of a table that no other refers to."""
    needs = [exists(entity)]
    category = entity.of("category")
    if category is not None and chance.random() < 0.4:
        needs.append(requires("removable", words_of(entity, category, value=category.values[0])))
    columns = {f"number_of_{entity.table}": ""}
    tool = tool_of("remove", entity, words_of(entity), [key_parameter(entity)], needs, columns=columns)
    draft.add(tool, f"remove{len(needs)}")


def _conditions(
    draft: Draft, entity: Entity, column: Column, chance: random.Random
) -> tuple[list[Requirement], list[str]]:
    """What a parent must be like to get a new child, and what that costs it."""
    parent = draft.entity(column.references)
    flag, counter, status = parent.of("flag"), parent.of("counter"), entity.of("status")
    words = words_of(entity, column, parent)
    needs, costs = [], []
    if flag is not None and chance.random() < 0.6:
        needs.append(usable(parent, flag, column.name))
    if counter is not None and parent.role == "thing" and entity.role in ("record", "line") and chance.random() < 0.7:
        cost = ":quantity" if entity.role == "line" else "1"
        words |= {"counter": counter.name, "counter_label": counter.words, "cost": cost}
        needs.append(requires("in_stock", words))
        costs.append(effect("taken_from_stock", words))
    if status is not None and parent.role == "party" and chance.random() < 0.4:
        words |= {"most": chance.choice(_OPEN_RECORDS), "first": status.values[0], "status": status.name}
        needs.append(requires("few_open", words))
    return needs, costs


def _details(parents: list[Column], given: list[Column]) -> Words:
    """How a request for a new row names its parents and values."""
    owners = " and ".join(f"{{{column.name}}}" for column in parents)
    details = " and ".join(f"{column.words} {{{column.name}}}" for column in given)
    return {"owners": owners and f" for {owners}", "details": details and f" with {details}"}
