"""Rows of TRL: each shape is told by its fields, read as runs, and written again; arguments are objects."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from agentmill.schemas.format import FormatError, Origin, Read
from agentmill.schemas.formats.trl import Trl
from agentmill.schemas.records.trajectory import ApiAction
from tests.builders import agent_message, instruction, outcome, seen, tool_trajectory, trajectory

ORIGIN = Origin("demo")
USER = {"role": "user", "content": "Where?"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}],
}
RESULT = {"role": "tool", "name": "f", "content": "1"}
GOOD = {"role": "assistant", "content": "Here."}
BAD = {"role": "assistant", "content": "Nowhere."}


def read(row: Any) -> Read:
    return Trl().read(json.dumps(row).encode(), ORIGIN)


@pytest.mark.parametrize(
    ("row", "contents", "status"),
    [
        ({"messages": [USER, GOOD], "id": 3}, ["Where?", "Here."], "unknown"),
        ({"prompt": [USER], "completion": [GOOD]}, ["Where?", "Here."], "unknown"),
        ({"prompt": "Where?", "completion": " Here."}, ["Where?", " Here."], "unknown"),
        ({"prompt": "Where?"}, ["Where?"], "unknown"),
        ({"prompt": [USER], "completion": [GOOD], "label": True}, ["Where?", "Here."], "success"),
        ({"prompt": "Where?", "completion": "Nowhere.", "label": False}, ["Where?", "Nowhere."], "failure"),
        ({"prompt": "Where?", "completion": "x", "label": 1}, ["Where?", "x"], "unknown"),
        ({"prompt": "Where?", "completions": ["a", "b"], "labels": [True, False]}, ["Where?", "a", "b"], "unknown"),
        ({"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]}, ["Where?", "Here."], "unknown"),
        ({"prompt": "Where?", "chosen": "Here.", "rejected": "Nowhere."}, ["Where?", "Here."], "unknown"),
        ({"chosen": [USER, GOOD], "rejected": [USER, BAD]}, ["Where?", "Here."], "unknown"),
        ({"prompt": "Where?", "chosen": [USER, GOOD], "rejected": [USER, BAD]}, ["Where?", "Here."], "unknown"),
        ({"prompt": "Where?", "chosen": [GOOD], "rejected": [BAD]}, ["Where?", "Here."], "unknown"),
        ({"prompt": "Where?", "completions": ["a", "b"], "labels": [True, None]}, ["Where?", "a", "b"], "unknown"),
    ],
)
def test_every_shape_is_read_and_written_again(row: Any, contents: list[str], status: str) -> None:
    found = read(row)
    assert [item.content for item in found.trajectory.content] == contents  # type: ignore[union-attr]
    assert found.trajectory.outcome.status == status
    written = Trl().write_pair(found.trajectory, *found.others) if found.others else Trl().write(found.trajectory)
    assert written.document == row
    assert not written.losses
    for rejected in found.others:
        assert [item.content for item in rejected.content] == ["Where?", "Nowhere."]  # type: ignore[union-attr]
        assert [item.context_operation for item in rejected.content] == ["copied", None]


def test_labels_of_steps_stand_beside_them() -> None:
    run = read({"prompt": "?", "completions": ["a", "b"], "labels": [True, False]}).trajectory
    assert [item.turn for item in run.content] == [0, 1, 2]
    assert run.extra["trl"]["content"] == {"1": {"label": True}, "2": {"label": False}}


def test_arguments_are_objects_as_read_and_as_written() -> None:
    run = read({"messages": [USER, CALL, RESULT, GOOD], "tools": json.dumps([])}).trajectory
    assert [item.tool_call_id for item in run.content] == [None, "call_1", "call_1", None]
    document = Trl().write(tool_trajectory()).document
    assert document["messages"][2]["tool_calls"][0]["function"]["arguments"] == {"where": "box"}
    text = ApiAction(function="f", kwargs={}, raw_arguments="[1]", turn=1)
    (message,) = Trl().write(tool_trajectory(content=[text], system_prompt=None)).document["messages"]
    assert message["tool_calls"][0]["function"]["arguments"] == "[1]"


def test_the_completion_of_our_own_runs_is_their_last_answer() -> None:
    document, losses = Trl(rows="completion").write(trajectory())
    assert [each["role"] for each in document["prompt"]] == ["system", "user", "user", "assistant", "user"]
    assert document["completion"] == [{"role": "assistant", "content": "put ball into box"}]
    assert losses["content.class_"] == 1
    assert Trl(rows="unpaired").write(trajectory()).document["label"] is True
    failed = trajectory(outcome=outcome("failure"))
    assert Trl(rows="unpaired").write(failed).document["label"] is False
    assert Trl(rows="messages").write(read({"prompt": [USER], "completion": [GOOD]}).trajectory).document == {
        "messages": [USER, GOOD]
    }


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"content": [instruction()]}, "no_answer"), ({"outcome": outcome("unknown")}, "unknown_outcome")],
)
def test_what_is_no_unpaired_row_is_refused(fields: Any, reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        Trl(rows="unpaired").write(trajectory(**fields))
    assert caught.value.reason == reason


def test_pairs_of_ours_have_a_prompt_that_the_agent_answers() -> None:
    good = trajectory(content=[instruction("x"), agent_message("go"), seen("a", 1), agent_message("b", 2)])
    lucky = trajectory(content=[instruction("x"), agent_message("go"), seen("other", 1), agent_message("b", 2)])
    with_seen = Trl().write_pair(
        good, trajectory(content=[instruction("x"), agent_message("go"), seen("a", 1), agent_message("c", 2)])
    )
    assert [each["content"] for each in with_seen.document["prompt"]] == ["Act by commands.", "x", "go", "a"]
    row = Trl().write_pair(good, lucky).document
    assert [each["content"] for each in row["prompt"]] == ["Act by commands.", "x"]
    assert [each["content"] for each in row["chosen"]] == ["go", "a", "b"]
    with pytest.raises(FormatError, match="tied_pair"):
        Trl().write_pair(good, good)
    with pytest.raises(FormatError, match="no_common_prompt"):
        Trl().write_pair(good, trajectory(content=[agent_message("go")], system_prompt=None))


def test_a_short_run_ends_no_prompt() -> None:
    long = trajectory(content=[instruction("x"), agent_message("go"), seen("a", 1), agent_message("b", 2)])
    short = trajectory(content=[instruction("x"), agent_message("go"), seen("a", 1)])
    row = Trl().write_pair(long, short).document
    assert [each["content"] for each in row["rejected"]] == ["go", "a"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "invalid"),
        ({"completion": "x"}, "invalid"),
        ({"messages": "text"}, "invalid"),
        ({"prompt": 3, "completion": "x"}, "invalid"),
        ({"prompt": "x", "completions": ["a"], "labels": []}, "invalid"),
        ({"prompt": [{"role": "narrator", "content": "x"}]}, "unknown_role"),
    ],
)
def test_what_cannot_be_read_has_a_reason(row: Any, reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        read(row)
    assert caught.value.reason == reason


def test_invalid_arguments_are_remarked_on() -> None:
    broken = {
        "role": "assistant",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}],
    }
    assert read({"messages": [broken]}).remarks == Counter({"invalid_arguments": 1, "unanswered_call": 1})


def test_a_pair_whose_worse_side_begins_with_another_system_prompt_shares_nothing() -> None:
    system = {"role": "system", "content": "Be brief."}
    (rejected,) = read({"chosen": [USER, GOOD], "rejected": [system, USER, BAD]}).others
    assert rejected.system_prompt == "Be brief."
    assert [item.context_operation for item in rejected.content] == [None, None]
    assert rejected.branch_turn == 1


def test_filled_arguments_of_a_shared_prompt_are_counted_once() -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
    calls = [{"type": "function", "id": "c", "function": {"name": "f", "arguments": {"a": "x", "b": None}}}]
    acts = {"role": "assistant", "content": None, "tool_calls": calls}
    prompt = [{"role": "user", "content": "Go."}, acts, {"role": "tool", "tool_call_id": "c", "content": "ok"}]
    answer = [{"role": "assistant", "content": "Done."}]
    row = {
        "prompt": prompt,
        "chosen": answer,
        "rejected": [acts],
        "tools": [{"type": "function", "function": function}],
    }
    found = Trl().read(json.dumps(row).encode(), Origin("demo"))
    runs = (found.trajectory, *found.others)
    given = [each.kwargs for run in runs for each in run.content if isinstance(each, ApiAction)]
    assert given == [{"a": "x"}] * 3
    assert found.losses == {"arguments.null": 2}
