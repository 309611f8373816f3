"""The random control of a selector: of the trajectories that a table of selections decides on, as many at random.

Whatever wrote the table (filter, dedup, pick, select_diverse …), the control differs from it only in which trajectories
are kept. What a selection brings is the difference between training on the one and on the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from agentmill.pipelines.operators.lookup import ids_of
from agentmill.pipelines.operators.properties import AbsenceCheck, FieldProperty, field_values
from agentmill.pipelines.operators.selection import Selected, Selections
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.tables import Table

ALL = "all"
"""``per`` of a control that has only the whole number in common with the selection."""

NOT_IN_LIKE, DRAWN_FROM, KEPT_BY_BOTH = "not_in_like", "drawn_from", "kept_by_both"
"""Counts: trajectories that the selection does not know, those that may be drawn, and kept ones that it keeps, too."""


class RandomControl:
    """How many trajectories a selection keeps, by stratum. Pickles as paths; each worker loads it once.

    A stratum is a value of the property ``per``; trajectories without a value are one, too.
    """

    def __init__(self, tables: Sequence[Table], per: FieldProperty) -> None:
        # As a step does that has these tables as its ``selections``.
        self._selected = Selected(tables, Selections(all=[table.folder.name for table in tables]))
        self._per = per
        self._forget()

    def load(self) -> None:
        """Read the tables. Raises ``UserError`` for one that cannot be read, contradicts itself or selects steps."""
        self._forget()
        self._selected.load()

    def add(self, trajectory: Trajectory) -> bool:
        """Count a trajectory. Whether the selection decides on it; one that it does not know is no part of this."""
        if not self._selected.knows(trajectory.trajectory_id):
            return False
        if self._per != ALL:
            self._absence.note(self._per, trajectory, field_values(self._per, trajectory))
        self._kept[self.stratum(trajectory)] += self.keeps(trajectory.trajectory_id)
        return True

    def stratum(self, trajectory: Trajectory) -> str:
        """What the trajectory is drawn together with."""
        return "" if self._per == ALL else ", ".join(field_values(self._per, trajectory))

    def keeps(self, trajectory_id: str) -> bool:
        """Whether the selection keeps it."""
        return self._selected.keeps(trajectory_id)

    def numbers(self, drawn_from: Mapping[str, int]) -> Mapping[str, int]:
        """How many of each stratum the control keeps, once all trajectories were added.

        ``drawn_from`` are the numbers of trajectories that it may keep. Raises ``UserError`` where they are fewer, and
        for a property that no trajectory has.
        """
        self._absence.check()
        for stratum, kept in self._kept.items():
            left = drawn_from.get(stratum, 0)
            if left < kept:
                where = "" if self._per == ALL else f" with {self._per} {stratum or 'unknown'}"
                raise UserError(
                    f"pick: `like` keeps {kept:,} trajectories{where}, and `where` and `selections` leave {left:,} to"
                    " draw from\nleave out what excludes the others, or make the table of `like` with it, too",
                    ErrorCode.TOO_FEW_ROWS,
                )
        return self._kept

    def _forget(self) -> None:
        self._kept: Counter[str] = Counter()
        self._absence = AbsenceCheck("pick", "per")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": Counter(), "_absence": AbsenceCheck("pick", "per")}


def check_like(tables: Sequence[Table], trajectories: Sequence[Table]) -> None:
    """Raises ``UserError`` for tables without selections, and for one that selects trajectories that are not there."""
    held = pa.chunked_array([chunk for each in trajectories for chunk in ids_of(each).chunks], pa.large_string())
    for table in tables:
        ids = ids_of(table)
        if not len(ids) and len(held):
            raise UserError(
                f"{table.folder} holds no selections, so there is no number of trajectories to draw\n"
                "name a table that filter, pick, dedup or another selector wrote of these trajectories",
                ErrorCode.NO_RECORDS,
            )
        others = len(ids) - pc.sum(pc.is_in(ids, held.combine_chunks()), min_count=0).as_py()
        if others:
            folders = " and ".join(str(each.folder) for each in trajectories)
            raise UserError(
                f"{table.folder} selects {others:,} trajectories that are not in {folders}\n"
                "name in `of` all tables that the selection was made of; a control of a part has another size",
                ErrorCode.SELECTION_OF_OTHERS,
            )


def control_notes(manifest: Manifest) -> list[str]:
    """How much a control has in common with the selection; a warning where it could not differ."""
    kept, drawn_from = manifest.metrics.get("kept", 0), manifest.metrics.get(DRAWN_FROM, 0)
    if kept and kept == drawn_from:
        return [f"warning: the selection keeps all {kept:,.0f} trajectories that may be drawn, so its control is equal"]
    both = manifest.metrics.get(KEPT_BY_BOTH, 0)
    return [f"control: {kept:,.0f} of {drawn_from:,.0f} at random, {both:,.0f} of them kept by the selection, too"]
