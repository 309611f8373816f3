"""``spliced``: failed attempts, each corrected by a success of the same search tree."""

from __future__ import annotations

from typing import ClassVar

from agentmill.pipelines.operators.families import Families
from agentmill.schemas.views.tree import Spliced as SplicedView


class Spliced(Families, SplicedView):
    """Training rows of failed runs: the attempt, its revision, and the good way on."""

    view: ClassVar[str] = "spliced"
