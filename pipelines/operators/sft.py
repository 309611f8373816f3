"""``sft``: training rows for supervised fine-tuning, from the trajectories that are chosen."""

from __future__ import annotations

from typing import ClassVar

from agentmill.pipelines.operators.rows import Rows
from agentmill.schemas.views.sft import Sft as SftView


class Sft(Rows, SftView):
    """Training rows of trajectories: conversations whose assistant turns carry loss."""

    view: ClassVar[str] = "sft"
