"""What verdicts, labels and values say of trajectories, by trajectory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.stages.stage import Inputs, tables_of
from schemas.tables import read_shard
from schemas.verdict import Label, Value, Verdict
from schemas.views.evidence import NOTHING, Evidence

KINDS: Mapping[str, tuple[type[Verdict | Label | Value], list[str]]] = {
    "verdicts": (Verdict, ["item", "score", "passed", "reason"]),
    "labels": (Label, ["item", "reason"]),
    "values": (Value, ["item"]),
}
"""Roles of tables, the records they hold, and the columns that are read; the evidence of verdicts is not."""


class Said:
    """Evidence by trajectory. Pickles as paths; each worker loads it once."""

    def __init__(self, inputs: Inputs, roles: Sequence[str] = tuple(KINDS)) -> None:
        self._paths = {
            role: [str(path) for table in tables_of(inputs, role) for path in table.shards()] for role in roles
        }
        self._said: dict[str, Evidence] = {}

    def load(self) -> None:
        """Read the tables. Raises ``UserError`` for a file that cannot be read."""
        found: dict[str, dict[str, dict[Any, Any]]] = {}
        for role, paths in self._paths.items():
            record_type, columns = KINDS[role]
            for path in paths:
                for each in read_shard(Path(path), record_type, columns):
                    own = found.setdefault(each.trajectory_id, {name: {} for name in KINDS})
                    own[role][each.item, each.name] = each
        self._said = {trajectory_id: Evidence(**own) for trajectory_id, own in found.items()}

    def of(self, trajectory_id: str) -> Evidence:
        """What is said of a trajectory; nothing if it is not known."""
        return self._said.get(trajectory_id, NOTHING)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_said": {}}
