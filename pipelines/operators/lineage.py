"""Whose steps a branch has copied: its parent's, and those that the parent copied in turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from agentmill.schemas.chat import is_mark
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.tables import Table, read_columns

COLUMNS = ["trajectory_id", "parent_id", "branch_turn"]


class Lineage:
    """The branch points of the trajectories in some tables. Pickles as paths; each worker loads it once."""

    def __init__(self, tables: Iterable[Table]) -> None:
        self._paths = [str(path) for table in tables for path in table.shards()]
        self._parents: dict[str, tuple[str, int]] = {}

    def load(self) -> None:
        """Read the columns that matter. Raises ``UserError`` for a file that cannot be read."""
        self._parents = {}
        for path in self._paths:
            for row in read_columns(Path(path), Trajectory, COLUMNS).to_pylist():
                if row["parent_id"] is not None and row["branch_turn"] is not None:
                    self._parents[row["trajectory_id"]] = row["parent_id"], row["branch_turn"]

    def sources(self, trajectory: Trajectory) -> Iterator[tuple[str, int]]:
        """The ids of its ancestors, the parent first, each with the end of the items that were copied from it.

        An ancestor further back than a trajectory that is in none of the tables is not known.
        """
        seen = {trajectory.trajectory_id}
        parent_id, turn = trajectory.parent_id, trajectory.branch_turn
        while parent_id is not None and turn is not None and parent_id not in seen:
            yield parent_id, _first_item(trajectory, turn)
            seen.add(parent_id)
            parent_id, earlier = self._parents.get(parent_id, (None, 0))
            turn = min(turn, earlier)  # behind its own branch point the ancestor has steps of the same number

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parents": {}}


def _first_item(trajectory: Trajectory, turn: int) -> int:
    places = (place for place, item in enumerate(trajectory.content) if item.turn >= turn and not is_mark(item))
    return next(places, len(trajectory.content))
