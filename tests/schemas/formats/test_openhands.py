"""OpenHands logs: results follow their link, state changes are no turns, labels and failed runs stay."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentmill.schemas.format import FormatError, Origin, Read
from agentmill.schemas.formats.openhands.format import OpenHands
from agentmill.schemas.records.trajectory import ApiAction, CodeAction, MessageAction, TextObservation

TASK = {"id": 0, "source": "user", "action": "message", "args": {"content": "Fix it."}, "message": "Fix it."}


def read(document: Any) -> Read:
    return OpenHands().read(msgspec.json.encode(document), Origin("demo"))


def response(*calls: tuple[str, str, Any], content: str | None = None, name: str = "r1") -> dict[str, Any]:
    tool_calls = [
        {"id": call_id, "type": "function", "function": {"name": function, "arguments": arguments}}
        for call_id, function, arguments in calls
    ]
    choice = {
        "finish_reason": "tool_calls",
        "message": {"role": "assistant", "content": content, "tool_calls": tool_calls},
    }
    return {"id": name, "model": "m", "choices": [choice], "usage": {"prompt_tokens": 10, "completion_tokens": 2}}


def made(number: int, call_id: str, function: str, answer: dict[str, Any], **event: Any) -> dict[str, Any]:
    meta = {"function_name": function, "tool_call_id": call_id, "model_response": answer, "total_calls_in_response": 2}
    return {"id": number, "source": "agent", **event, "tool_call_metadata": meta}


def seen(number: int, cause: Any, text: Any = "ok", name: str = "run", **event: Any) -> dict[str, Any]:
    return {"id": number, "source": "agent", "observation": name, "content": text, "cause": cause, **event}


def test_calls_of_one_response_share_a_turn_and_results_follow_their_cause() -> None:
    answer = response(("a", "execute_bash", '{"command": "ls"}'), ("b", "edit", '{"path": "x", "text": " y\\n"}'))
    events = [
        TASK,
        made(1, "a", "execute_bash", answer, action="run", args={"command": "ls", "thought": "Both.", "hidden": False}),
        seen(2, 1, "out\r\n"),
        made(3, "b", "edit", answer, action="edit", args={"path": "x", "content": " y\n", "thought": ""}),
        seen(4, 3, "", name="edit", extras={"diff": "d"}),
    ]
    run, losses, _, remarks = read(events)
    assert not losses
    assert not (+remarks)
    assert run.content == [
        TextObservation(content="Fix it.", source="user"),
        ApiAction(function="execute_bash", kwargs={"command": "ls"}, description="Both.", turn=1, tool_call_id="a"),
        ApiAction(function="edit", kwargs={"path": "x", "text": " y\n"}, turn=1, tool_call_id="b"),
        TextObservation(content="out\r\n", source="environment", name="run", turn=1, tool_call_id="a"),
        TextObservation(content="", source="environment", name="edit", turn=1, tool_call_id="b"),
    ]
    assert (run.usage.prompt_tokens, run.usage.completion_tokens) == (10, 2)
    kept = run.extra["openhands"]
    assert kept["content"]["2"]["args"] == {"content": " y\n"}
    assert kept["content"]["4"]["extras"] == {"diff": "d"}
    message = kept["model_responses"]["r1"]["choices"][0]["message"]
    assert message == {"role": "assistant"}


def test_events_without_what_the_model_wrote() -> None:
    events = [
        {"id": 1, "source": "agent", "action": "run", "args": {"command": "ls", "thought": "T", "blocking": True}},
        {"id": 2, "source": "agent", "action": "run_ipython", "args": {"code": "1"}},
        {"id": 3, "source": "agent", "action": "browse_interactive", "args": {"browser_actions": "goto('a')"}},
        {"id": 4, "source": "agent", "action": "finish", "args": {"outputs": {}, "thought": "Done."}},
        {"id": 5, "source": "agent", "action": "message", "args": {"content": "Bye."}},
    ]
    run = read(events).trajectory
    bash, python, browse, finish, message = run.content
    assert isinstance(bash, CodeAction)
    assert isinstance(python, CodeAction)
    assert (bash.language, bash.content, bash.description) == ("bash", "ls", "T")
    assert (python.language, python.content) == ("python", "1")
    assert isinstance(browse, ApiAction)
    assert (browse.function, browse.kwargs) == ("browse_interactive", {"browser_actions": "goto('a')"})
    assert isinstance(finish, ApiAction)
    assert (finish.function, finish.kwargs, finish.description) == ("finish", {"outputs": {}}, "Done.")
    assert isinstance(message, MessageAction)
    assert [item.turn for item in run.content] == [1, 2, 3, 4, 5]
    assert run.extra["openhands"]["content"]["0"]["args"] == {"blocking": True}


def test_errors_orphans_duplicates_and_early_results() -> None:
    events = [
        seen(9, 77, "lost"),
        {"id": 1, "source": "agent", "action": "run", "args": {"command": "x"}},
        seen(2, 1, "bad", name="error", error="text"),
        seen(3, 1, "again", error=True),
    ]
    run, _, _, remarks = read(events)
    call = run.content[1].tool_call_id
    assert [item.tool_call_id for item in run.content] == [None, call, call, None]
    assert [item.error for item in run.content] == [False, False, True, True]
    assert +remarks == {"orphan_result": 1, "early_result": 1, "duplicate_result": 1}
    assert run.extra["openhands"]["content"]["2"]["error"] == "text"


def test_state_changes_and_unknown_events_are_kept_apart() -> None:
    others = [
        {"id": 1, "source": "environment", "action": "change_agent_state", "args": {"agent_state": "running"}},
        {"id": 2, "observation": "agent_state_changed", "content": "", "extras": {"agent_state": "running"}},
        {"id": 3, "mystery": True},
    ]
    run, _, _, remarks = read([TASK, *others])
    assert len(run.content) == 1
    assert run.extra["openhands"]["events"] == others
    assert +remarks == {"unknown_kind": 1}


def test_delegation_keeps_its_agents() -> None:
    events = [
        TASK,
        {"id": 1, "source": "agent", "action": "delegate", "args": {"agent": "Browser", "inputs": {"task": "t"}}},
        {"id": 2, "source": "agent", "action": "browse_interactive", "args": {"browser_actions": "noop()"}},
        seen(3, 2, "page", name="browse"),
        seen(4, 1, "found", name="delegate"),
        {"id": 5, "source": "agent", "action": "message", "args": {"content": "Done."}},
    ]
    run = read(events).trajectory
    assert [item.agent for item in run.content] == [None, None, "Browser", "Browser", None, None]
    assert run.content[4].tool_call_id == run.content[1].tool_call_id


def test_pages_are_cut_down_to_what_was_read_and_extras_may_be_json_text() -> None:
    extras = {"url": "http://a", "screenshot": "data:…", "dom_object": {"x": 1}, "axtree_object": {"y": 2}}
    for given in (extras, msgspec.json.encode(extras).decode()):
        event = {"id": 1, "source": "agent", "action": "browse", "args": {"url": "http://a"}}
        run, losses, _, _ = read([event, seen(2, 1, "[1] heading", name="browse", extras=given)])
        assert losses == {"extras.screenshot": 1, "extras.dom_object": 1, "extras.axtree_object": 1}
        assert run.extra["openhands"]["content"]["1"]["extras"] == {"url": "http://a"}
    run = read([seen(2, None, "", extras="no json")]).trajectory
    assert run.extra["openhands"]["content"]["0"]["extras"] == {"text": "no json"}


def test_system_prompt_tools_and_metrics() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    metrics = [{"accumulated_cost": cost, "accumulated_token_usage": {"prompt_tokens": 3}} for cost in (0.1, 0.3)]
    events = [
        {"id": 0, "source": "agent", "action": "system", "args": {"content": "Be good.", "tools": tools}},
        {**TASK, "llm_metrics": metrics[0]},
        {"id": 3, "source": "agent", "action": "message", "args": {"content": "Hi"}, "llm_metrics": metrics[1]},
    ]
    run, losses, _, _ = read(events)
    assert run.system_prompt == "Be good."
    assert [tool.name for tool in run.tools] == ["f"]
    assert (run.usage.prompt_tokens, run.usage.cost_usd) == (3, 0.3)
    assert +losses == {"llm_metrics": 1}


@pytest.mark.parametrize(
    ("label", "status"),
    [
        ({"resolved": True}, "success"),
        ({"resolved": 0}, "failure"),
        ({"test_result": {"report": {"resolved": False}}}, "failure"),
        ({"report": {"resolved": True}}, "success"),
        ({"feedback": "positive", "polarity": ""}, "success"),
        ({"feedback": "negative"}, "failure"),
        ({"feedback": ""}, "unknown"),
        ({"error": "timeout"}, "unknown"),
    ],
)
def test_labels_are_outcomes_and_stay_readable(label: dict[str, Any], status: str) -> None:
    for key in ("history", "trajectory", "events"):
        run = read({"instance_id": "i-1", key: [TASK], **label}).trajectory
        assert (run.task_id, run.outcome.status) == ("i-1", status)
        assert run.extra["openhands"].items() >= label.items()
        assert run.outcome.reason == label.get("error")


def test_personal_fields_are_never_stored() -> None:
    settings = {"token": "t0ken", "LLM_API_KEY": "t0ken", "model": "m"}
    begun = {"action": "initialize", "args": settings, "token": "t0ken"}
    run, losses, _, _ = read({"email": "a@b.c", "token": "t0ken", "feedback": "negative", "trajectory": [TASK, begun]})
    assert losses == {"email": 1, "token": 3, "LLM_API_KEY": 1}
    assert "t0ken" not in str(run)
    assert b"a@b.c" not in msgspec.json.encode(run)
    assert b"t0ken" not in msgspec.json.encode(run)


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def sdk(kind: str, number: int, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "id": f"e{number}", "timestamp": "2026-01-01T00:00:00", "source": "agent", **fields}


def act(number: int, call_id: str, name: str, arguments: str, answer: str, **fields: Any) -> dict[str, Any]:
    call = {"id": call_id, "name": name, "arguments": arguments, "origin": "completion"}
    shape = {"thought": [], "tool_name": name, "tool_call_id": call_id, "tool_call": call, "llm_response_id": answer}
    return sdk("ActionEvent", number, **{**shape, "action": {"kind": "A"}, **fields})


SDK = [
    sdk("SystemPromptEvent", 0, system_prompt=text("Be good."),
        tools=[{"name": "sh", "kind": "T", "description": "d"}]),
    sdk("MessageEvent", 1, source="user", extended_content=[],
        llm_message={"role": "user", "content": [text("Fix it.")]}),
    act(2, "a", "sh", '{"command": "ls"}', "r1", thought=[text("Both.")], reasoning_content="Hm.",
        action={"command": "ls"}),
    act(3, "b", "sh", '{"command": ', "r1", action=None),
    sdk("ObservationEvent", 4, source="environment", action_id="e2", tool_call_id="a", tool_name="sh",
        observation={"kind": "O", "content": [text("out")], "exit_code": 0}),
    sdk("AgentErrorEvent", 5, tool_call_id="b", tool_name="sh", error="bad arguments"),
    act(6, "c", "sh", "{}", "r2"),
    sdk("UserRejectObservation", 7, source="user", action_id="e6", tool_call_id="c", tool_name="sh",
        rejection_reason="No."),
    sdk("Condensation", 8, forgotten_event_ids=["e2", "e3"], summary="Tried things.", summary_offset=1),
    sdk("MessageEvent", 9, llm_message={"role": "assistant", "content": [text("Bye.")]}, critic_result={"score": 0.2}),
    sdk("ConversationStateUpdateEvent", 10, key="k", value="v"),
    sdk("BrandNewEvent", 11, source="hook", parent_id="e9"),
]  # fmt: skip


def test_events_of_the_sdk() -> None:
    run, losses, _, remarks = read(SDK)
    assert not +losses
    assert +remarks == {"unknown_kind": 1}
    assert run.system_prompt == "Be good."
    assert [(tool.name, tool.description) for tool in run.tools] == [("sh", "d")]
    assert run.content == [
        TextObservation(content="Fix it.", source="user"),
        ApiAction(
            function="sh",
            kwargs={"command": "ls"},
            description="Both.",
            reasoning_content="Hm.",
            turn=1,
            tool_call_id="a",
        ),
        ApiAction(function="sh", kwargs={}, raw_arguments='{"command": ', turn=1, tool_call_id="b"),
        TextObservation(content="out", source="environment", name="sh", turn=1, tool_call_id="a"),
        TextObservation(content="bad arguments", source="environment", name="sh", turn=1, tool_call_id="b", error=True),
        ApiAction(function="sh", kwargs={}, turn=2, tool_call_id="c"),
        TextObservation(content="No.", source="user", name="sh", turn=2, tool_call_id="c", error=True),
        TextObservation(content="Tried things.", source="environment", turn=2, context_operation="condense"),
        MessageAction(content="Bye.", turn=3),
    ]
    kept = run.extra["openhands"]
    assert [event["id"] for event in kept["events"]] == ["e0", "e10", "e11"]
    assert kept["content"]["2"]["action"] is None
    assert kept["content"]["3"]["observation"] == {"kind": "O", "exit_code": 0}
    assert kept["content"]["7"]["forgotten_event_ids"] == ["e2", "e3"]
    assert kept["content"]["8"]["critic_result"] == {"score": 0.2}


def test_the_dynamic_part_of_the_system_prompt_and_of_a_message() -> None:
    message = {"role": "user", "content": [text("Fix it.")]}
    events = [
        sdk("SystemPromptEvent", 0, system_prompt=text("Be good."), tools=[], dynamic_context=text("Today.")),
        sdk("MessageEvent", 1, source="user", llm_message=message, extended_content=[text("Hint.")]),
    ]
    run = read(events).trajectory
    assert run.system_prompt == "Be good.\nToday."
    first = run.content[0]
    assert isinstance(first, TextObservation)
    assert first.content == "Fix it.\nHint."


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "blank"),
        (b"[{", "invalid_json"),
        (b"5", "invalid"),
        (b'["x"]', "invalid"),
        (b"[]", "empty"),
        (b'{"trajectory": []}', "empty"),
        (b'{"messages": []}', "invalid"),
    ],
)
def test_what_is_no_log_is_refused(raw: bytes, reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        OpenHands().read(raw, Origin("demo"))
    assert caught.value.reason == reason
