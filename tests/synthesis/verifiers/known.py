"""Trajectories and tasks of many kinds, for tests of verifiers, and parameters with which each verifier runs."""

from __future__ import annotations

from typing import Any

from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import CodeAction, Outcome, Trajectory, WebObservation
from tests.builders import agent_message, called, instruction, seen, task, tool_trajectory, trajectory

PARAMETERS: dict[str, dict[str, Any]] = {
    "check_rules": {
        "rules": [
            {"id": "looks", "at_least": 1, "of": {"tool": "look"}},
            {"id": "legal", "legal": True},
            {"id": "short", "answer": {"most_words": 20}},
            {"id": "moves", "idle": 0.5},
        ],
        "per_step": True,
    },
    "milestones": {"milestones": [{"id": "looked", "of": {"tool": "look"}}, {"id": "code", "of": {"code": "."}}]},
}
"""What verifiers need besides tables; those that are not here need nothing."""


def trajectories() -> list[Trajectory]:
    """Text, tools, code, a page, a branch, nothing at all."""
    code = CodeAction(language="python", content="def add(a, b):\n    return a + b", turn=1)
    page = WebObservation(html="<p>42</p>", url="http://a", turn=1)
    copied = [
        seen("Start."),
        agent_message("go", 1, context_operation="copied"),
        seen("Gone.", 1),
        agent_message("on", 2),
    ]
    return [
        trajectory("text"),
        tool_trajectory("tools"),
        trajectory("code", content=[instruction("Add."), code, seen("", 1), agent_message("It is 3.", 2)]),
        trajectory("page", content=[instruction(), called("open", 1), page, agent_message("42", 2)]),
        trajectory("branch", content=copied, parent_id="text", branch_turn=2),
        trajectory("foreign", generation=None, task_id=None, outcome=Outcome()),
        trajectory("empty", content=[]),
    ]


def tasks() -> list[Task | None]:
    """Without a goal, with an answer, with tests, and none."""
    return [
        task(),
        task(goal={"answer": "On the floor."}),
        task(goal={"answer": [3, "three"], "tests": ["assert add(1, 2) == 3", "assert add(1, 1) == 3"]}),
        None,
    ]
