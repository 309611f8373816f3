"""``trajectory_pairs``: preference pairs of whole runs of one task."""

from __future__ import annotations

from typing import ClassVar

from agentmill.pipelines.operators.pairs import Pairs
from agentmill.schemas.views.preference import TrajectoryPairs as TrajectoryPairsView


class TrajectoryPairs(Pairs, TrajectoryPairsView):
    """Preference pairs of whole runs of one task, the better against the worse."""

    view: ClassVar[str] = "trajectory_pairs"
