"""Runs of several agents, seen by one of them."""

from __future__ import annotations

import msgspec
import pytest

from agentmill.schemas.views.annotations import NOTHING
from agentmill.schemas.views.sft import Sft
from agentmill.schemas.views.view import Unused
from tests.builders import agent_message, called, instruction, seen, trajectory

CONTENT = [
    instruction("Find the ball."),
    agent_message("Look in the box.", 1, agent="ann", role="planner"),
    agent_message("look box", 2, agent="bob", role="worker"),
    seen("a ball", 2),
    agent_message("Found it.", 3, agent="ann", role="planner"),
]


def shown(role: str | None) -> list[tuple[str, str | None, bool]]:
    (row,) = Sft(role=role).make_rows(trajectory(content=CONTENT, system_prompt=None), NOTHING)
    return [(message.role, message.content, message.train) for message in row.messages]


def test_flattened_all_agents_are_one_assistant() -> None:
    assert shown(None) == [
        ("user", "Find the ball.", False),
        ("assistant", "Look in the box.", True),
        ("assistant", "look box", True),
        ("user", "a ball", False),
        ("assistant", "Found it.", True),
    ]


def test_others_are_heard_as_users() -> None:
    assert shown("planner") == [
        ("user", "Find the ball.", False),
        ("assistant", "Look in the box.", True),
        ("user", "bob: look box\na ball", False),
        ("assistant", "Found it.", True),
    ]
    assert shown("ann") == shown("planner")
    assert shown("bob") == [
        ("user", "Find the ball.", False),
        ("user", "ann: Look in the box.", False),
        ("assistant", "look box", True),
    ]


def test_calls_of_others_are_written_out() -> None:
    content = [
        instruction(),
        msgspec.structs.replace(called("look", 1, "a", where="box"), agent="bob"),
        seen("a ball", 1, tool_call_id="a"),
        agent_message("Thanks.", 2, agent="ann"),
    ]
    (row,) = Sft(role="ann").make_rows(trajectory(content=content), NOTHING)
    assert [(message.role, message.content) for message in row.messages[2:]] == [
        ("user", 'bob: {"name": "look", "arguments": {"where":"box"}}\na ball'),
        ("assistant", "Thanks."),
    ]


def test_who_never_acts_makes_no_row() -> None:
    with pytest.raises(Unused, match="'eve'") as caught:
        Sft(role="eve").make_rows(trajectory(content=CONTENT), NOTHING)
    assert caught.value.reason == "no_role"
