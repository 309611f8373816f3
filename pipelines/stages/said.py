"""Verdicts, labels and values, indexed by trajectory id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.stages.lookup import Shards
from pipelines.stages.stage import Inputs, tables_of
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
        self._shards: dict[str, Shards[Any]] = {role: Shards(tables_of(inputs, role), *KINDS[role]) for role in roles}
        self._said: dict[str, Evidence] = {}

    def load(self) -> None:
        """Read the tables.

        Raises ``UserError`` for a file that cannot be read, and for records that differ though they have the same
        trajectory, item and name: no order of tables decides which of two verdicts holds.
        """
        found: dict[str, dict[str, dict[Any, Any]]] = {}
        for role, shards in self._shards.items():
            for each in shards:
                own = found.setdefault(each.trajectory_id, {name: {} for name in KINDS})
                of = f"trajectory {each.trajectory_id}" + ("" if each.item is None else f", item {each.item}")
                shards.put(own[role], (each.item, each.name), each, f"{each.name!r} of {of}")
        self._said = {
            trajectory_id: Evidence(verdicts=own["verdicts"], labels=own["labels"], values=own["values"])
            for trajectory_id, own in found.items()
        }

    def of(self, trajectory_id: str) -> Evidence:
        """What is said of a trajectory; nothing if it is not known."""
        return self._said.get(trajectory_id, NOTHING)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_said": {}}
