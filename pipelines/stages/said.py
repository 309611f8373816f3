"""What verdicts and labels say of trajectories as a whole, by trajectory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipelines.stages.conditions import Evidence
from schemas.record import Record
from schemas.tables import Table, read_shard
from schemas.verdict import Label, Verdict

_KINDS: dict[str, type[Record]] = {"verdict": Verdict, "label": Label}


class Said:
    """Verdicts and labels of whole trajectories. Pickles as paths; each worker loads it once, without evidence."""

    def __init__(self, verdicts: Iterable[Table], labels: Iterable[Table] = ()) -> None:
        tables = {"verdict": verdicts, "label": labels}
        self._paths = {kind: [str(path) for table in tables[kind] for path in table.shards()] for kind in _KINDS}
        self._said: dict[str, dict[str, dict[str, Any]]] = {}

    def load(self) -> None:
        """Read the tables. Raises ``UserError`` for a file that cannot be read."""
        self._said = {}
        for kind, record_type in _KINDS.items():
            columns = ["item", "score", "passed"] if kind == "verdict" else ["item"]
            for path in self._paths[kind]:
                for each in read_shard(Path(path), record_type, columns):
                    self._add(kind, each)

    def of(self, trajectory_id: str) -> Evidence:
        """What is said of a trajectory; nothing if it is not known."""
        return self._said.get(trajectory_id, {})

    def _add(self, kind: str, each: Any) -> None:
        if each.item is None:
            self._said.setdefault(each.trajectory_id, {}).setdefault(kind, {})[each.name] = each

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_said": {}}
