"""The contract of a view that makes preference pairs, and what such views share.

A pair needs two trajectories, so its view works in two steps: every trajectory says what it offers, and once
``schemas.views.pairing`` has planned the pairs of all of them, each pair becomes a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Protocol

import msgspec
from pydantic import Field

from schemas.ids import digest
from schemas.rows import Message, PreferenceRow, RowTokens
from schemas.trajectory import Trajectory
from schemas.views.dialogue import Dialogue
from schemas.views.evidence import Evidence
from schemas.views.pairing import Candidate, Pair, Rules
from schemas.views.row_tokens import segments, with_loss
from schemas.views.turns import Said, is_copied
from schemas.views.view import parameters_of


class PairView(Protocol):
    """Pure functions with parameters, as ``View``. Observations and copied items never carry loss."""

    name: ClassVar[str]
    """What it is called in ``PAIR_VIEWS``."""

    record: ClassVar[type[PreferenceRow]]
    """The type of the rows."""

    @property
    def rules(self) -> Rules:
        """What makes a pair."""

    def candidates(self, trajectory: Trajectory, evidence: Evidence) -> list[Candidate]:
        """What a trajectory offers, at least one. Raises ``Unused``."""

    def make_row(self, pair: Pair, chosen: Trajectory, rejected: Trajectory) -> PreferenceRow:
        """The row of a pair, from the trajectories of its sides; both sides carry loss."""


class Preferences(Dialogue):
    """Parameters of views that make preference pairs, and how their rows are written."""

    name: ClassVar[str]
    record: ClassVar[type[PreferenceRow]] = PreferenceRow

    min_gap: float = Field(default=0.0, ge=0, description="the scores must differ by more than this")
    weight: Literal["none", "gap"] = Field(
        default="none", description="weight of a row: 1, or the gap between the scores (1 where no score decided)"
    )

    def told(self, trajectory: Trajectory) -> list[Said]:
        """As ``Dialogue.told``, with one of ``system_prompts`` per task, since both sides share the prompt."""
        return super().told(msgspec.structs.replace(trajectory, trajectory_id=trajectory.task_id or ""))

    def _row(
        self, pair: Pair, trajectory: Trajectory, prompt: list[Message], chosen: Side, rejected: Side
    ) -> PreferenceRow:
        """The row; ``trajectory`` is that of the chosen side."""
        parameters = parameters_of(self)
        return PreferenceRow(
            row_id=digest("pair", self.name, parameters, *pair.places),
            view=self.name,
            view_parameters=parameters,
            prompt=prompt,
            chosen=chosen.messages,
            rejected=rejected.messages,
            chosen_tokens=chosen.tokens,
            rejected_tokens=rejected.tokens,
            chosen_id=pair.chosen.trajectory_id,
            rejected_id=pair.rejected.trajectory_id,
            chosen_score=pair.chosen.score,
            rejected_score=pair.rejected.score,
            chosen_item=chosen.item,
            rejected_item=rejected.item,
            weight=1.0 if self.weight == "none" or pair.gap is None else pair.gap,
            tools=self.tools_column(trajectory),
            task_id=trajectory.task_id,
            environment_id=trajectory.environment_id,
            split=trajectory.split,
        )


class Side(msgspec.Struct, frozen=True):
    """One side of a pair: its messages, marked, the step at which it parts from the other, and its tokens if known.

    The tokens are those of its run, prompt and all.
    """

    messages: list[Message]
    item: int | None
    tokens: list[RowTokens]


def side(trajectory: Trajectory, told: Sequence[Said], span: slice, item: int | None) -> Side:
    """The messages ``span`` of a run as a side; what precedes them is the prompt."""
    messages = marked(trajectory, told[span])
    prompt = [said.message for said in told[: span.start]]
    return Side(messages, item, with_loss(segments(told, trajectory), [*prompt, *messages]))


def marked(trajectory: Trajectory, told: Sequence[Said]) -> list[Message]:
    """The messages of a side: the agent's own carry loss, and the last of them ends it."""
    own = [said.step is not None and not is_copied(trajectory.content, said.items) for said in told]
    length = max((place for place, train in enumerate(own, 1) if train), default=0)
    pairs = zip(told[:length], own, strict=False)
    return [msgspec.structs.replace(said.message, train=train) for said, train in pairs]
