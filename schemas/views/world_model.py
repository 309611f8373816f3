"""The ``world_model`` view: what the environment answers to what was done, to be predicted.

The world model is the assistant: what the environment showed are its messages, and carry the loss; what the agent did
are messages of the user. So that it may stand in for an environment (WebEvolver, arXiv:2504.21024), it sees what an
environment sees: actions, not the thoughts before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
from pydantic import Field

from agentmill.schemas.config import Config
from agentmill.schemas.dialects.tool_text import TOOL_TEXTS, TextFormat, calls_text, tool_list
from agentmill.schemas.records.rows import Message, SftRow
from agentmill.schemas.records.trajectory import Action, AnyItem, ImageObservation, Trajectory, WebObservation
from agentmill.schemas.views.annotations import Annotations
from agentmill.schemas.views.conversation import ConversationTurn, conversation, with_system
from agentmill.schemas.views.roles import several_agents
from agentmill.schemas.views.sft import Per, sft_rows


class WorldModel(Config):
    """Text of the environment carries loss, but for what was copied, or made up by a model in its place."""

    name: ClassVar[str] = "world_model"
    record: ClassVar[type[SftRow]] = SftRow

    rows: Per = Field(default="trajectory", description="one row per trajectory, or per observation")
    tool_format: TextFormat = Field(default="json", description="how the agent's calls are written")
    instruction: str = Field(
        default="You are the world that an agent acts in. Answer each of its actions with what it then observes.",
        min_length=1,
        description="the start of the system prompt, before that of the agent",
    )

    def make_rows(self, trajectory: Trajectory, annotations: Annotations) -> list[SftRow]:
        """The rows of one trajectory. Raises ``Unused`` if no observation can be learnt, or of several agents."""
        del annotations
        if several := several_agents(trajectory):
            raise several
        system = "\n\n".join(part for part in (self.instruction, trajectory.system_prompt) if part)
        content = [_without_thought(item) for item in trajectory.content]
        dialogue = conversation(msgspec.structs.replace(trajectory, system_prompt=system, content=content))
        if trajectory.tools:
            dialogue = with_system(dialogue, tool_list(trajectory.tools, TOOL_TEXTS[self.tool_format]))
        messages: list[Message] = []
        acted = False
        for turn in dialogue:
            _add(messages, self._turned(turn, trajectory.content, acted))
            acted = acted or turn.step is not None
        return sft_rows(self, trajectory, messages, None, self.rows)

    def _turned(self, turn: ConversationTurn, content: Sequence[AnyItem], acted: bool) -> Message:
        """The message with agent and environment changed over; what precedes the first action is no answer to one."""
        message = turn.message
        if message.role == "system":
            return message
        if turn.step is not None:
            calls = message.tool_calls
            text = calls_text(message, TOOL_TEXTS[self.tool_format]) if calls else message.content
            return Message(role="user", content=text)
        items = [content[item] for item in turn.items]
        if not acted or not all(map(_of_environment, items)):
            return Message(role="user", content=message.content)
        return Message(role="assistant", content=message.content, train=bool(message.content) and _learnable(items))


def _add(messages: list[Message], message: Message) -> None:
    """Add a message, as part of the one before it if they are of one role: environments and agents take turns."""
    last = messages[-1] if messages else None
    if last is None or last.role != message.role:
        messages.append(message)
        return
    texts = [each for each in (last, message) if each.content]
    train = bool(texts) and all(each.train for each in texts)
    messages[-1] = Message(role=last.role, content="\n".join(str(each.content) for each in texts), train=train)


def _without_thought(item: AnyItem) -> AnyItem:
    if isinstance(item, Action):
        return msgspec.structs.replace(item, description=None, reasoning_content=None)
    return item


def _of_environment(item: AnyItem) -> bool:
    return isinstance(item, WebObservation) or (not isinstance(item, Action) and item.source == "environment")


def _learnable(items: Sequence[AnyItem]) -> bool:
    return not any(
        item.synthetic or item.context_operation == "copied" or isinstance(item, ImageObservation) for item in items
    )
