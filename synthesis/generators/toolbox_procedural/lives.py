"""The life of a record: tools that take it from one status to the next, with what that brings about elsewhere."""

from __future__ import annotations

import random

from agentmill.synthesis.generators.toolbox_procedural.draft import Draft, Entity, of_row, updating


def lives(draft: Draft, entity: Entity, chance: random.Random) -> None:
    """Steps of a record's life, each with what it brings about elsewhere."""
    life, verbs = draft.theme.life, draft.theme.verbs
    steps: list[tuple[str, tuple[str, ...], str]] = []
    steps += [(verb, (life[number],), life[number + 1]) for number, verb in enumerate(verbs[:-1])]
    open_states = life[: chance.randint(1, len(life) - 2)]
    steps.append((verbs[-1], open_states, life[-1]))
    for verb, before, after in chance.sample(steps, chance.randint(2, len(steps))):
        _step(draft, entity, verb, before, after, chance)


def _step(draft: Draft, entity: Entity, verb: str, before: tuple[str, ...], after: str, chance: random.Random) -> None:
    status = entity.of("status")
    assert status is not None
    listed = ", ".join(f"'{state}'" for state in before)
    requires = [
        of_row(
            entity,
            f"{status.name} IN ({listed})",
            f"the {status.words} of {entity.noun} {{{entity.key}}} is not {' or '.join(before)}",
            f"only one that is {' or '.join(before)} can take this step",
        )
    ]
    also = _consequences(draft, entity, final=after == draft.theme.life[-1], chance=chance)
    staff = entity.of("to staff")
    if staff is not None and staff.optional and chance.random() < 0.5:
        requires.append(
            of_row(
                entity,
                f"{staff.name} IS NOT NULL",
                f"{entity.noun} {{{entity.key}}} has no {staff.words}",
                f"give it to a {staff.words} first",
            )
        )
    updating(
        draft,
        entity,
        f"{verb}_{entity.word}",
        f"Takes a {entity.noun} from {' or '.join(before)} to {after}.",
        f"{status.name} = '{after}'",
        f"{verb.replace('_', ' ')} {{{entity.key}}}",
        requires=tuple(requires),
        also=also,
        part=f"life{len(also)}{len(requires)}",
    )


def _consequences(draft: Draft, entity: Entity, *, final: bool, chance: random.Random) -> tuple[str, ...]:
    """What else a step changes: a thing comes back to the stock, the party earns points."""
    found = []
    for role, likely in (("thing", 0.6 if final else 0.0), ("party", 0.0 if final else 0.5)):
        parent, column = draft.entities[role], entity.of(f"to {role}")
        counter = parent.of("counter")
        if column is not None and counter is not None and chance.random() < likely:
            found.append(
                f"UPDATE {parent.table} SET {counter.name} = {counter.name} + 1 WHERE {parent.key} = "
                f"(SELECT {column.name} FROM {entity.table} WHERE {entity.key} = :{entity.key})"
            )
    return tuple(found)
