"""How a trajectory becomes a conversation: from whose side, with which system prompt, in which tool format."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from pydantic import Field, model_validator

from agentmill.schemas.config import Config
from agentmill.schemas.dialects.tool_text import TOOL_TEXTS, ToolFormat, ToolText, calls_text, tool_list
from agentmill.schemas.ids import derive_seed
from agentmill.schemas.records.rows import Message
from agentmill.schemas.records.trajectory import Tool, Trajectory
from agentmill.schemas.views.conversation import ConversationTurn, conversation, tools_text, with_system
from agentmill.schemas.views.roles import linearized, perspectives, placed, plays, seen_as, seen_by, several_agents
from agentmill.schemas.views.view import Unused


class Dialogue(Config):
    """Parameters of views that tell trajectories as conversations."""

    role: str | None = Field(
        default=None,
        description="the one agent, by its name or role, that is the assistant; all others are heard as users. "
        "null: whoever acts is the assistant",
    )
    linearize: list[str] = Field(
        default=[],
        description="agents of a multi_agent run that become one assistant; messages between them are put into tags",
    )
    tool_format: ToolFormat = Field(
        default="native",
        description="how tools, calls and results are written: by the chat template (native), or as text by us",
    )
    system_prompts: list[str] = Field(
        default=[],
        description="system prompts to replace that of the trajectory, one per trajectory, chosen by its id; "
        "{system_prompt} in them stands for it",
    )

    @model_validator(mode="after")
    def _one_side(self) -> Dialogue:
        if self.linearize and self.role is not None:
            raise ValueError("`role` and `linearize` exclude each other: both say who is the assistant")
        return self

    def dialogue(self, trajectory: Trajectory) -> list[ConversationTurn]:
        """The conversation, none of it marked for training.

        Raises ``Unused`` if who is asked for never acts, or if nobody is, of a run of ours that several agents live.
        """
        seen, places = self._seen(trajectory)
        dialogue = placed(conversation(msgspec.structs.replace(seen, system_prompt=self._system_prompt(seen))), places)
        if self.role is not None:  # what is asked for is no aside
            dialogue = [msgspec.structs.replace(turn, aside=False) for turn in dialogue]
        return with_tool_text(dialogue, seen.tools, self.tool_format)

    def tools_column(self, trajectory: Trajectory) -> str | None:
        """The tools as the row holds them; none where the conversation lists them itself, or ``role`` has none."""
        me = perspectives(trajectory).get(self.role or "")
        spoken = self.tool_format != "native" or (me is not None and not me.acts)
        return None if spoken else tools_text(trajectory)

    def _seen(self, trajectory: Trajectory) -> tuple[Trajectory, Sequence[int]]:
        """The run from the side of ``role`` or as ``linearize`` says, and the place of each of its items in it."""
        content, agents = trajectory.content, perspectives(trajectory)
        names = self.linearize or ([] if self.role is None else [self.role])
        several = several_agents(trajectory)
        if several is not None and not names:
            raise several
        for name in names:
            if name not in agents and (agents or self.linearize):
                raise Unused("no_role", f"there is no agent {name!r}")
        if names and not any(plays(item, name) for item in content for name in names):
            raise Unused("no_role", f"no agent or role {' or '.join(map(repr, names))} acts")
        if self.linearize:
            return linearized(trajectory, names)
        if self.role is None:
            return trajectory, range(len(content))
        if agents:
            return seen_as(trajectory, self.role)
        return msgspec.structs.replace(trajectory, content=seen_by(self.role, content)), range(len(content))

    def _system_prompt(self, trajectory: Trajectory) -> str | None:
        if not self.system_prompts:
            return trajectory.system_prompt
        # By the id: the choice is the same in every process, and does not change when other trajectories come or go.
        number = derive_seed("system_prompt", trajectory.trajectory_id) % len(self.system_prompts)
        return self.system_prompts[number].replace("{system_prompt}", trajectory.system_prompt or "")


def with_tool_text(
    conversation: Sequence[ConversationTurn], tools: Sequence[Tool], tool_format: ToolFormat
) -> list[ConversationTurn]:
    """The conversation in ``tool_format``; one without tools and calls stays as it is.

    The results of parallel calls, one message each, become one.
    """
    uses_tools = tools or any(turn.message.tool_calls for turn in conversation)
    if tool_format == "native" or not uses_tools:
        return list(conversation)
    text = TOOL_TEXTS[tool_format]
    result: list[ConversationTurn] = []
    for place, turn in enumerate(conversation):
        parallel = place and turn.message.role == conversation[place - 1].message.role == "tool"
        message = _as_text(turn.message, text)
        if parallel:
            both = f"{result[-1].message.content}\n{message.content}"
            joined = msgspec.structs.replace(result[-1].message, content=both)
            result[-1] = ConversationTurn(joined, (*result[-1].items, *turn.items))
        else:
            result.append(msgspec.structs.replace(turn, message=message))
    return with_system(result, tool_list(tools, text)) if tools else result


def _as_text(message: Message, text: ToolText) -> Message:
    if message.role == "assistant" and (message.content or message.tool_calls):
        return msgspec.structs.replace(message, content=calls_text(message, text), tool_calls=[])
    if message.role == "tool":
        return Message(role="user", content=text.result(message))
    return message
