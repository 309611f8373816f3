"""LLaMA-Factory v1: parts of messages, weights, calls by order, and pairs of conversations."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from agentmill.schemas.format import FormatError, Origin
from agentmill.schemas.formats.llamafactory import LlamaFactory
from agentmill.schemas.records.trajectory import ApiAction, MessageAction, TextObservation
from tests.builders import tool_trajectory, trajectory

ORIGIN = Origin("demo")
TOOLS = json.dumps([{"type": "function", "function": {"name": "f", "parameters": {"type": "dict"}}}])


def part(kind: str, value: str) -> dict[str, str]:
    return {"type": kind, "value": value}


def message(role: str, *parts: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": list(parts), **fields}


def text(role: str, value: str, **fields: Any) -> dict[str, Any]:
    return message(role, part("text", value), **fields)


def raw(**row: Any) -> bytes:
    return json.dumps(row).encode()


def test_arguments_may_be_called_parameters() -> None:
    value = json.dumps({"name": "f", "parameters": {"q": "x"}})
    row = {"messages": [text("user", "x", loss_weight=0.0), message("assistant", part("tool_call", value))]}
    found = LlamaFactory().read(raw(**row), ORIGIN)
    called = found.trajectory.content[1]
    assert isinstance(called, ApiAction)
    assert called.kwargs == {"q": "x"}
    written = LlamaFactory().write(found.trajectory).document
    assert written["messages"][1]["content"] == row["messages"][1]["content"]


def test_a_run_with_reasoning_and_parallel_calls() -> None:
    calls = [part("tool_call", json.dumps({"name": name, "arguments": {"a": "01"}})) for name in "fg"]
    messages = [
        text("system", "s", loss_weight=0.0),
        text("user", "Do it.", loss_weight=0.0),
        message("assistant", part("reasoning", "hm"), part("text", "Now."), *calls, loss_weight=1.0),
        text("tool", "1"),
        text("tool", "2"),
        text("assistant", "Done.", loss_weight=0.5),
    ]
    row = {"messages": messages, "tools": TOOLS, "extra_info": "from elsewhere"}
    found = LlamaFactory().read(raw(**row), ORIGIN)
    run = found.trajectory
    assert found.remarks == Counter({"undeclared_tool": 1})
    assert run.tools[0].parameters == {"type": "dict"}
    assert run.content == [
        TextObservation(content="Do it.", source="user", train=False),
        ApiAction(
            function="f",
            kwargs={"a": "01"},
            description="Now.",
            reasoning_content="hm",
            tool_call_id="call_1",
            turn=1,
            train=True,
        ),
        ApiAction(function="g", kwargs={"a": "01"}, tool_call_id="call_2", turn=1, train=True),
        TextObservation(content="1", source="environment", tool_call_id="call_1", turn=1),
        TextObservation(content="2", source="environment", tool_call_id="call_2", turn=1),
        MessageAction(content="Done.", turn=2, train=True),
    ]
    assert run.extra["llamafactory"]["content"] == {"system": {"loss_weight": 0.0}, "5": {"loss_weight": 0.5}}
    written = LlamaFactory().write(run)
    assert written.document == row
    assert not written.losses


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [part("text", "")],
        [part("reasoning", "only")],
        [part("text", "a"), part("text", "b")],
        [part("text", "a"), part("reasoning", "b"), part("text", "c")],
        [part("tool_call", '{"arguments": {}, "name": "f"}'), part("text", "after")],
        [part("tool_call", '{"name": "f", "arguments": [1, 2]}')],
        [part("tool_call", '{"name": "f", "arguments": {"a": "</tool_call>"}, "id": 7}')],
        [{**part("text", "a"), "note": "x"}],
    ],
)
def test_what_the_model_says_comes_back_as_it_was(parts: Any) -> None:
    found = LlamaFactory().read(raw(messages=[message("assistant", *parts)]), ORIGIN)
    written = LlamaFactory().write(found.trajectory)
    assert written.document == {"messages": [message("assistant", *parts)]}
    assert not written.losses


def test_a_pair_is_two_runs_that_begin_alike() -> None:
    prompt = [text("system", "s"), text("user", "a"), text("assistant", "b"), text("user", "c")]
    row = {
        "chosen_messages": [*prompt, text("assistant", "good")],
        "rejected_messages": [*prompt, text("assistant", "bad")],
    }
    found = LlamaFactory().read(raw(**row), ORIGIN)
    (rejected,) = found.others
    assert [item.context_operation for item in rejected.content] == ["copied", "copied", "copied", None]
    assert (rejected.parent_id, rejected.branch_turn) == (found.trajectory.trajectory_id, 2)
    written = LlamaFactory().write_pair(found.trajectory, rejected)
    assert written.document == row
    assert not written.losses
    with pytest.raises(FormatError, match="tied_pair"):
        LlamaFactory().write_pair(trajectory(), trajectory())


def test_our_own_runs_are_written_and_what_is_lost_is_counted() -> None:
    document, losses = LlamaFactory().write(tool_trajectory())
    assert losses == Counter({"outcome": 1, "content.tool_call_id": 4})
    assert [part["type"] for part in document["messages"][2]["content"]] == ["tool_call", "tool_call"]
    assert json.loads(document["tools"])[0]["function"]["name"] == "look"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (raw(), "invalid"),
        (raw(messages=[{"role": "user", "content": "text"}]), "invalid"),
        (raw(messages=[text("user", "x", tool_call_id="c")]), "invalid"),
        (raw(messages=[text("oracle", "x")]), "unknown_role"),
        (raw(messages=[message("user", "x")]), "unknown_part"),
        (raw(messages=[message("user", {"type": "text"})]), "unknown_part"),
        (raw(messages=[message("user", part("video_url", "x"))]), "unknown_part"),
        (raw(messages=[message("assistant", part("image_url", "x"))]), "unknown_part"),
        (raw(messages=[message("assistant", part("tool_call", "{"))]), "unknown_call"),
        (raw(messages=[message("assistant", part("tool_call", "[]"))]), "unknown_call"),
        (b'{"messages": [{"role": "user", "content": [', "invalid_json"),
    ],
)
def test_what_cannot_be_read_has_a_reason(row: bytes, reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        LlamaFactory().read(row, ORIGIN)
    assert caught.value.reason == reason
    assert "\n" not in caught.value.detail
