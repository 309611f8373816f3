"""The ``sft`` view: conversations for supervised fine-tuning, loss on assistant messages only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec
from pydantic import Field, model_validator

from agentmill.schemas.annotation_names import LabelName
from agentmill.schemas.chat import decoded_json
from agentmill.schemas.config import Config
from agentmill.schemas.records.rows import ArgumentLoss, Message, SftRow
from agentmill.schemas.records.trajectory import Action, AnyItem, Trajectory
from agentmill.schemas.views.annotations import Annotations
from agentmill.schemas.views.conversation import with_system
from agentmill.schemas.views.dialogue import Dialogue
from agentmill.schemas.views.loss_mask import LossRule, silenced
from agentmill.schemas.views.pair_view import Prefix
from agentmill.schemas.views.token_ids import with_tokens, without_cut_off
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


class Sft(LossRule, Dialogue):
    """One row per trajectory, or one per trained step that ends with it.

    Copied items carry no loss, unless ``copied`` says so. Messages after the last one with loss are left out. A row
    that tells what we generated as it was keeps its tokens.
    """

    name: ClassVar[str] = "sft"
    record: ClassVar[type[SftRow]] = SftRow

    rows: Per = Field(default="trajectory", description="one row per trajectory, or per step")
    thoughts: LabelName | None = Field(
        default=None, description="labels of steps whose values are thoughts, as backfill writes them: put in there"
    )
    thoughts_as: Literal["text", "reasoning"] = Field(
        default="text", description="where these thoughts go: before the action in the message, or into its reasoning"
    )
    arguments: ArgumentLoss = Field(
        default="trained",
        description="values of arguments of calls carry loss as the rest does, none (untrained), or alone (only)",
    )
    prefix: Prefix | None = Field(
        default=None, description="texts `success` and `failure`, one of which is added to the system prompt (NAT)"
    )

    @model_validator(mode="after")
    def _thoughts_to_put_in(self) -> Sft:
        if self.thoughts is None and self.thoughts_as != "text":
            raise ValueError(f"`thoughts_as: {self.thoughts_as}` needs `thoughts`, the labels to put in")
        return self

    @model_validator(mode="after")
    def _calls_by_the_template(self) -> Sft:
        if self.arguments != "trained" and self.tool_format != "native":
            raise ValueError(
                f"`arguments: {self.arguments}` needs `tool_format: native`: in {self.tool_format} calls are plain text"
            )
        return self

    def make_rows(self, trajectory: Trajectory, annotations: Annotations) -> list[SftRow]:
        """The rows of one trajectory. Raises ``Unused`` if no message carries loss."""
        dialogue = self.dialogue(self._thinking(trajectory, annotations))
        if self.prefix is not None:
            dialogue = with_system(dialogue, self.prefix.text(trajectory, annotations))
        marked = without_cut_off(self.marked(dialogue, trajectory, annotations), dialogue, trajectory)
        messages = [self._with_arguments(each) for each in marked]
        rows = sft_rows(self, trajectory, messages, self.tools_column(trajectory), self.rows)
        # Compared with what was sampled: a conversation with other thoughts has no tokens.
        return with_tokens(rows, dialogue, trajectory)

    def _with_arguments(self, message: Message) -> Message:
        """The message, marked for ``arguments`` if it has any; without loss where only arguments have loss."""
        if not message.train or self.arguments == "trained":
            return message
        if any(decoded_json(call.arguments) for call in message.tool_calls):
            return msgspec.structs.replace(message, argument_loss=self.arguments)
        return silenced(message) if self.arguments == "only" else message

    def _thinking(self, trajectory: Trajectory, annotations: Annotations) -> Trajectory:
        """The trajectory with the thoughts of ``thoughts`` in the place of its own."""
        if self.thoughts is None:
            return trajectory
        content = trajectory.content
        thoughts = {
            content[item].turn: (item, label.value)
            for (item, name), label in annotations.labels.items()
            if name == self.thoughts and item is not None and item < len(content)
        }
        changed = [
            self._with_thought(each, *thoughts[each.turn], place)
            if isinstance(each, Action) and each.turn in thoughts
            else each
            for place, each in enumerate(content)
        ]
        return msgspec.structs.replace(trajectory, content=changed)

    def _with_thought(self, action: AnyItem, item: int, thought: str, place: int) -> AnyItem:
        """An action of the turn; the thought goes before that of ``item``."""
        mine = thought if place == item else None
        text, reasoning = (mine, None) if self.thoughts_as == "text" else (None, mine)
        return msgspec.structs.replace(action, description=text, reasoning_content=reasoning)
