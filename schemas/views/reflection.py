"""The ``reflection`` view: the agent's turns that put right what went wrong before them.

Revision trajectories, in which a failed attempt stays in the context and only the correction is learnt, as in Agent-R
(arXiv:2501.11425), STeCa (arXiv:2502.14276) and AgentRefine (arXiv:2501.01702). The failed turns may be the run's own
or copied from the run that it revises.
"""

from __future__ import annotations

import itertools
from typing import ClassVar

import msgspec
from pydantic import Field

from schemas.rows import SftRow
from schemas.trajectory import Trajectory
from schemas.views.dialogue import Dialogue
from schemas.views.evidence import Evidence
from schemas.views.row_tokens import with_tokens
from schemas.views.sft_rows import Per, sft_rows
from schemas.views.turns import own_places, went_wrong
from schemas.views.view import Unused


class Reflection(Dialogue):
    """Loss on turns that met no error and follow one that did; error turns themselves never carry loss."""

    name: ClassVar[str] = "reflection"
    record: ClassVar[type[SftRow]] = SftRow

    rows: Per = Field(default="step", description="one row per trajectory, or per turn that puts an error right")

    def make_rows(self, trajectory: Trajectory, evidence: Evidence) -> list[SftRow]:
        """The rows of one trajectory. Raises ``Unused`` if no error was put right."""
        del evidence
        content = trajectory.content
        told = self.told(trajectory)
        turns = [place for place, said in enumerate(told) if said.step is not None]
        wrong = {place: went_wrong(content, told[place].items) for place in turns}
        after_error = {later for earlier, later in itertools.pairwise(turns) if wrong[earlier]}
        right = {place for place in own_places(told, content) if place in after_error and not wrong[place]}
        if not right:
            raise Unused("no_correction", "no turn puts right what went wrong before it")
        messages = [msgspec.structs.replace(said.message, train=place in right) for place, said in enumerate(told)]
        rows = sft_rows(self, trajectory, messages, self.tools_column(trajectory), self.rows)
        return with_tokens(rows, told, trajectory)
