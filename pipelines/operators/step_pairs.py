"""``step_pairs``: preference pairs of steps that follow the same messages."""

from __future__ import annotations

from typing import ClassVar

from agentmill.pipelines.operators.pairs import Pairs
from agentmill.schemas.views.preference import StepPairs as StepPairsView


class StepPairs(Pairs, StepPairsView):
    """Preference pairs of steps that follow the same messages but do something else."""

    view: ClassVar[str] = "step_pairs"
