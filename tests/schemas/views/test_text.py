"""The ``text`` view: transcripts."""

from __future__ import annotations

import pytest

from agentmill.schemas.dialects.tool_text import TOOL_TEXTS
from agentmill.schemas.records.trajectory import MessageAction, TextObservation
from agentmill.schemas.views.annotations import NOTHING
from agentmill.schemas.views.text import Text
from agentmill.schemas.views.view import Unused
from tests.builders import agent_message, instruction, seen, tool_trajectory, trajectory


def test_a_run_reads_as_a_transcript() -> None:
    (row,) = Text().make_rows(trajectory(), NOTHING)
    assert row.text == (
        "System: Act by commands.\n\n"
        "User: Put the ball into the box.\nYou are at home.\n\n"
        "Assistant: fly to box\n\n"
        "User: You cannot fly.\n\n"
        "Assistant: put ball into box\n\n"
        "User: Done."
    )


def test_calls_and_results_are_written_out() -> None:
    (row,) = Text().make_rows(tool_trajectory(tools=[]), NOTHING)
    assert row.text.split("\n\n")[2:] == [
        'Assistant: {"name": "look", "arguments": {"where":"box"}}\n{"name": "look", "arguments": {"where":"floor"}}',
        'User: {"name": "look", "result": "empty"}\n{"name": "look", "result": "a ball"}',
        "Assistant: On the floor.",
    ]
    (listed,) = Text(tool_format="react").make_rows(tool_trajectory(), NOTHING)
    assert listed.text.startswith(f"System: Use tools.\n\n{TOOL_TEXTS['react'].tools}\n")


def test_hidden_reasoning_is_part_of_it() -> None:
    content = [instruction("Hi."), MessageAction(content="Hello.", reasoning_content="A greeting.", turn=1)]
    (row,) = Text().make_rows(trajectory(content=content, system_prompt=None), NOTHING)
    assert row.text == "User: Hi.\n\nAssistant (thinking): A greeting.\n\nAssistant: Hello."


def test_what_a_branch_copied_is_left_to_its_parent() -> None:
    copied = [
        TextObservation(content="Go.", source="user", context_operation="copied"),
        agent_message("old", 1, context_operation="copied"),
    ]
    (row,) = Text().make_rows(trajectory(content=[*copied, agent_message("new", 2), seen("x", 2)]), NOTHING)
    assert row.text == "System: Act by commands.\n\nAssistant: new\n\nUser: x"
    with pytest.raises(Unused) as caught:
        Text().make_rows(trajectory(content=copied), NOTHING)
    assert caught.value.reason == "no_text"
