"""What calls did to a database, in a form that does not depend on the order in which they did it.

A row that was inserted is known by what is in it, not by its key: where another column holds the key of such a row, it
is replaced by a name made of that row's contents. Rows that were there before are known by their keys.
"""

from __future__ import annotations

import msgspec

from agentmill.schemas.ids import digest
from agentmill.schemas.records.record import JsonObject
from agentmill.synthesis.environments.toolbox.database import Contents
from agentmill.synthesis.environments.toolbox.toolbox import Table, Toolbox, Value


class Changes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Per table: the columns that ``updated`` rows have now, by key; ``inserted`` rows without key, sorted; keys of
    ``deleted`` rows."""

    updated: dict[str, dict[int, dict[str, Value]]] = {}
    inserted: dict[str, list[JsonObject]] = {}
    deleted: dict[str, list[int]] = {}

    def __bool__(self) -> bool:
        return bool(self.updated or self.inserted or self.deleted)

    def values(self) -> list[str]:
        """The values that columns have now, as texts."""
        fields = [fields for rows in self.updated.values() for fields in rows.values()]
        fields += [row for rows in self.inserted.values() for row in rows]
        return [str(value) for row in fields for value in row.values() if value is not None]

    def facts(self) -> list[str]:
        """The changes one by one, as texts that are equal for equal changes."""
        found = [
            _fact("updated", table, key, name, value)
            for table, rows in self.updated.items()
            for key, fields in rows.items()
            for name, value in fields.items()
        ]
        for table, rows in self.inserted.items():
            found += [
                _fact("inserted", table, row, sum(row == other for other in rows[:n])) for n, row in enumerate(rows)
            ]
        return found + [_fact("deleted", table, key) for table, keys in self.deleted.items() for key in keys]


def changes(toolbox: Toolbox, before: Contents, after: Contents) -> Changes:
    """The difference between two contents of the same tables."""
    names = _Names(toolbox, before, after)
    updated: dict[str, dict[int, dict[str, Value]]] = {}
    inserted: dict[str, list[JsonObject]] = {}
    deleted: dict[str, list[int]] = {}
    for table in toolbox.tables:
        old, new = before[table.name], after[table.name]
        if old == new:
            continue
        differing = {key: names.difference(table, old[key], new[key]) for key in new if key in old}
        updated |= {table.name: found} if (found := {key: each for key, each in differing.items() if each}) else {}
        rows = [names.fields(table, new[key]) for key in new if key not in old]
        # By digest: rows with nulls and texts cannot be compared, and their keys depend on the order of the calls.
        inserted |= {table.name: sorted(rows, key=digest)} if rows else {}
        gone = sorted(key for key in old if key not in new)
        deleted |= {table.name: gone} if gone else {}
    return Changes(updated, inserted, deleted)


def new_row(table: str, fields: JsonObject) -> str:
    """What a new row is called by those that refer to it; ``fields`` are its columns without the key."""
    return f"new {table} {digest(fields)[:12]}"


class _Names:
    """What keys are called: those that are new by the contents of their rows."""

    def __init__(self, toolbox: Toolbox, before: Contents, after: Contents) -> None:
        self._tables = {table.name: table for table in toolbox.tables}
        self._before = before
        self._after = after
        self._known: dict[tuple[str, int], str] = {}

    def fields(self, table: Table, row: tuple[Value, ...]) -> JsonObject:
        """A new row without its key."""
        columns = zip(table.columns[1:], row[1:], strict=True)
        return {column.name: self._name(column.references, value) for column, value in columns}

    def difference(self, table: Table, old: tuple[Value, ...], new: tuple[Value, ...]) -> dict[str, Value]:
        """The columns in which an old row differs now."""
        columns = zip(table.columns, old, new, strict=True)
        return {column.name: self._name(column.references, now) for column, was, now in columns if was != now}

    def _name(self, references: str, value: Value) -> Value:
        """A value, or the name of the new row that it refers to. Of rows that refer in a circle one keeps its key."""
        if not references or not isinstance(value, int) or value in self._before[references]:
            return value
        place = (references, value)
        row = self._after[references].get(value)
        if row is None:
            return value
        if place not in self._known:
            # Set before the row is looked at, which ends a circle of references.
            self._known[place] = str(value)
            self._known[place] = new_row(references, self.fields(self._tables[references], row))
        return self._known[place]


def _fact(*parts: object) -> str:
    return msgspec.json.encode(parts, order="deterministic").decode()


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The keys of ``spec.parameters``.

    ``hints`` tells with a refusal what would help; ``milestones`` rewards progress with the change of the score;
    ``faults`` is the share of calls that fail the first time, by no fault of the agent; ``user`` can be asked;
    ``decline`` lets the agent end without doing what is asked.
    """

    hints: bool = False
    milestones: bool = False
    faults: float = 0.0
    user: bool = False
    decline: bool = False


class State(msgspec.Struct, frozen=True):
    """All of a state but the rows. ``failed`` are calls that failed by a fault, ``asked`` slots that the user gave.

    Who declines has answered nothing; the reason is in ``declined``, which no other state has.
    """

    answer: str | None = None
    violations: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    declined: str | msgspec.UnsetType = msgspec.UNSET


class Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A snapshot. ``progress`` is how many actions of the gold solution were taken."""

    task_id: str
    state: State
    progress: int
    image: bytes
