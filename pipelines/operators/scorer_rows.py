"""``scorer_rows``: rows for reward models, step-value models and critics."""

from __future__ import annotations

from typing import ClassVar

from agentmill.pipelines.operators.rows import Rows
from agentmill.schemas.views.scorer_rows import ScorerRows as ScorerRowsView


class ScorerRows(Rows, ScorerRowsView):
    """What scorers learn from: runs, or steps, with their scores, labels and critiques."""

    view: ClassVar[str] = "scorer_rows"
