"""What is odd about the links between calls and results of a run that was read."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.formats.format import Remarks
from schemas.trajectory import AnyItem, ApiAction, CodeAction, Tool

_CALLS = frozenset({ApiAction, CodeAction})


def link_remarks(content: Sequence[AnyItem], tools: Sequence[Tool]) -> Remarks:
    """What is odd, by reason code.

    ``repeated_call_id``, ``orphan_result``, ``early_result`` (its call comes later), ``duplicate_result``,
    ``unanswered_call``, and ``undeclared_tool`` where tools are declared and others called.
    """
    remarks = Remarks()
    waiting: dict[str | None, int] = {}
    early: set[str] = set()
    declared = {tool.name for tool in tools}
    for item in content:
        call_id = item.tool_call_id
        if type(item) in _CALLS:
            if declared and isinstance(item, ApiAction) and item.function not in declared:
                remarks["undeclared_tool"] += 1
            if call_id is None:
                remarks["unanswered_call"] += 1
                continue
            if call_id in waiting:
                remarks["repeated_call_id"] += 1
            if call_id in early:
                remarks["early_result"] += 1
            waiting[call_id] = waiting.get(call_id, 0) + 1
        elif call_id is not None and waiting.get(call_id, 0):
            waiting[call_id] -= 1
        elif call_id is not None:
            remarks["duplicate_result" if call_id in waiting else "orphan_result"] += 1
            early.add(call_id)
    if unanswered := sum(waiting.values()):
        remarks["unanswered_call"] += unanswered
    return remarks
