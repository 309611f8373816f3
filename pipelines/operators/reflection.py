"""``reflection``: training rows whose loss lies on turns that put an error right."""

from __future__ import annotations

from typing import ClassVar

from agentmill.pipelines.operators.rows import Rows
from agentmill.schemas.views.tree import Reflection as ReflectionView


class Reflection(Rows, ReflectionView):
    """Training rows of trajectories in which the agent puts an error right."""

    view: ClassVar[str] = "reflection"
