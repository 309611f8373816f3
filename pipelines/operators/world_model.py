"""``world_model``: training rows that predict what the environment answers."""

from __future__ import annotations

from typing import ClassVar

from agentmill.pipelines.operators.rows import Rows
from agentmill.schemas.views.world_model import WorldModel as WorldModelView


class WorldModel(Rows, WorldModelView):
    """Training rows of trajectories: what the environment answers to what was done."""

    view: ClassVar[str] = "world_model"
