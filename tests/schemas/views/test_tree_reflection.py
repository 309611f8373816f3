"""The ``reflection`` view: turns that put an error right."""

from __future__ import annotations

import pytest

from agentmill.schemas.views.annotations import NOTHING
from agentmill.schemas.views.tree import Reflection
from agentmill.schemas.views.view import Unused
from tests.builders import agent_message, instruction, seen, trajectory

CONTENT = [
    instruction(),
    agent_message("fly", 1),
    seen("no", 1, error=True),
    agent_message("swim", 2),
    seen("no", 2, error=True),
    agent_message("walk", 3),
    seen("ok", 3),
    agent_message("stop", 4),
    agent_message("jump", 5, error=True),
    agent_message("sit", 6),
]


def test_the_correction_is_learnt_with_the_error_before_it() -> None:
    rows = Reflection().make_rows(trajectory(content=CONTENT), NOTHING)
    assert [[message.content for message in row.messages if message.train] for row in rows] == [["walk"], ["sit"]]
    assert [message.content for message in rows[0].messages[2:]] == ["fly", "no", "swim", "no", "walk"]
    assert all(row.messages[-1].train for row in rows)


def test_all_corrections_of_a_run_in_one_row() -> None:
    (row,) = Reflection(rows="trajectory").make_rows(trajectory(content=CONTENT), NOTHING)
    assert [message.content for message in row.messages if message.train] == ["walk", "sit"]


def test_a_revision_may_follow_a_copied_failure() -> None:
    content = [
        instruction(),
        agent_message("fly", 1, context_operation="copied"),
        seen("no", 1, error=True, context_operation="copied"),
        agent_message("That failed. walk", 2),
    ]
    (row,) = Reflection().make_rows(trajectory(content=content), NOTHING)
    assert [message.content for message in row.messages if message.train] == ["That failed. walk"]


@pytest.mark.parametrize("end", [1, 3, 5])
def test_without_a_correction_there_is_no_row(end: int) -> None:
    with pytest.raises(Unused) as caught:
        Reflection().make_rows(trajectory(content=CONTENT[:end]), NOTHING)
    assert caught.value.reason == "no_correction"
