"""``unpaired``: continuations that are good or bad, each by itself, from the trajectories that are chosen."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from pydantic import Field, model_validator

from agentmill.pipelines.operators.rows import Rows
from agentmill.pipelines.operators.stage import Inputs, tables_of
from agentmill.schemas.views.unpaired import Unpaired as UnpairedView
from agentmill.schemas.views.view import Unused, View, rows_of


class Unpaired(Rows, UnpairedView):
    """Good and bad continuations of trajectories, or of their steps, with weights of the two classes."""

    view: ClassVar[str] = "unpaired"

    balanced: bool = Field(
        default=False, description="count the rows first and weigh the classes so that both weigh the same in total"
    )

    @model_validator(mode="after")
    def _weights_given_or_counted(self) -> Unpaired:
        given = {"desirable_weight", "undesirable_weight"} & self.model_fields_set
        if self.balanced and given:
            raise ValueError(f"`balanced` sets the weights, and so does `{min(given)}`; give one of the two")
        return self

    def made_view(self, inputs: Inputs) -> View:
        """The view; its weights are numbers, also where they follow from counts."""
        view = super().made_view(inputs)
        if not self.balanced or not isinstance(view, UnpairedView):
            return view
        labels = self._labels(view, inputs)
        good, bad = class_weights(labels[True], labels[False])
        return view.model_copy(update={"desirable_weight": good, "undesirable_weight": bad})

    def _labels(self, view: UnpairedView, inputs: Inputs) -> Counter[bool]:
        """How many rows have each label."""
        choice = self.choice(inputs)
        choice.load()
        labels: Counter[bool] = Counter()
        for table in tables_of(inputs, "from"):
            for run in table.rows():
                try:
                    labels.update(row.label for row in rows_of(view, run, choice.evidence(run.trajectory_id)))
                except Unused:
                    continue
        return labels


def class_weights(desirable: int, undesirable: int) -> tuple[float, float]:
    """Weights of two classes of these sizes under which both weigh the same and rows weigh 1 on average."""
    if not desirable or not undesirable:
        return 1.0, 1.0
    total = desirable + undesirable
    return total / (2 * desirable), total / (2 * undesirable)
