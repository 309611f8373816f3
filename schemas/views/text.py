"""The ``text`` view: runs as plain transcripts, for continued pre-training."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from agentmill.schemas.dialects.tool_text import TextFormat
from agentmill.schemas.records.rows import Message, PromptRow, TextRow
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.views.annotations import Annotations
from agentmill.schemas.views.conversation import is_copied, own_places
from agentmill.schemas.views.dialogue import Dialogue
from agentmill.schemas.views.view import Unused, origin

SPEAKERS = {"system": "System", "user": "User", "assistant": "Assistant"}


class Text(Dialogue):
    """One row per trajectory. All of its text carries loss, as pre-training wants it, so copied items are left out."""

    name: ClassVar[str] = "text"
    record: ClassVar[type[TextRow]] = TextRow

    tool_format: TextFormat = Field(default="json", description="how tools, calls and results are written")

    def make_rows(self, trajectory: Trajectory, annotations: Annotations) -> list[TextRow]:
        """The row of one trajectory. Raises ``Unused`` if it says nothing."""
        del annotations
        dialogue = [turn for turn in self.dialogue(trajectory) if not is_copied(trajectory.content, turn.items)]
        parts = [part for turn in dialogue if (part := transcribed(turn.message))]
        if not any(turn.items for turn in dialogue):
            raise Unused("no_text", "nothing is said or done but what was copied")
        return [TextRow(**origin(self, trajectory, 0), text="\n\n".join(parts))]


def transcribed(message: Message) -> str:
    """A message with its speaker before it; empty if it says nothing."""
    speaker = SPEAKERS[message.role]
    parts = []
    if message.reasoning_content:
        parts.append(f"{speaker} (thinking): {message.reasoning_content}")
    if message.content:
        parts.append(f"{speaker}: {message.content}")
    return "\n\n".join(parts)


class Prompts(Dialogue):
    """One row up to the first own step, where the trajectory, or the branch, begins; or one up to each own step."""

    name: ClassVar[str] = "prompts"
    record: ClassVar[type[PromptRow]] = PromptRow

    rows: Literal["first", "step"] = Field(default="first", description="up to the first step, or up to every step")

    def make_rows(self, trajectory: Trajectory, annotations: Annotations) -> list[PromptRow]:
        """The rows of one trajectory. Raises ``Unused`` if no own step has anything before it."""
        del annotations
        dialogue = self.dialogue(trajectory)
        places = [place for place in own_places(dialogue, trajectory.content) if place > 0]
        if not places:
            raise Unused("no_prompt", "nothing precedes a step of the agent")
        return [
            PromptRow(
                **origin(self, trajectory, index),
                prompt=[turn.message for turn in dialogue[:place]],
                item=dialogue[place].step,
                outcome=trajectory.outcome.status,
                tools=self.tools_column(trajectory),
            )
            for index, place in enumerate(places if self.rows == "step" else places[:1])
        ]
