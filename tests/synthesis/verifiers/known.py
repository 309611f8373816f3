"""Trajectories and tasks of many kinds, for tests of verifiers, and parameters with which each verifier runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from agentmill.schemas.ids import digest
from agentmill.schemas.records.rows import Message
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import (
    ApiAction,
    CodeAction,
    MessageAction,
    Outcome,
    Trajectory,
    Usage,
    WebObservation,
)
from agentmill.schemas.views.dialogue import Dialogue
from agentmill.synthesis.policies.policy import Conversation, Turn
from agentmill.synthesis.policies.reward_model import Score, Shown
from agentmill.synthesis.verifiers.judging import Judge, Panel, judge_name
from tests.builders import agent_message, called, instruction, seen, task, tool_trajectory, trajectory

PARAMETERS: dict[str, dict[str, Any]] = {
    "check_rubric": {
        "rubric": [
            {"id": "polite", "text": "It is polite."},
            {"id": "looks", "rule": {"at_least": 1, "of": {"tool": "look"}}},
        ]
    },
    "judge": {"criteria": "The ball is in the box."},
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


class Judging:
    """A judge that says what ``script`` makes of a conversation, and keeps all of them."""

    name = "judging"
    spending = None

    def __init__(self, script: Callable[[Conversation], str | ApiAction], model: str = "wise/judge-7b") -> None:
        self.model, self.revision, self.sampling = model, "0123456789abcdef", dict[str, Any]()
        self._script = script
        self.asked: list[Conversation] = []

    async def act(self, conversation: Conversation) -> Turn:
        self.asked.append(conversation)
        answer = self._script(conversation)
        action = MessageAction(content=answer) if isinstance(answer, str) else answer
        return Turn(actions=[action], usage=Usage(prompt_tokens=10, completion_tokens=2))

    async def close(self) -> None:
        """Nothing is held."""


Script = Callable[[Sequence[Message]], float | Exception]


class Scoring(Judging):
    """A scorer that gives a conversation what ``script`` makes of it, or raises that, and keeps all of them."""

    name = "scoring"

    def __init__(self, script: Script, shown: Shown = Shown(Dialogue())) -> None:
        super().__init__(lambda _: "", "rewards/rm-7b")
        self.shown = shown
        self._script = script
        self.scored: list[Sequence[Message]] = []

    async def score(self, episode_id: str, messages: Sequence[Message], functions: str | None) -> Score:
        self.scored.append(messages)
        value = self._script(messages)
        if isinstance(value, Exception):
            raise value
        usage = Usage(prompt_tokens=len(messages), completion_tokens=0)
        return Score(value=value, tokens=len(messages), rendering=digest(messages, functions), usage=usage)


def panel(*judges: Judging) -> Panel:
    """These judges."""
    return Panel([Judge(judge_name(each), each) for each in judges], 7)


def shown(conversation: Conversation) -> str:
    """All that a judge is shown, but its system prompt."""
    return "\n".join(str(getattr(item, "content", "")) for item in conversation.content)


def approving(conversation: Conversation) -> str:
    """An answer that fits any schema and approves of all."""
    schema = conversation.answer_schema
    assert schema is not None
    given = {
        name: {"reason": "so", "met": True} if entry["type"] == "object" else _least(entry["type"])
        for name, entry in schema["properties"].items()
    }
    return json.dumps(given)


def _least(kind: str) -> Any:
    return {"string": "so", "boolean": True, "integer": 5}[kind]
