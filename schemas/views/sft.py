"""The ``sft`` view: conversations for supervised fine-tuning, loss on assistant messages only."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from schemas.rows import SftRow
from schemas.trajectory import Trajectory
from schemas.views.dialogue import Dialogue
from schemas.views.evidence import Evidence
from schemas.views.loss import LossRule
from schemas.views.prefix import Prefix
from schemas.views.row_tokens import with_tokens
from schemas.views.sft_rows import Per, sft_rows
from schemas.views.turns import with_system


class Sft(LossRule, Dialogue):
    """One row per trajectory, or one per trained step that ends with it.

    Copied items carry no loss, unless ``copied`` says so. Messages after the last one with loss are left out. A row
    that tells what we generated as it was keeps its tokens.
    """

    name: ClassVar[str] = "sft"
    record: ClassVar[type[SftRow]] = SftRow

    rows: Per = Field(default="trajectory", description="one row per trajectory, or per step")
    prefix: Prefix | None = Field(
        default=None, description="texts `success` and `failure`, of which the system prompt tells one (NAT)"
    )

    def make_rows(self, trajectory: Trajectory, evidence: Evidence) -> list[SftRow]:
        """The rows of one trajectory. Raises ``Unused`` if no message carries loss."""
        told = self.told(trajectory)
        if self.prefix is not None:
            told = with_system(told, self.prefix.text(trajectory, evidence))
        messages = self.marked(told, trajectory, evidence)
        rows = sft_rows(self, trajectory, messages, self.tools_column(trajectory), self.rows)
        return with_tokens(rows, told, trajectory)
