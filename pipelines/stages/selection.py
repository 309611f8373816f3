"""``selections`` of a step: which trajectories the tables of selections keep, one table or several together.

selections: picked                                      # what the table keeps
selections: [deduped, picked]                           # what each of the tables keeps that knows the trajectory
selections: {any: [short, solved]}                      # what one of them keeps
selections: {all: [deduped, picked], strict: true}      # and nothing that no table knows

A trajectory that no table knows stays, unless ``strict``: seeds of another source are not lost by a selection that was
made before they came in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import pyarrow.compute as pc
from pydantic import BeforeValidator, Field, model_validator

from pipelines.stages.lookup import Shards, ids_of
from pipelines.stages.stage import TableNames
from schemas.config import Config
from schemas.errors import UserError
from schemas.manifest import Manifest
from schemas.record import JsonObject
from schemas.tables import Table
from schemas.verdict import Selection
from schemas.views.view import Unused

COLUMNS = ["item", "reason"]


class Selections(Config):
    """Tables of selections and how they go together: ``all`` that know a trajectory keep it, or ``any`` of them."""

    all: TableNames | None = Field(default=None, description="each table that knows a trajectory must keep it")
    any: TableNames | None = Field(default=None, description="one table that keeps a trajectory is enough")
    strict: bool = Field(default=False, description="what no table knows is dropped; otherwise it stays")

    @model_validator(mode="after")
    def _one_list(self) -> Selections:
        if (self.all is None) == (self.any is None):
            raise ValueError("expected one of `all` and `any`, for example {any: [short, solved]}")
        return self

    @property
    def names(self) -> list[str]:
        """The tables."""
        return list(self.all or self.any or ())

    def rule(self) -> JsonObject:
        """How the tables go together, without their names."""
        return {"keep": "all" if self.any is None else "any", "strict": self.strict}


def _as_mapping(value: Any) -> Any:
    return {"all": value} if isinstance(value, str | list) else value


SelectionTables = Annotated[Selections, BeforeValidator(_as_mapping)]
"""``Selections``; the name of a table, or a list of them, is short for ``all``."""


class Selected:
    """What tables of selections decide. Pickles as paths; each worker loads it once."""

    def __init__(self, tables: Iterable[Table], given: Selections) -> None:
        self._tables = [(str(table.folder), Shards([table], Selection, COLUMNS)) for table in tables]
        self._any = given.any is not None
        self._strict = given.strict
        self._reasons: dict[str, str | None] = {}

    def load(self) -> None:
        """Read the tables. Raises ``UserError`` for one that cannot be read, contradicts itself or selects steps."""
        self._reasons = {}
        for folder, shards in self._tables:
            for trajectory_id, reason in _decisions(folder, shards).items():
                if not self._decided(trajectory_id):
                    self._reasons[trajectory_id] = reason

    def _decided(self, trajectory_id: str) -> bool:
        """Whether no further table changes the decision: under ``any`` one that keeps, under ``all`` one that drops."""
        return self.knows(trajectory_id) and (self._reasons[trajectory_id] is None) is self._any

    def knows(self, trajectory_id: str) -> bool:
        """Whether any of the tables selects or drops it."""
        return trajectory_id in self._reasons

    def check(self, trajectory_id: str) -> None:
        """Raises ``Unused`` for a trajectory that is not kept."""
        if not self.knows(trajectory_id):
            if self._strict:
                raise Unused("not_selected", "no selection knows it (strict: true)")
            return
        reason = self._reasons[trajectory_id]
        if reason is not None:
            raise Unused("not_selected", reason)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reasons": {}}


def _decisions(folder: str, shards: Shards[Selection]) -> dict[str, str | None]:
    """Why a table does not keep a trajectory, ``None`` where it does. Selections of several names must all keep it."""
    rows: dict[tuple[str, str], Selection] = {}
    reasons: dict[str, str | None] = {}
    for row in shards:
        if row.item is not None:
            raise UserError(f"{folder} selects steps (item {row.item}); expected selections of whole trajectories")
        shards.put(rows, (row.trajectory_id, row.name), row, f"{row.name!r} of trajectory {row.trajectory_id}")
        reason = None if row.kept else row.reason or f"selection {row.name!r}"
        reasons[row.trajectory_id] = reasons.get(row.trajectory_id) or reason
    return reasons


def kept_notes(manifest: Manifest) -> list[str]:
    """A warning where a table of selections keeps nothing."""
    if not manifest.counts.written or manifest.metrics.get("kept", 0):
        return []
    return [f"warning: none of {manifest.counts.written:,} trajectories is kept; the reasons are in the table"]


def check_overlap(selections: Sequence[Table], trajectories: Sequence[Table]) -> None:
    """Raises ``UserError`` for a table of selections that knows none of the trajectories, and so would do nothing."""
    known = [ids_of(table) for table in trajectories]
    for table in selections:
        ids = ids_of(table).combine_chunks()
        if any(map(len, known)) and len(ids) and not any(pc.any(pc.is_in(own, ids)).as_py() for own in known):
            folders = " and ".join(str(each.folder) for each in trajectories)
            raise UserError(
                f"{table.folder} selects none of the trajectories in {folders}, but others\n"
                "name the selections that were made of these, or leave `selections` out"
            )
