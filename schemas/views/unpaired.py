"""The ``unpaired`` view: continuations that are good or bad, each by itself, for KTO (arXiv:2402.01306)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
from pydantic import Field

from agentmill.schemas.conditions import reaches
from agentmill.schemas.records.rows import Message, RowTokens, UnpairedRow
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.views.annotations import Annotations, Criterion, score
from agentmill.schemas.views.conversation import own_places
from agentmill.schemas.views.dialogue import Dialogue
from agentmill.schemas.views.loss_mask import silenced
from agentmill.schemas.views.sft import Per
from agentmill.schemas.views.token_ids import segments, with_loss
from agentmill.schemas.views.view import Unused, origin


class Unpaired(Dialogue):
    """One row per trajectory, from its first own step to its last, or one per step that has a score."""

    name: ClassVar[str] = "unpaired"
    record: ClassVar[type[UnpairedRow]] = UnpairedRow

    rows: Per = Field(default="trajectory", description="one row per trajectory, or per step with a score")
    score: Criterion = Field(default="outcome", description="the score that the label follows from")
    threshold: float = Field(default=0.5, description="the label is good if the score is this or more")
    desirable_weight: float = Field(default=1.0, ge=0, description="weight of the rows that are good")
    undesirable_weight: float = Field(default=1.0, ge=0, description="weight of the rows that are bad")

    def make_rows(self, trajectory: Trajectory, annotations: Annotations) -> list[UnpairedRow]:
        """The rows of one trajectory. Raises ``Unused`` if it has no own step, or no score."""
        dialogue = self.dialogue(trajectory)
        places = own_places(dialogue, trajectory.content)
        if not places:
            raise Unused("no_step", "the agent does nothing of its own")
        messages = [turn.message for turn in dialogue]
        for place in places:
            messages[place] = msgspec.structs.replace(messages[place], train=True)
        spans: list[tuple[int, int, int | None]] = [(place, place + 1, dialogue[place].step) for place in places]
        if self.rows == "trajectory":
            spans = [(places[0], places[-1] + 1, None)]
        scored = [(*span, score(self.score, trajectory, annotations, span[2])) for span in spans]
        known = [(start, end, step, found) for start, end, step, found in scored if found is not None]
        if not known:
            raise Unused("unscored", f"no {self.score}")
        sampled = segments(dialogue, trajectory)
        return [self._row(trajectory, (messages, sampled), number, each) for number, each in enumerate(known)]

    def _row(
        self,
        trajectory: Trajectory,
        dialogue: tuple[Sequence[Message], Sequence[RowTokens]],
        index: int,
        scored: tuple[int, int, int | None, float],
    ) -> UnpairedRow:
        messages, sampled = dialogue
        start, end, step, found = scored
        label = reaches(found, self.threshold)
        prompt = [silenced(message) for message in messages[:start]]
        completion = list(messages[start:end])
        return UnpairedRow(
            **origin(self, trajectory, index),
            prompt=prompt,
            completion=completion,
            label=label,
            tokens=with_loss(sampled, [*prompt, *completion]),
            item=step,
            weight=self.desirable_weight if label else self.undesirable_weight,
            tools=self.tools_column(trajectory),
        )
