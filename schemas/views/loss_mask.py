"""Which messages of a conversation carry loss, and how much of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from pydantic import Discriminator, Field, Tag

from agentmill.schemas.conditions import Condition
from agentmill.schemas.config import Config
from agentmill.schemas.records.rows import Message
from agentmill.schemas.records.trajectory import Action, Trajectory
from agentmill.schemas.views.annotations import Annotations, Criterion, score
from agentmill.schemas.views.conversation import ConversationTurn, is_copied, went_wrong
from agentmill.schemas.views.view import UnusableWeight

# Tagged, so that a mistake in a condition is reported as one, and not as "expected 'none' or 'all'".
Copied = Annotated[
    Annotated[Literal["none", "all"], Tag("choice")]
    | Annotated[list[Condition], Field(min_length=1), Tag("conditions")],
    Discriminator(lambda given: "conditions" if isinstance(given, list) else "choice"),
]
"""Which copied steps: none, all, or those that fulfil all of some conditions."""


class LossRule(Config):
    """Parameters of views that mark assistant messages. Copied items carry loss only where ``copied`` says so."""

    loss: Literal["all", "not_error", "source"] = Field(
        default="all",
        description="which assistant turns carry loss: all, those that met no error, or those the source marked",
    )
    steps: list[Condition] = Field(
        default=[],
        description="conditions on verdicts, labels and values of the agent's own steps; those that fulfil all carry "
        "loss",
    )
    copied: Copied = Field(
        default="none",
        description="which steps that a branch copied from its parent carry loss: none, all, or those that fulfil all "
        "of these conditions, asked of the step in the branch or else in the parent",
    )
    weight: Criterion | None = Field(
        default=None,
        description="a score that the loss is multiplied with: the step's own, else its trajectory's; never negative",
    )

    def marked(
        self, dialogue: Sequence[ConversationTurn], trajectory: Trajectory, annotations: Annotations
    ) -> list[Message]:
        """The messages, marked. Raises ``UnusableWeight`` for a step with loss."""
        marks = {item.train for item in trajectory.content if isinstance(item, Action)}
        # OpenAI's format marks what is not to be learnt, and leaves the default to all else.
        learnt = (True, None) if False in marks and True not in marks else (True,)
        return [self._marked(turn, trajectory, annotations, learnt) for turn in dialogue]

    def _marked(
        self, turn: ConversationTurn, trajectory: Trajectory, annotations: Annotations, learnt: Sequence[bool | None]
    ) -> Message:
        if turn.step is None or not self._carries(turn, trajectory, annotations, learnt):
            return turn.message
        weight = 1.0 if self.weight is None else step_weight(self.weight, trajectory, annotations, turn.step)
        # With a weight of 0 the message would count as trained, and teach nothing.
        return msgspec.structs.replace(turn.message, train=True, weight=weight) if weight else turn.message

    def _carries(
        self, turn: ConversationTurn, trajectory: Trajectory, annotations: Annotations, learnt: Sequence[bool | None]
    ) -> bool:
        content, step = trajectory.content, turn.step
        if step is None or step in annotations.repeated:
            return False
        conditions = self._copied_conditions() if is_copied(content, turn.items) else self.steps
        if conditions is None:
            return False
        if self.loss == "source" and not all(content[item].train in learnt for item in turn.items):
            return False
        if self.loss == "not_error" and went_wrong(content, turn.items):
            return False
        return all(condition.holds(trajectory, annotations, step) for condition in conditions)

    def _copied_conditions(self) -> Sequence[Condition] | None:
        """What a copied step must fulfil to carry loss; ``None``: nothing makes it."""
        if isinstance(self.copied, str):
            return [] if self.copied == "all" else None
        return self.copied


def silenced(message: Message) -> Message:
    """The message without loss."""
    return msgspec.structs.replace(message, train=False, weight=1.0, argument_loss="trained")


def step_weight(criterion: Criterion, trajectory: Trajectory, annotations: Annotations, step: int) -> float:
    """The score of a step, else that of its trajectory. Raises ``UnusableWeight``."""
    found = score(criterion, trajectory, annotations, step)
    if found is None:
        found = score(criterion, trajectory, annotations)
    if found is None:
        raise UnusableWeight("unscored", f"no {criterion} to weigh its loss by", step)
    if found < 0:
        raise UnusableWeight("negative_weight", f"{criterion} is {found:g}, and loss cannot be weighed by it", step)
    return found
