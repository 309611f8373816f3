"""What the operators that tell search trees share: a tree is put together where one of its runs is worked on.

Every worker reads through the tables once and keeps who descends from whom.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, ClassVar

from agentmill.pipelines.engine.operation import Blamed, Operation, Result, RowOperation, Unit
from agentmill.pipelines.operators.rows import Rows, set_aside
from agentmill.pipelines.operators.selection import TrajectoryFilter, left_out
from agentmill.pipelines.operators.stage import Inputs, StageContext, tables_of
from agentmill.pipelines.operators.trajectory_index import TrajectoryIndex
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.registry import Registry
from agentmill.schemas.views import FAMILY_VIEWS
from agentmill.schemas.views.tree_view import FamilyView, Made, Relative
from agentmill.schemas.views.view import Unused

TREES_HELD = 8
"""Trees whose rows are kept for the next of their runs."""


class Families(Rows):
    """Training rows of search trees. An operator inherits from this and from its view."""

    views: ClassVar[Registry] = FAMILY_VIEWS

    def operation(self, inputs: Inputs, context: StageContext) -> Operation:
        """The rows."""
        del context
        view: Any = self.made_view(inputs)
        return Telling(view, self.choice(inputs), TrajectoryIndex(tables_of(inputs, "from")))


class Telling(RowOperation):
    """The rows that a trajectory stands for in its tree. One that is a part of no row is dropped."""

    blamed: ClassVar[Blamed] = "curation"
    chunk_rows: ClassVar[int] = 5_000

    def __init__(self, view: FamilyView, choice: TrajectoryFilter, contents: TrajectoryIndex) -> None:
        super().__init__(view.name, Trajectory, view.record)
        self._view = view
        self._choice = choice
        self._contents = contents

    def open(self) -> None:
        """Find out who descends from whom. Raises ``UserError`` for tables that cannot be read."""
        self._choice.load()
        parents = {each.trajectory_id: each.parent_id for each in self._contents.scan()}
        self._roots = {trajectory_id: root(trajectory_id, parents) for trajectory_id in parents}
        self._trees = defaultdict(list)
        for trajectory_id, origin in self._roots.items():
            self._trees[origin].append(trajectory_id)
        self._made = lru_cache(maxsize=TREES_HELD)(self._make)

    def process(self, record: Any, unit: Unit) -> Iterable[Result]:
        """The rows of a trajectory."""
        (input_id,) = unit
        found = self._made(self._roots[record.trajectory_id])[record.trajectory_id]
        if isinstance(found, Unused):
            return [Result(input_id=input_id, dropped=left_out(input_id, self.name, record, found))]
        return [Result(input_id=input_id, outputs=found, measures=self._choice.measures(record.trajectory_id))]

    def measures(self, output: Record) -> Mapping[str, float]:
        """Rows of splits other than ``train``."""
        return set_aside(output)

    def _make(self, origin: str) -> Made:
        """What becomes of each run of a tree; those that are not chosen are no part of it."""
        made: Made = {}
        family = []
        for trajectory_id in self._trees[origin]:
            try:
                evidence = self._choice.evidence(trajectory_id)
            except Unused as error:
                made[trajectory_id] = error
                continue
            family.append(Relative(self._contents.get(trajectory_id), evidence))
        return {**made, **self._view.make_rows(family)}


def root(trajectory_id: str, parents: Mapping[str, str | None]) -> str:
    """The first ancestor, which may itself be in no table; in a circle, the one whose id comes first."""
    seen = [trajectory_id]
    while (parent := parents.get(seen[-1])) is not None:
        if parent in seen:
            return min(seen[seen.index(parent) :])
        seen.append(parent)
    return seen[-1]
