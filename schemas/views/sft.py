"""The ``sft`` view: conversations for supervised fine-tuning, loss on assistant messages only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec
from pydantic import Field

from agentmill.schemas.config import Config
from agentmill.schemas.records.rows import Message, SftRow
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.views.annotations import Annotations
from agentmill.schemas.views.conversation import with_system
from agentmill.schemas.views.dialogue import Dialogue
from agentmill.schemas.views.loss_mask import LossRule
from agentmill.schemas.views.pair_view import Prefix
from agentmill.schemas.views.token_ids import with_tokens
from agentmill.schemas.views.view import Unused, origin

Per = Literal["trajectory", "step"]


def sft_rows(
    view: Config, trajectory: Trajectory, messages: Sequence[Message], tools: str | None, per: Per
) -> list[SftRow]:
    """One row with all messages up to the last marked one, or one per marked message that ends with it.

    Raises ``Unused`` if none is marked.
    """
    places = [place for place, message in enumerate(messages) if message.train]
    if not places:
        raise Unused("no_loss", "no message carries loss")
    if per == "trajectory":
        # Nothing after the last trained message can change the loss; it would only take tokens.
        conversations = [list(messages[: places[-1] + 1])]
    else:
        silent = [silenced(message) for message in messages]
        conversations = [[*silent[:place], messages[place]] for place in places]
    return [
        SftRow(**origin(view, trajectory, index), messages=conversation, tools=tools)
        for index, conversation in enumerate(conversations)
    ]


def silenced(message: Message) -> Message:
    """The message without loss."""
    return msgspec.structs.replace(message, train=False, weight=1.0)


class Sft(LossRule, Dialogue):
    """One row per trajectory, or one per trained step that ends with it.

    Copied items carry no loss, unless ``copied`` says so. Messages after the last one with loss are left out. A row
    that tells what we generated as it was keeps its tokens.
    """

    name: ClassVar[str] = "sft"
    record: ClassVar[type[SftRow]] = SftRow

    rows: Per = Field(default="trajectory", description="one row per trajectory, or per step")
    prefix: Prefix | None = Field(
        default=None, description="texts `success` and `failure`, one of which is added to the system prompt (NAT)"
    )

    def make_rows(self, trajectory: Trajectory, annotations: Annotations) -> list[SftRow]:
        """The rows of one trajectory. Raises ``Unused`` if no message carries loss."""
        dialogue = self.dialogue(trajectory)
        if self.prefix is not None:
            dialogue = with_system(dialogue, self.prefix.text(trajectory, annotations))
        messages = self.marked(dialogue, trajectory, annotations)
        rows = sft_rows(self, trajectory, messages, self.tools_column(trajectory), self.rows)
        return with_tokens(rows, dialogue, trajectory)
