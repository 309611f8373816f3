"""How a trajectory becomes a conversation: from whose side, with which system prompt, in which tool format."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from pydantic import Field, model_validator

from agentmill.schemas.config import Config
from agentmill.schemas.dialects.react import React
from agentmill.schemas.dialects.tool_text import ToolFormat, written_out
from agentmill.schemas.ids import derive_seed
from agentmill.schemas.records.rows import Message
from agentmill.schemas.records.trajectory import CodeAction, Tool, Trajectory
from agentmill.schemas.views.conversation import ConversationTurn, conversation, tools_text
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

        Raises ``Unused`` if who is asked for never acts, or if nobody is, of a run of ours that several agents live, or
        if ReAct has no words for a turn.
        """
        seen, places = self._seen(trajectory)
        plain = placed(conversation(msgspec.structs.replace(seen, system_prompt=self._system_prompt(seen))), places)
        if self.role is not None:  # what is asked for is no aside
            plain = [msgspec.structs.replace(turn, aside=False) for turn in plain]
        dialogue = with_tool_text(plain, seen.tools, self.tool_format)
        if self.tool_format == "react" and dialogue != plain:
            _check_react(plain, trajectory)
        return dialogue

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
    """The conversation in ``tool_format``, as ``written_out`` says."""
    written = written_out([turn.message for turn in conversation], tools, tool_format)
    return [_joined(message, [conversation[place] for place in places]) for message, places in written]


def _check_react(dialogue: Sequence[ConversationTurn], trajectory: Trajectory) -> None:
    """Raises ``Unused`` for a turn that ReAct has no words for: its text would be read as other actions."""
    for turn in dialogue:
        if turn.step is None:
            continue
        if any(isinstance(trajectory.content[item], CodeAction) for item in turn.items):
            raise Unused("unsayable", "an action of ReAct runs no code")
        if turn.message.tool_calls and turn.message.content and React().read(turn.message.content) is not None:
            raise Unused("unsayable", "a thought holds an action, which ReAct would take for the one that was done")


def _joined(message: Message, turns: Sequence[ConversationTurn]) -> ConversationTurn:
    if not turns:
        return ConversationTurn(message)
    items = tuple(item for turn in turns for item in turn.items)
    return msgspec.structs.replace(turns[0], message=message, items=items)
