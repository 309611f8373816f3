"""The ``text`` view: runs as plain transcripts, for continued pre-training."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from schemas.rows import Message, TextRow
from schemas.trajectory import Trajectory
from schemas.views.dialogue import Dialogue
from schemas.views.evidence import Evidence
from schemas.views.toolformats import TextFormat
from schemas.views.turns import is_copied
from schemas.views.view import Unused, origin

SPEAKERS = {"system": "System", "user": "User", "assistant": "Assistant"}


class Text(Dialogue):
    """One row per trajectory. All of its text carries loss, as pre-training wants it, so copied items are left out."""

    name: ClassVar[str] = "text"
    record: ClassVar[type[TextRow]] = TextRow

    tool_format: TextFormat = Field(default="json", description="how tools, calls and results are written")

    def make_rows(self, trajectory: Trajectory, evidence: Evidence) -> list[TextRow]:
        """The row of one trajectory. Raises ``Unused`` if it says nothing."""
        del evidence
        told = [said for said in self.told(trajectory) if not is_copied(trajectory.content, said.items)]
        parts = [part for said in told if (part := transcribed(said.message))]
        if not any(said.items for said in told):
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
