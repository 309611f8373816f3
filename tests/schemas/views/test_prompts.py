"""The ``prompts`` view: what a model is to go on with."""

from __future__ import annotations

import pytest

from agentmill.schemas.views.annotations import NOTHING
from agentmill.schemas.views.text import Prompts
from agentmill.schemas.views.view import Unused
from tests.builders import agent_message, instruction, seen, tool_trajectory, trajectory

BRANCH = [
    instruction(),
    agent_message("old", 1, context_operation="copied"),
    seen("x", 1),
    agent_message("new", 2),
    agent_message("newer", 3),
]


def test_the_prompt_of_a_run_ends_where_the_agent_begins() -> None:
    (row,) = Prompts().make_rows(trajectory(), NOTHING)
    assert [(message.role, message.content) for message in row.prompt] == [
        ("system", "Act by commands."),
        ("user", "Put the ball into the box.\nYou are at home."),
    ]
    assert (row.item, row.outcome, row.tools) == (2, "success", None)


def test_every_step_has_a_prompt() -> None:
    rows = Prompts(rows="step").make_rows(tool_trajectory(), NOTHING)
    assert [(row.item, [message.role for message in row.prompt]) for row in rows] == [
        (1, ["system", "user"]),
        (5, ["system", "user", "assistant", "tool", "tool"]),
    ]
    assert all(row.tools is not None for row in rows)


def test_a_branch_starts_where_it_leaves_its_parent() -> None:
    (row,) = Prompts().make_rows(trajectory(content=BRANCH), NOTHING)
    assert (row.item, row.prompt[-1].content) == (3, "x")
    assert [row.item for row in Prompts(rows="step").make_rows(trajectory(content=BRANCH), NOTHING)] == [3, 4]


def test_without_anything_before_a_step_there_is_no_prompt() -> None:
    for content in ([agent_message("hello", 1)], [instruction()]):
        with pytest.raises(Unused) as caught:
            Prompts().make_rows(trajectory(content=content, system_prompt=None), NOTHING)
        assert caught.value.reason == "no_prompt"
