"""The ``world_model`` view: agent and environment change places."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentmill.schemas.dialects.tool_text import TOOL_TEXTS
from agentmill.schemas.records.rows import SftRow
from agentmill.schemas.records.trajectory import ImageObservation, TextObservation, Trajectory
from agentmill.schemas.views.annotations import NOTHING
from agentmill.schemas.views.view import Unused
from agentmill.schemas.views.world_model import WorldModel
from tests.builders import agent_message, instruction, seen, tool_trajectory, trajectory


def shown(row: SftRow) -> list[tuple[str, str | None, bool]]:
    return [(message.role, message.content, message.train) for message in row.messages]


def rows(run: Trajectory, **parameters: Any) -> list[SftRow]:
    return WorldModel(instruction="Be the world.", **parameters).make_rows(run, NOTHING)


def test_the_environment_is_the_assistant() -> None:
    (row,) = rows(trajectory())
    assert shown(row) == [
        ("system", "Be the world.\n\nAct by commands.", False),
        ("user", "Put the ball into the box.\nYou are at home.\nfly to box", False),
        ("assistant", "You cannot fly.", True),
        ("user", "put ball into box", False),
        ("assistant", "Done.", True),
    ]


def test_one_row_per_observation() -> None:
    found = rows(trajectory(), rows="step")
    assert [[message.content for message in row.messages if message.train] for row in found] == [
        ["You cannot fly."],
        ["Done."],
    ]
    assert [len(row.messages) for row in found] == [3, 5]


def test_calls_are_text_and_parallel_results_one_answer() -> None:
    (row,) = rows(tool_trajectory())
    assert row.tools is None
    assert row.messages[0].content is not None
    assert row.messages[0].content.startswith(f"Be the world.\n\nUse tools.\n\n{TOOL_TEXTS['json'].tools}\n")
    calls = '{"name": "look", "arguments": {"where":"box"}}\n{"name": "look", "arguments": {"where":"floor"}}'
    assert shown(row)[1:] == [
        ("user", f"Where is the ball?\n{calls}", False),
        ("assistant", "empty\na ball", True),
    ]


def test_a_world_does_not_hear_thoughts() -> None:
    content = [
        instruction(),
        agent_message("go", 1, description="I should go.", reasoning_content="Hm."),
        seen("gone", 1),
    ]
    (row,) = rows(trajectory(content=content))
    assert row.messages[1].content == "Put the ball into the box.\ngo"


def test_what_no_environment_said_is_not_learnt() -> None:
    content = [
        instruction(),
        agent_message("a", 1),
        seen("copied", 1, context_operation="copied"),
        agent_message("b", 2),
        seen("made up", 2, synthetic=True),
        agent_message("c", 3),
        ImageObservation(content="shot.png", source="environment", turn=3),
        agent_message("d", 4),
        TextObservation(content="of the user", source="user", turn=4),
        agent_message("e", 5),
        seen("real", 5),
    ]
    (row,) = rows(trajectory(content=content))
    assert [message.content for message in row.messages if message.train] == ["real"]
    assert ("assistant", "made up", False) in shown(row)
    assert ("user", "d\nof the user\ne", False) in shown(row)
    with pytest.raises(Unused) as caught:
        rows(trajectory(content=content[:-1]))
    assert caught.value.reason == "no_loss"


def test_an_empty_result_takes_no_loss_from_those_next_to_it() -> None:
    run = tool_trajectory()
    for empty in (3, 4):
        content = [
            msgspec.structs.replace(item, content="") if n == empty else item for n, item in enumerate(run.content)
        ]
        (row,) = rows(tool_trajectory(content=content))
        assert shown(row)[-1] == ("assistant", "a ball" if empty == 3 else "empty", True)
