"""``search_trace``: search trees told as runs that try, go back and succeed."""

from __future__ import annotations

from typing import ClassVar

from agentmill.pipelines.operators.families import Families
from agentmill.schemas.views.tree import SearchTrace as SearchTraceView


class SearchTrace(Families, SearchTraceView):
    """Training rows of search trees: dead ends, going back, and the way to the goal."""

    view: ClassVar[str] = "search_trace"
