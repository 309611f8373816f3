"""ActionStudio: trajectories and training rows come back, and of a row only the answer is trained on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmill.schemas.format import FormatError, Origin, Read
from agentmill.schemas.formats.xlam import XLam
from agentmill.schemas.records.trajectory import Action, ApiAction, MessageAction, Trajectory
from tests.builders import tool_trajectory
from tests.schemas.formats import chat_records as chat
from tests.schemas.records import records, texts

ASK = {"role": "user", "content": "Go."}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def read(document: Any) -> Read:
    return XLam().read(chat.encoded(document), Origin("demo"))


def comes_back(document: Any) -> Read:
    found = read(document)
    written = XLam().write(found.trajectory)
    assert chat.plain(written.document) == chat.plain(document)
    return found


@given(messages=chat.messages, name=texts, task=texts)
def test_trajectories_come_back(messages: Any, name: str, task: str) -> None:
    document = {"unique_trajectory_id": name, "task_instruction": task, "tools": TOOLS, "conversation": messages}
    comes_back(document)


@given(messages=chat.messages, chosen=texts, message=st.booleans())
def test_training_rows_come_back(messages: Any, chosen: str, message: bool) -> None:
    row = {"id": "t---2", "messages": messages, "tools": TOOLS, "chosen": chosen}
    output = {"role": "assistant", "content": "Said."}
    comes_back({**row, "output_message": output} if message else row)


@given(run=records(Trajectory))
def test_what_is_written_of_our_records_is_stable(run: Trajectory) -> None:
    run = msgspec.structs.replace(run, extra={key: value for key, value in run.extra.items() if key != "xlam"})
    document, losses = XLam().write(run)
    assert all(count > 0 for count in losses.values())
    again = XLam().write(read(document).trajectory).document
    assert chat.plain(again) == chat.plain(document)


def test_a_run_with_tools_loses_nothing_but_its_ending() -> None:
    run = tool_trajectory()
    document, losses = XLam().write(run)
    assert losses == {"outcome": 1}
    assert document["unique_trajectory_id"] == "t2"
    assert document["task_instruction"] == "Where is the ball?"
    back = read(document).trajectory
    assert back.content == run.content
    assert back.tools == run.tools


def test_calls_behind_the_mark_are_the_answer() -> None:
    before = {"role": "assistant", "content": "Hm."}
    row = {
        "id": "t---1",
        "messages": [ASK, before, ASK],
        "tools": TOOLS,
        "chosen": '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
    }
    found = comes_back(row)
    actions = [item for item in found.trajectory.content if isinstance(item, Action)]
    assert [item.train for item in actions] == [False, True, True]
    assert [(item.function, item.kwargs) for item in actions if isinstance(item, ApiAction)] == [
        ("f", {"a": 1}),
        ("g", {}),
    ]
    assert found.remarks["undeclared_tool"] == 1


@pytest.mark.parametrize("chosen", ["", "Hello", "[TOOL_CALLS]", "[TOOL_CALLS][]", "[TOOL_CALLS]{", "x[TOOL_CALLS][1]"])
def test_other_answers_are_messages(chosen: str) -> None:
    found = comes_back({"id": "t---1", "messages": [ASK], "chosen": chosen})
    assert found.trajectory.content[-1] == MessageAction(content=chosen, turn=1, train=True)


@pytest.mark.parametrize(
    "document", [{}, {"messages": "x"}, {"messages": [ASK]}, {"conversation": 5}, {"conversation": [5]}]
)
def test_what_has_no_messages_or_answer_is_refused(document: Any) -> None:
    with pytest.raises(FormatError) as caught:
        read(document)
    assert caught.value.reason == "invalid"


def test_an_answer_without_loss_is_not_trained_on() -> None:
    answer = {"role": "assistant", "content": "Bad.", "weight": 0}
    found = comes_back({"id": "1---1", "messages": [ASK], "output_message": answer, "chosen": "Bad."})
    assert [item.train for item in found.trajectory.content if isinstance(item, Action)] == [False]
