"""What the operators that make preference pairs share: pairs are planned over all trajectories, then made one by one.

Every worker reads through the tables once and keeps ids, scores and digests; all of them make the same plan. The row
of a pair is made where its chosen side is worked on, and the other side is fetched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from agentmill.pipelines.engine import stop
from agentmill.pipelines.engine.operation import Blamed, Operation, Result, RowOperation, Unit
from agentmill.pipelines.operators.rows import Rows, set_aside
from agentmill.pipelines.operators.selection import TrajectoryFilter, left_out
from agentmill.pipelines.operators.stage import Inputs, StageContext, tables_of
from agentmill.pipelines.operators.trajectory_index import TrajectoryIndex
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.registry import Registry
from agentmill.schemas.views import PAIR_VIEWS, pairing
from agentmill.schemas.views.pair_view import PairView
from agentmill.schemas.views.view import Unused


class Pairs(Rows):
    """Preference pairs of trajectories. An operator inherits from this and from its view."""

    views: ClassVar[Registry] = PAIR_VIEWS

    def operation(self, inputs: Inputs, context: StageContext) -> Operation:
        """The pairs."""
        del context
        view: Any = self.made_view(inputs)
        return Pairing(view, self.choice(inputs), TrajectoryIndex(tables_of(inputs, "from")))


class Pairing(RowOperation):
    """The pairs in which a trajectory is the chosen side. One that is on neither side of any pair is dropped."""

    blamed: ClassVar[Blamed] = "curation"
    chunk_rows: ClassVar[int] = 5_000

    def __init__(self, view: PairView, choice: TrajectoryFilter, contents: TrajectoryIndex) -> None:
        super().__init__(view.name, Trajectory, view.record)
        self._view = view
        self._choice = choice
        self._contents = contents
        self._pairs: dict[str, list[pairing.Pair]] = {}
        self._lost: dict[str, Exception] = {}

    def open(self) -> None:
        """Plan the pairs of all trajectories. Raises ``UserError`` for tables that cannot be read."""
        self._choice.load()
        self._lost = {}
        plan = pairing.plan(self._candidates(), self._view.rules)
        self._lost.update(pairing.left_out(plan))
        pairs = defaultdict(list)
        for pair in plan.pairs:
            pairs[pair.chosen.trajectory_id].append(pair)
        self._pairs = dict(pairs)

    def process(self, record: Any, unit: Unit) -> Iterable[Result]:
        """The pairs that a trajectory wins."""
        (input_id,) = unit
        lost = self._lost.get(record.trajectory_id)
        if isinstance(lost, Unused):
            return [Result(input_id=input_id, dropped=left_out(input_id, self.name, record, lost))]
        if lost is not None:
            raise lost
        pairs = self._pairs.get(record.trajectory_id, ())
        rows = [self._view.make_row(pair, record, self._contents.get(pair.rejected.trajectory_id)) for pair in pairs]
        return [Result(input_id=input_id, outputs=rows, measures=self._choice.measures(record.trajectory_id))]

    def measures(self, output: Record) -> Mapping[str, float]:
        """Rows of splits other than ``train``."""
        return set_aside(output)

    def _candidates(self) -> Iterable[pairing.Candidate]:
        for trajectory in self._contents.scan():
            stop.check()
            try:
                yield from self._view.candidates(trajectory, self._choice.evidence(trajectory.trajectory_id))
            except (UserError, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001 - kept until the turn of the trajectory, where it is attributed
                self._lost[trajectory.trajectory_id] = error
