"""The ``scorer_rows`` view: what reward models, step-value models and critics learn from.

Whole runs with their scores for outcome reward models, conversations up to a step with its value for process reward
and Q models. No message carries loss: what is learnt is the row's ``value``, ``label`` or ``critique``.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
from pydantic import Field

from agentmill.schemas.annotation_names import LabelName, VerdictName
from agentmill.schemas.records.rows import ScorerRow
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Verdict
from agentmill.schemas.views.annotations import Annotations, Criterion, score
from agentmill.schemas.views.conversation import own_places
from agentmill.schemas.views.dialogue import Dialogue
from agentmill.schemas.views.sft import Per
from agentmill.schemas.views.view import Unused, origin


class Target(msgspec.Struct, frozen=True):
    """What a scorer should say."""

    value: float | None = None
    n: int | None = None
    label: str | None = None
    critique: str | None = None


class ScorerRows(Dialogue):
    """One row per trajectory, or one per own step that ends with it; where nothing is known there is none."""

    name: ClassVar[str] = "scorer_rows"
    record: ClassVar[type[ScorerRow]] = ScorerRow

    rows: Per = Field(default="trajectory", description="one row per trajectory, or per step")
    score: Criterion | None = Field(default="outcome", description="the score that is the row's value")
    label: LabelName | None = Field(default=None, description="name of the label that is the row's label")
    critique: VerdictName | None = Field(
        default=None, description="name of the verdict whose reason, or its judges' reasons, is the row's critique"
    )

    def make_rows(self, trajectory: Trajectory, annotations: Annotations) -> list[ScorerRow]:
        """The rows of one trajectory. Raises ``Unused`` if nothing is known of it, or of its steps."""
        dialogue = self.dialogue(trajectory)
        if self.rows == "trajectory":
            ends: list[tuple[int, int | None]] = [(len(dialogue), None)]
        else:
            ends = [(place + 1, dialogue[place].step) for place in own_places(dialogue, trajectory.content)]
        found = [(end, step, self._target(trajectory, annotations, step)) for end, step in ends]
        known = [each for each in found if each[2] != Target()]
        if not known:
            raise Unused("unscored", "nothing that a scorer could learn is known")
        return [
            ScorerRow(
                **origin(self, trajectory, index),
                **msgspec.structs.asdict(target),
                messages=[turn.message for turn in dialogue[:end]],
                item=step,
                tools=self.tools_column(trajectory),
            )
            for index, (end, step, target) in enumerate(known)
        ]

    def _target(self, trajectory: Trajectory, annotations: Annotations, step: int | None) -> Target:
        kind, _, name = (self.score or "").partition(":")
        value = annotations.value(name, step) if kind == "value" else None
        label = annotations.label(self.label, step) if self.label is not None else None
        verdict = annotations.verdict(self.critique, step) if self.critique is not None else None
        return Target(
            value=score(self.score, trajectory, annotations, step) if self.score is not None else None,
            n=value.n if value is not None else None,
            label=label.value if label is not None else None,
            critique=critique_of(verdict) if verdict is not None else None,
        )


def critique_of(verdict: Verdict) -> str | None:
    """The words of a scored verdict: its reason, or those of its judges; ``None`` where it has none.

    The reason of a verdict that is not scored is the code of a fault, and not about the trajectory.
    """
    if verdict.status != "scored":
        return None
    if verdict.reason:
        return verdict.reason
    judges, reasons = (verdict.evidence.get(name) for name in ("judges", "reasons"))
    found = [each.get("reasons") for each in judges if isinstance(each, dict)] if isinstance(judges, list) else []
    found += reasons if isinstance(reasons, list) else []
    words = [each.strip() for each in found if isinstance(each, str) and each.strip()]
    return "\n\n".join(dict.fromkeys(words)) or None
