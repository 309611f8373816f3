"""The random control of a selector: of the records that a table of selections decides on, as many at random.

Whatever wrote the table (filter, dedup, pick, difficulty_band …), the control differs from it only in which records are
kept. What a selection brings is the difference between training on the one and on the other.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from agentmill.pipelines.engine import stop
from agentmill.pipelines.engine.operation import Blamed, Result, RowOperation, Unit, identity, key_of
from agentmill.pipelines.operators.lookup import ids_of
from agentmill.pipelines.operators.quotas import Quota, QuotaValues
from agentmill.pipelines.operators.selection import TrajectoryFilter, selection_measures
from agentmill.pipelines.operators.selection_tables import Selected, Selections, check_overlap
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import random_key
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Selection, TaskSelection
from agentmill.schemas.tables import Table, read_columns
from agentmill.schemas.views.view import Unused

ALL = "all"
"""``per`` of a control that has only the whole number in common with the selection."""

NOT_DRAWN = "not_random"
"""The reason of those that may be drawn, and are not."""

NOT_IN_LIKE, DRAWN_FROM, KEPT_BY_BOTH = "not_in_like", "drawn_from", "kept_by_both"
"""Counts: records that the selection does not know, those that may be drawn, and kept ones that it keeps, too."""


class RandomControl(RowOperation[Task | Trajectory, Selection | TaskSelection]):
    """One selection per record that the tables ``like`` decide on; of the others none.

    As many are kept as ``like`` keeps, in each stratum: records with one value of the field ``per``, or without any.
    Every worker reads ids and this field of all records once.
    """

    blamed: ClassVar[Blamed] = "curation"
    chunk_rows: ClassVar[int] = 5_000

    def __init__(
        self, name: str, like: Sequence[Table], of: Sequence[Table], choice: TrajectoryFilter, per: str, seed: int
    ) -> None:
        self._tasks = any(table.manifest.record == Task.__name__ for table in of)
        super().__init__("pick", Task if self._tasks else Trajectory, TaskSelection if self._tasks else Selection)
        self._selection = name
        # As in a step that has these tables as its ``selections``.
        self._like = Selected(like, Selections(all=[table.folder.name for table in like]), of)
        self._shards = [path for table in of for path in table.shards()]
        self._choice = choice
        self._per = None if per == ALL else QuotaValues(stratum_of(per), self.reads, {}, "pick: `per`")
        self._seed = seed
        self._drawn: frozenset[str] = frozenset()

    def open(self) -> None:
        """Draw the records.

        Raises ``UserError`` for tables that cannot be read, for a field that no record has, and where fewer may be
        drawn than ``like`` keeps.
        """
        self._like.load()
        self._choice.load()
        listed, kept = list[str](), Counter[tuple[str, ...]]()
        candidates: dict[tuple[str, ...], list[tuple[int, str]]] = defaultdict(list)
        for name, stratum in self._strata():
            if not self._like.knows(name):
                continue
            listed.append(name)
            kept[stratum] += self._is_kept_by_like(name)
            if self._excluded(name) is None:
                candidates[stratum].append((random_key(name, self._seed), name))
        if self._per is not None:
            self._per.check_found(listed)
        for stratum, n in kept.items():
            self._check_left(stratum, n, len(candidates[stratum]))
        self._drawn = frozenset(
            name for each, own in candidates.items() for _, name in heapq.nsmallest(kept[each], own)
        )

    def process(self, record: Task | Trajectory, unit: Unit) -> Iterable[Result]:
        """The selection of a record; none of one that ``like`` does not list."""
        name = identity(record)
        measures = dict(self._choice.measures(name))
        if not self._like.knows(name):
            return [Result(input_id=unit[0], measures={**measures, NOT_IN_LIKE: 1})]
        reason, kept = self._excluded(name), name in self._drawn
        if reason is None:
            measures |= {DRAWN_FROM: 1, KEPT_BY_BOTH: int(kept and self._is_kept_by_like(name))}
        reason = reason or (None if kept else NOT_DRAWN)
        selection: Selection | TaskSelection
        if self._tasks:
            selection = TaskSelection(task_id=name, name=self._selection, kept=kept, reason=reason)
        else:
            selection = Selection(trajectory_id=name, name=self._selection, kept=kept, reason=reason)
        return [Result(input_id=unit[0], outputs=[selection], measures=measures)]

    def measures(self, output: Selection | TaskSelection) -> Mapping[str, float]:
        """As ``selection_measures``."""
        return selection_measures(output)

    def _strata(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The id of each record, and its values of ``per``."""
        key = key_of(self.reads)
        for path in self._shards:
            # Reading through the tables may take minutes, in which nothing else notices an interrupt.
            stop.check()
            ids = read_columns(path, self.reads, [key])[key].to_pylist()
            yield from zip(ids, [()] * len(ids) if self._per is None else self._per.values_in(path), strict=True)

    def _is_kept_by_like(self, name: str) -> bool:
        return self._like.refusal(name) is None

    def _excluded(self, name: str) -> str | None:
        """Why a record may not be drawn, by ``where`` and ``selections``."""
        try:
            self._choice.annotations(name)
        except Unused as error:
            return error.reason
        return None

    def _check_left(self, stratum: tuple[str, ...], kept: int, left: int) -> None:
        """Raises ``UserError`` where fewer are left to draw from than are kept."""
        if left < kept:
            where = "" if self._per is None else f" with {self._per.by} {', '.join(stratum) or 'unknown'}"
            raise UserError(
                f"pick: `like` keeps {kept:,}{where}, and `where` and `selections` leave {left:,} to draw from\n"
                "leave out what excludes the others, or make the table of `like` with it, too",
                ErrorCode.ROWS_TOO_FEW,
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_drawn": frozenset()}


def stratum_of(per: str) -> Quota:
    """The field by which ``per`` divides records, as a quota."""
    return Quota(by=per, at_most=1)


def check_like(like: Sequence[Table], of: Sequence[Table]) -> None:
    """Raises ``UserError`` for tables without selections, and for one that selects records that are not there.

    Of trajectories, a selection of tasks may know some without any.
    """
    for table in like:
        ids, key = ids_of(table), key_of(table.record_type)
        if not len(ids):
            raise UserError(
                f"{table.folder} holds no selections, so there is no number to draw\n"
                "name a table that filter, pick, dedup or another selector wrote of these records",
                ErrorCode.NO_RECORDS,
            )
        if key != key_of(of[0].record_type):
            check_overlap([table], of)
            continue
        held = pa.chunked_array([chunk for each in of for chunk in ids_of(each).chunks], pa.large_string())
        others = len(ids) - (pc.sum(pc.is_in(ids, held.combine_chunks())).as_py() or 0)
        if others:
            raise UserError(
                f"{table.folder} selects {others:,} records that are not in {' and '.join(str(t.folder) for t in of)}\n"
                "name in `of` all tables that the selection was made of; a control of a part has another size",
                ErrorCode.SELECTION_OF_OTHERS,
            )


def control_notes(manifest: Manifest) -> list[str]:
    """How much a control has in common with the selection; a warning where it could not differ."""
    kept, drawn_from = manifest.metrics.get("kept", 0), manifest.metrics.get(DRAWN_FROM, 0)
    if kept and kept == drawn_from:
        return [f"warning: the selection keeps all {kept:,.0f} that may be drawn, so its control is equal"]
    both = manifest.metrics.get(KEPT_BY_BOTH, 0)
    return [f"control: {kept:,.0f} of {drawn_from:,.0f} at random, {both:,.0f} of them kept by the selection, too"]
