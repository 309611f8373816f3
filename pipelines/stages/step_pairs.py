"""``step_pairs``: preference pairs of steps that follow the same messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pipelines.stages.pairs import Pairs
from schemas.views.step_pairs import StepPairs as StepPairsView


class StepPairs(Pairs, StepPairsView):
    """Preference pairs of steps that follow the same messages but do something else."""

    view: ClassVar[str] = "step_pairs"

    def _asked(self) -> Iterator[tuple[str, str]]:
        yield from super()._asked()
        for subject in {"verdict", "label", "value"} & (self.prefer.model_fields_set if self.prefer else set()):
            yield "prefer", f"{subject}s"
