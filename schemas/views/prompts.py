"""The ``prompts`` view: conversations up to the agent's turn, for reinforcement learning."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from schemas.rows import PromptRow
from schemas.trajectory import Trajectory
from schemas.views.dialogue import Dialogue
from schemas.views.evidence import Evidence
from schemas.views.turns import own_places
from schemas.views.view import Unused, origin


class Prompts(Dialogue):
    """One row up to the first own step, where the run, or the branch, begins; or one up to each own step."""

    name: ClassVar[str] = "prompts"
    record: ClassVar[type[PromptRow]] = PromptRow

    rows: Literal["first", "step"] = Field(default="first", description="up to the first step, or up to every step")

    def make_rows(self, trajectory: Trajectory, evidence: Evidence) -> list[PromptRow]:
        """The rows of one trajectory. Raises ``Unused`` if no own step has anything before it."""
        del evidence
        told = self.told(trajectory)
        places = [place for place in own_places(told, trajectory.content) if place > 0]
        if not places:
            raise Unused("no_prompt", "nothing precedes a step of the agent")
        return [
            PromptRow(
                **origin(self, trajectory, index),
                prompt=[said.message for said in told[:place]],
                item=told[place].step,
                outcome=trajectory.outcome.status,
                tools=self.tools_column(trajectory),
            )
            for index, place in enumerate(places if self.rows == "step" else places[:1])
        ]
