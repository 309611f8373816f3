"""Quotas of a mixture or a selection: at most so many rows, or such a share, for each value of a field.

A field is one of the row itself, or of its task, its environment or its trajectory in another table:
``environment_id``, ``task.skills``, ``environment.family``, ``trajectory.source.dataset``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from pydantic import Field, model_validator

from agentmill.pipelines.operators.lookup import conflict
from agentmill.pipelines.operators.operator import Inputs, expect, tables_of
from agentmill.schemas.arrow.layout import Leaf, Node, Structure, field_type, layout
from agentmill.schemas.config import Config
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.record_kinds import RECORD_KINDS
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.rows import PreferenceRow
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.tables import read_columns

SIDE_ROLES: Mapping[str, type[Record]] = {"tasks": Task, "environments": EnvironmentSpec, "trajectories": Trajectory}
"""The tables that fields may be of, by role."""

ROLE_OF = {"task": "tasks", "environment": "environments", "trajectory": "trajectories"}
"""The roles by the first part of a field."""

LISTS = ("skills",)
"""Fields that are lists: a row falls under the quota of each of their values."""


class Quota(Config):
    """The most that a mixture holds of each value of a field."""

    by: str = Field(
        min_length=1,
        description="a field of the row, or task.FIELD, environment.FIELD, trajectory.FIELD; task.skills is a list",
    )
    at_most: int | None = Field(default=None, ge=1, description="rows (tokens, with a tokenizer) for each value")
    share: float | None = Field(default=None, gt=0, lt=1, description="of `size`, for each value")

    @model_validator(mode="after")
    def _one_bound(self) -> Quota:
        if (self.at_most is None) == (self.share is None):
            raise ValueError(f"the quota by {self.by} has one of `at_most` and `share`, as {{by: split, at_most: 100}}")
        return self

    @property
    def role(self) -> str | None:
        """The role of the tables that its field is of; ``None`` for a field of the row itself."""
        return ROLE_OF.get(self.by.partition(".")[0])

    @property
    def field(self) -> str:
        """Its field, in the record that has it."""
        return self.by if self.role is None else self.by.partition(".")[2]

    def cap(self, size: int | None) -> int:
        """The most for each value in a mixture of ``size``, rounded down."""
        return self.at_most if self.at_most is not None else math.floor((self.share or 0) * (size or 0) + 1e-9)

    def check(self, record: type[Record]) -> None:
        """Raises ``UserError`` for a field that neither rows of ``record`` nor the tables of its role have."""
        owner = record if self.role is None else SIDE_ROLES[self.role]
        if owner is Trajectory and record is Trajectory and self.role is not None:
            raise UserError(
                f"the quota by {self.by} is of the trajectories themselves; write `by: {self.field}`",
                ErrorCode.KEY_NOT_FOR_THIS,
            )
        if self.field in LISTS and self.field in layout(owner).fields:
            return
        try:
            field_type(owner, self.field, "by")
        except ValueError as error:
            fields = "task.FIELD, environment.FIELD and trajectory.FIELD are fields of other tables"
            raise UserError(f"quotas: {error}\n{fields}", ErrorCode.FIELD_MISSING) from error


def check_quotas(quotas: Sequence[Quota], record: str, reads: Mapping[str, Sequence[str]]) -> None:
    """Raises ``UserError`` for a field that ``record`` has not, and for a table that is missing, or that none asks."""
    for quota in quotas:
        quota.check(RECORD_KINDS[record].type)
    for role, wanted in SIDE_ROLES.items():
        asked = next((quota for quota in quotas if quota.role == role), None)
        if asked is not None and role not in reads:
            raise UserError(f"the quota by {asked.by} needs `{role}`", ErrorCode.NEEDS_ANOTHER_KEY)
        if role in reads:
            expect(reads, role, wanted.__name__)
            if asked is None:
                raise UserError(
                    f"no quota asks `{role}`\nleave it out, or give a quota by {role.removesuffix('s')}.FIELD",
                    ErrorCode.KEY_NOT_FOR_THIS,
                )


class QuotaValues:
    """The values that rows have in the field of a quota. Pickles as paths; each worker loads other tables once.

    ``parameter`` is what names the field, with its step, for messages.
    """

    def __init__(self, quota: Quota, record: type[Record], inputs: Inputs, parameter: str = "mix: `quotas`") -> None:
        self.by = quota.by
        self._parameter = parameter
        self._others: set[str] = set()
        self.without: set[str] = set()
        """The rows without any value, which no quota bounds."""
        self._field = quota.field
        self._record = record
        self._key = str(RECORD_KINDS[record.__name__].key)
        self._owner = None if quota.role is None else SIDE_ROLES[quota.role]
        tables = [] if quota.role is None else tables_of(inputs, quota.role)
        self._places = [(table.folder, path) for table in tables for path in table.shards()]
        self._known: dict[str, tuple[str, ...]] = {}

    def load(self) -> None:
        """Read the field of the other tables, if it is one of theirs. Raises ``UserError`` where two of their records
        have one id and different values."""
        self.without, self._known, self._others = set(), {}, set()
        for _, path in self._places:
            for owner_id, values in self._owned(path):
                if self._known.setdefault(owner_id, values) != values:
                    raise self._conflict(owner_id)

    def values_in(self, path: Path) -> list[tuple[str, ...]]:
        """The values of each row in a shard, in order."""
        if self._owner is None:
            values = list(self._values(path, self._record))
        else:
            values = [self._known.get(each or "", ()) for each in _column(path, self._record, self._link())]
        ids = _column(path, self._record, self._key)
        self.without |= {row_id for row_id, own in zip(ids, values, strict=True) if not own}
        return values

    def check_found(self, ids: Sequence[str]) -> None:
        """Raises ``UserError`` if none of the rows has a value: a quota that bounds nothing is a mistake."""
        if ids and self.without.issuperset(ids):
            raise UserError(
                f"{self._parameter}: none of {len(ids):,} rows has a value of {self.by}, so it has no effect\n"
                f"leave it out, or name a field that the rows have.{near_match(self.by, self._others)}",
                ErrorCode.FIELD_MISSING,
            )

    def _owned(self, path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The ids and values in a shard of the other tables."""
        assert self._owner is not None
        ids = _column(path, self._owner, str(RECORD_KINDS[self._owner.__name__].key))
        return zip(ids, self._values(path, self._owner), strict=True)

    def _conflict(self, owner_id: str) -> UserError:
        """The tables are searched again, since the places of all records would take more memory than their values."""
        held = (str(folder) for folder, path in self._places if any(each == owner_id for each, _ in self._owned(path)))
        return conflict(held, f"values of {self.by} ({self._parameter})", owner_id)

    def _link(self) -> str:
        """The column of rows with the id of the record that has the field."""
        if self._owner is Trajectory and self._record is PreferenceRow:
            return "chosen_id"
        return str(RECORD_KINDS[self._owner.__name__].key) if self._owner is not None else self._key

    def _values(self, path: Path, record: type[Record]) -> Iterator[tuple[str, ...]]:
        head, *rest = self._field.split(".")
        for found in _column(path, record, head):
            node: Node | None = layout(record).fields[head]
            for part in rest:
                # An open field is JSON text in its column; a text within it has no fields.
                found = msgspec.json.decode(found) if isinstance(node, Leaf) and isinstance(found, str) else found
                node = node.fields[part] if isinstance(node, Structure) else None
                if isinstance(found, dict) and part not in found:
                    self._others |= {self.by.removesuffix(part) + name for name in found}
                found = found.get(part) if isinstance(found, dict) else None
            found = found if isinstance(found, list) else [found]
            # A row counts once for each of its values.
            yield tuple(dict.fromkeys(_as_text(each) for each in found if each is not None))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}, "_others": set(), "without": set()}


def _column(path: Path, record: type[Record], name: str) -> list[Any]:
    values: list[Any] = read_columns(path, record, [name])[name].to_pylist()
    return values


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value, order="deterministic").decode()
