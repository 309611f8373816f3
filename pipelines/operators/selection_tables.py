"""``selections`` of a step: which records the tables of selections keep, one table or several together.

selections: picked                                      # what the table keeps
selections: [deduped, picked]                           # what each of the tables keeps that knows the trajectory
selections: {any: [short, solved]}                      # what one of them keeps
selections: {all: [deduped, picked], strict: true}      # and nothing that no table knows

A trajectory that no table knows stays, unless ``strict``: seeds of another source are not lost by a selection that was
made before they came in. The same holds of tasks, which rollouts select. Where trajectories are read, a selection of
tasks decides about those of each task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pyarrow.compute as pc
from pydantic import BeforeValidator, Field, model_validator

from agentmill.pipelines.engine.operation import key_of
from agentmill.pipelines.operators.lookup import Shards, ids_of
from agentmill.pipelines.operators.operator import TableNames
from agentmill.schemas.config import Config
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Selection, TaskSelection
from agentmill.schemas.tables import Table, read_columns
from agentmill.schemas.views.view import Unused

NOT_SELECTED = "not_selected"
"""The reason of a record that no selection keeps."""

COLUMNS: Mapping[type[Selection | TaskSelection], list[str]] = {
    Selection: ["item", "reason"],
    TaskSelection: ["reason"],
}
"""The records of selections, and the columns that are read of each in addition to the required ones."""


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
    """What tables of selections decide about the records of some tables. Pickles as paths; read when first asked.

    Of trajectories, ``of`` are their tables: selections of tasks decide about those of each task.
    """

    def __init__(self, tables: Iterable[Table], given: Selections, of: Iterable[Table]) -> None:
        kinds = [(table, next(kind for kind in COLUMNS if kind is table.record_type)) for table in tables]
        self._tables = [(str(table.folder), kind, Shards([table], kind, COLUMNS[kind])) for table, kind in kinds]
        self._of = [str(path) for table in of if table.record_type is Trajectory for path in table.shards()]
        self._any = given.any is not None
        self._strict = given.strict
        self._known: dict[str, str | None] | None = None

    def load(self) -> None:
        """Read the tables. Raises ``UserError`` for one that cannot be read, contradicts itself or selects steps."""
        reasons: dict[str, str | None] = {}
        for folder, kind, shards in self._tables:
            decisions = _decisions(folder, shards)
            by_task = self._of and kind is TaskSelection
            for record_id, reason in self._of_trajectories(decisions) if by_task else decisions.items():
                # Under ``any`` one table that keeps a record decides, under ``all`` one that does not.
                if record_id not in reasons or (reasons[record_id] is None) is not self._any:
                    reasons[record_id] = None if reason is None else f"{Path(folder).name}: {reason}"
        self._known = reasons

    def knows(self, record_id: str) -> bool:
        """Whether any of the tables keeps it or not. Raises as ``load``."""
        return record_id in self._reasons

    def refusal(self, record_id: str) -> Unused | None:
        """Why a record is not kept; ``None`` if it is. Raises ``UserError`` as ``load``."""
        if not self.knows(record_id):
            return Unused(NOT_SELECTED, "no selection knows it (strict: true)") if self._strict else None
        reason = self._reasons[record_id]
        return None if reason is None else Unused(NOT_SELECTED, reason)

    def measures(self, record_id: str) -> Mapping[str, float]:
        """Counts a record that no table knows; for the manifest."""
        return {} if self.knows(record_id) else {"not_in_selections": 1}

    @property
    def _reasons(self) -> dict[str, str | None]:
        """Why records are not kept, with the table that says so; ``None`` for those that are."""
        if self._known is None:
            self.load()
        assert self._known is not None
        return self._known

    def _of_trajectories(self, decisions: Mapping[str, str | None]) -> Iterator[tuple[str, str | None]]:
        """Decisions about tasks as decisions about the trajectories of these."""
        for path in self._of:
            for row in read_columns(Path(path), Trajectory, ["trajectory_id", "task_id"]).to_pylist():
                if row["task_id"] in decisions:
                    yield row["trajectory_id"], decisions[row["task_id"]]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": None}


def _decisions(folder: str, shards: Shards[Selection | TaskSelection]) -> dict[str, str | None]:
    """Why a table does not keep a record, ``None`` where it does. Selections of several names must all keep it."""
    rows: dict[tuple[str, str], Selection | TaskSelection] = {}
    reasons: dict[str, str | None] = {}
    for row in shards:
        if isinstance(row, Selection) and row.item is not None:
            raise UserError(
                f"{folder} selects steps (item {row.item}); expected selections of whole trajectories",
                ErrorCode.SELECTION_OF_STEPS,
            )
        record_id = row.task_id if isinstance(row, TaskSelection) else row.trajectory_id
        kind = "task" if isinstance(row, TaskSelection) else "trajectory"
        shards.put(rows, (record_id, row.name), row, f"{row.name!r} of {kind} {record_id}")
        reason = None if row.kept else row.reason or f"selection {row.name!r}"
        reasons[record_id] = reasons.get(record_id) or reason
    return reasons


def check_overlap(selections: Sequence[Table], records: Sequence[Table]) -> None:
    """Raises ``UserError`` for a table of selections that knows none of the trajectories, tasks, or tasks of the
    trajectories in ``records``, and so would do nothing."""
    for table in selections:
        key = key_of(table.record_type)
        known = [ids_of(each, key) for each in records]
        ids = ids_of(table).combine_chunks()
        if any(map(len, known)) and len(ids) and not any(pc.any(pc.is_in(own, ids)).as_py() for own in known):
            folders = " and ".join(str(each.folder) for each in records)
            things = "trajectories" if key == "trajectory_id" else "tasks"
            raise UserError(
                f"{table.folder} selects none of the {things} in {folders}, but others\n"
                "name the selections that were made of these, or leave `selections` out",
                ErrorCode.SELECTION_OF_OTHERS,
            )
