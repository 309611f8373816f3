"""``text``: transcripts for continued pre-training."""

from __future__ import annotations

from typing import ClassVar

from agentmill.pipelines.operators.rows import Rows
from agentmill.schemas.views.text import Text as TextView


class Text(Rows, TextView):
    """Transcripts of trajectories."""

    view: ClassVar[str] = "text"
