"""The ``prompts`` view: what a model is to go on with."""

from __future__ import annotations

import pytest

from agentmill.schemas.records.verdict import Value
from agentmill.schemas.views.annotations import NOTHING, Annotations
from agentmill.schemas.views.scorer_rows import ScorerRows
from agentmill.schemas.views.text import Prompts
from agentmill.schemas.views.view import Unused, rows_of
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


def test_prompts_of_steps_show_what_the_agent_saw_of_a_run_whose_context_was_shortened() -> None:
    """Of a trajectory that is whole the turns that were left out would be in there, too."""
    summary = seen("in short", 1, context_operation="condense")
    content = [instruction(), agent_message("a", 1), seen("ok", 1), summary, agent_message("b", 2), seen("yes", 2)]
    run = trajectory(content=[*content, agent_message("c", 3)])
    found = rows_of(Prompts(rows="step"), run, NOTHING)
    assert [(row.item, [message.content for message in row.prompt[1:]]) for row in found] == [
        (1, ["Put the ball into the box."]),
        (4, ["Put the ball into the box.\nin short"]),
        (6, ["Put the ball into the box.\nin short", "b", "yes"]),
    ]
    assert len(rows_of(Prompts(), run, NOTHING)) == 1
    values = {
        (item, "v"): Value(trajectory_id="t1", name="v", value=0.5, n=1, estimator="x", item=item) for item in (1, 4)
    }
    scored = rows_of(ScorerRows(rows="step", score="value:v"), run, Annotations(values=values))
    assert [(row.item, len(row.messages)) for row in scored] == [(1, 3), (4, 3)]
