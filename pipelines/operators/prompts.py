"""``prompts``: conversations for a model to go on with, in reinforcement learning."""

from __future__ import annotations

from typing import ClassVar

from agentmill.pipelines.operators.rows import Rows
from agentmill.schemas.views.text import Prompts as PromptsView


class Prompts(Rows, PromptsView):
    """Prompts of trajectories: conversations up to the agent's turn."""

    view: ClassVar[str] = "prompts"
