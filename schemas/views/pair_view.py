"""The contract of a view that makes preference pairs, and what such views share.

A pair needs two trajectories, so its view works in two steps: every trajectory says what it offers, and once
``agentmill.schemas.views.pairing`` has planned the pairs of all of them, each pair becomes a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Protocol

import msgspec
from pydantic import Field

from agentmill.schemas.annotation_names import VerdictName
from agentmill.schemas.config import Config
from agentmill.schemas.ids import digest
from agentmill.schemas.records.rows import Message, PreferenceRow, RowTokens
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.views.annotations import Annotations
from agentmill.schemas.views.conversation import ConversationTurn, is_copied
from agentmill.schemas.views.dialogue import Dialogue
from agentmill.schemas.views.pairing import Candidate, Pair, Rules
from agentmill.schemas.views.token_ids import segments, with_loss
from agentmill.schemas.views.view import Unused, parameters_of


class PairView(Protocol):
    """Pure functions with parameters, as ``View``. Observations and copied items never carry loss."""

    name: ClassVar[str]
    """What it is called in ``PAIR_VIEWS``."""

    record: ClassVar[type[PreferenceRow]]
    """The type of the rows."""

    @property
    def rules(self) -> Rules:
        """What makes a pair."""

    def candidates(self, trajectory: Trajectory, annotations: Annotations) -> list[Candidate]:
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

    def dialogue(self, trajectory: Trajectory) -> list[ConversationTurn]:
        """As ``Dialogue.dialogue``, with one of ``system_prompts`` per task, since both sides share the prompt."""
        return super().dialogue(msgspec.structs.replace(trajectory, trajectory_id=trajectory.task_id or ""))

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


def side(trajectory: Trajectory, dialogue: Sequence[ConversationTurn], span: slice, item: int | None) -> Side:
    """The messages ``span`` of a run as a side; what precedes them is the prompt."""
    messages = marked(trajectory, dialogue[span])
    prompt = [turn.message for turn in dialogue[: span.start]]
    return Side(messages, item, with_loss(segments(dialogue, trajectory), [*prompt, *messages]))


def marked(trajectory: Trajectory, dialogue: Sequence[ConversationTurn]) -> list[Message]:
    """The messages of a side: the agent's own carry loss, and the last of them ends it."""
    own = [turn.step is not None and not is_copied(trajectory.content, turn.items) for turn in dialogue]
    length = max((place for place, train in enumerate(own, 1) if train), default=0)
    pairs = zip(dialogue[:length], own, strict=False)
    return [msgspec.structs.replace(turn.message, train=train) for turn, train in pairs]


class Prefix(Config):
    """What is added to the system prompt of a run that succeeded, and of one that failed."""

    success: str = Field(description="added to the system prompt of a success")
    failure: str = Field(description="added to the system prompt of a failure")
    verdict: VerdictName = Field(
        default="check_outcome", description="the verdict that decides; by default the outcome of the trajectory"
    )

    def text(self, trajectory: Trajectory, annotations: Annotations) -> str:
        """What is added. Raises ``Unused`` if neither verdict nor outcome tell."""
        verdict = annotations.verdict(self.verdict)
        passed = verdict.passed if verdict is not None else None
        if passed is None:
            passed = {"success": True, "failure": False}.get(trajectory.outcome.status)
        if passed is None:
            raise Unused("unscored", f"neither verdict {self.verdict!r} nor the outcome tell how it went")
        return self.success if passed else self.failure
