"""Traces: what repeats is said once, tools' results are linked, agents inside agents are runs of their own."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentmill.schemas.format import FormatError, Origin, Read
from agentmill.schemas.formats.otel.format import Otel
from agentmill.schemas.formats.otel.spans import read_spans
from agentmill.schemas.records.trajectory import ApiAction, ImageObservation, MessageAction, TextObservation
from tests.schemas.formats.log_records import ANSWER, ASKS, CALLS, OTEL, SAYS, SEES, SYSTEM, TASK, chat, says, text


def read(document: Any) -> Read:
    return Otel().read(msgspec.json.encode(document), Origin("demo"))


CONTENT = [
    TextObservation(content=TASK, source="user"),
    ApiAction(function="look", kwargs={"where": "floor"}, description="Look.", turn=1, tool_call_id="c"),
    TextObservation(content="a ball", source="environment", turn=1, tool_call_id="c"),
    MessageAction(content=ANSWER, turn=2),
]


def typed(value: Any) -> Any:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [typed(each) for each in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": [{"key": key, "value": typed(each)} for key, each in value.items()]}}
    return {"stringValue": value}


def otlp(span: dict[str, Any], as_text: bool) -> dict[str, Any]:
    given = {
        key: msgspec.json.encode(value).decode() if as_text and not isinstance(value, str) else value
        for key, value in span["attributes"].items()
    }
    return {**span, "attributes": [{"key": key, "value": typed(value)} for key, value in given.items()]}


def test_the_history_is_said_once_in_every_spelling_of_spans() -> None:
    wrapped = {"resourceSpans": [{"scopeSpans": [{"spans": [otlp(span, False) for span in reversed(OTEL)]}]}]}
    texts = {"spans": [otlp(span, True) for span in OTEL]}
    for document in (OTEL, wrapped, texts):
        run, losses, others, remarks = read(document)
        assert run.content == CONTENT
        assert run.system_prompt == SYSTEM
        assert not losses
        assert not others
        assert not remarks


def test_usage_is_summed_and_a_single_evaluation_is_the_outcome() -> None:
    usage = {"gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 3}
    score = {"gen_ai.evaluation.score.value": 0.25, "gen_ai.evaluation.score.label": "fail"}
    agent = {**OTEL[0], "events": [{"name": "gen_ai.evaluation.result", "attributes": score}]}
    spans = [agent, *({**span, "attributes": {**span["attributes"], **usage}} for span in OTEL[1:])]
    run = read(spans).trajectory
    assert (run.usage.prompt_tokens, run.usage.completion_tokens, run.usage.cached_tokens) == (20, 6, None)
    assert (run.outcome.status, run.outcome.reward) == ("failure", 0.25)
    assert run.extra["otel"]["spans"][0]["events"][0]["attributes"] == score
    twice = read([{**agent, "events": agent["events"] * 2}, *OTEL[1:]]).trajectory
    assert (twice.outcome.status, twice.outcome.reward) == ("unknown", None)


def test_a_result_that_no_chat_shows_is_taken_from_the_tool() -> None:
    tool = {
        "spanId": "t",
        "parentSpanId": "agent",
        "startTimeUnixNano": "3",
        "status": {"code": 2},
        "attributes": {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.call.id": "c",
            "gen_ai.tool.call.result": {"error": "gone"},
        },
    }
    shown = read([*OTEL[:2], tool]).trajectory.content[-1]
    assert shown == TextObservation(
        content='{"error":"gone"}', source="environment", turn=1, tool_call_id="c", error=True
    )
    assert read([*OTEL, tool]).trajectory.content == CONTENT


def test_results_without_ids_answer_the_calls_of_their_turn_in_order() -> None:
    calls = [{"type": "tool_call", "name": name, "arguments": {}} for name in ("f", "g")]
    results = [
        says("tool", {"type": "tool_call_response", "response": response}) for response in ("one", "two", "three")
    ]
    acts = says("assistant", *calls)
    run, _, _, remarks = read([chat("one", 1, [ASKS], [acts]), chat("two", 2, [ASKS, acts, *results], [SAYS])])
    assert [item.tool_call_id for item in run.content] == [None, "call_1", "call_2", "call_1", "call_2", None, None]
    assert remarks == {"orphan_result": 1}


def test_a_rewritten_history_adds_only_what_is_new() -> None:
    summary = says("user", text("Summary: it looked."))
    run, _, _, remarks = read([*OTEL[:2], chat("two", 3, [ASKS, summary], [SAYS])])
    assert [getattr(item, "content", None) for item in run.content] == [TASK, None, "Summary: it looked.", ANSWER]
    assert remarks == {"history_changed": 1, "unanswered_call": 1}


def test_a_repeated_turn_is_known_without_its_reasoning_and_with_arguments_as_text() -> None:
    thought = {"type": "reasoning", "content": "Hm."}
    ask = {"type": "tool_call", "id": "c", "name": "look", "arguments": {"where": "floor"}}
    repeated = says("assistant", {**ask, "arguments": '{"where": "floor"}'})
    spans = [chat("one", 1, [ASKS], [says("assistant", thought, ask)]), chat("two", 2, [ASKS, repeated, SEES], [SAYS])]
    run, _, _, remarks = read(spans)
    assert run.content == [
        CONTENT[0],
        ApiAction(function="look", kwargs={"where": "floor"}, reasoning_content="Hm.", turn=1, tool_call_id="c"),
        *CONTENT[2:],
    ]
    assert not remarks


def test_a_side_call_does_not_repeat_the_history_after_it() -> None:
    title, named = says("user", text("Give a title.")), says("assistant", text("Balls"))
    run, _, _, remarks = read([OTEL[0], OTEL[1], chat("title", 2, [title], [named]), OTEL[2]])
    shown = [getattr(item, "content", None) or getattr(item, "function", None) for item in run.content]
    assert shown == [TASK, "look", "Give a title.", "Balls", "a ball", ANSWER]
    assert remarks == {"history_changed": 2}


def test_a_repeated_request_adds_only_its_answer() -> None:
    other = says("assistant", text("Under the bed."))
    run = read([*OTEL, chat("again", 4, [ASKS, CALLS, SEES], [other])]).trajectory
    assert [getattr(item, "content", None) for item in run.content] == [TASK, None, "a ball", ANSWER, "Under the bed."]


@pytest.mark.parametrize(
    "starts",
    [
        [
            "2026-01-31T12:00:00Z",
            "2026-01-31T12:00:00.10000001Z",
            "2026-01-31T12:00:00.5Z",
            "2026-01-31T13:00:00.6+00:30",
        ],
        ["", "2026-01-31 12:00:00.000001", "2026-01-31 12:00:01"],
        [None, 9.75, 10.5, 10.75, 100],
        ["999", "1700000000000000001", "1700000000000000002"],
        ["", "b", "c", "aa", "10:00"],  # neither numbers nor times
    ],
)
def test_spans_are_in_the_order_of_their_start(starts: list[Any]) -> None:
    given = [{"spanId": f"{n}", "startTime": start, "attributes": {}} for n, start in enumerate(starts)]
    assert [span.span_id for span in read_spans(given[::-1])] == [f"{n}" for n in range(len(starts))]


def test_spans_that_start_together_keep_their_order() -> None:
    starts = ["2026-01-31T12:00:00Z", "2026-01-31T12:00:00.000+00:00", "2026-01-31T12:00:00Z"]
    given = [{"spanId": f"{n}", "startTime": start, "attributes": {}} for n, start in enumerate(starts)]
    assert [span.span_id for span in read_spans(given)] == ["0", "1", "2"]


def test_agents_inside_agents_are_runs_of_their_own() -> None:
    name = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "scout"}
    inner = {"spanId": "inner", "parentSpanId": "agent", "startTimeUnixNano": "4", "attributes": name}
    talk = {
        **chat("three", 5, [says("user", text("Scout."))], [says("assistant", text("Done."))]),
        "parentSpanId": "inner",
    }
    run, _, others, _ = read([*OTEL, inner, talk])
    assert run.content == CONTENT
    (scout,) = others
    assert [getattr(item, "content", None) for item in scout.content] == ["Scout.", "Done."]
    assert [item.agent for item in scout.content] == ["scout", "scout"]
    assert scout.extra["otel"]["part_of"] == run.trajectory_id != scout.trajectory_id


def test_the_span_that_creates_an_agent_belongs_to_the_agent_that_runs() -> None:
    score = {"gen_ai.evaluation.score.label": "pass"}
    created = {"spanId": "made", "startTimeUnixNano": "0", "attributes": {"gen_ai.operation.name": "create_agent"}}
    agent = {**OTEL[0], "events": [{"name": "gen_ai.evaluation.result", "attributes": score}]}
    run, _, others, _ = read([created, agent, *OTEL[1:]])
    assert not others
    assert run.content == CONTENT
    assert run.outcome.status == "success"
    assert "made" in [span["spanId"] for span in run.extra["otel"]["spans"]]


def test_parts_of_all_kinds() -> None:
    parts = [
        text("See."),
        {"type": "uri", "modality": "image", "uri": "a.png", "mime_type": "image/png"},
        {"type": "blob", "modality": "audio", "content": "AAAA"},
    ]
    answer = says(
        "assistant",
        {"type": "reasoning", "content": "Hm."},
        {"type": "tool_call", "id": "x", "name": "f", "arguments": "[1"},
        {"type": "tool_call", "id": "x", "name": "g", "arguments": '{"a": "01"}'},
        {"type": "server_tool_call", "name": "search"},
    )
    lost = says("tool", {"type": "tool_call_response", "id": "z", "response": {"a": 1.0}})
    again = says("tool", {"type": "tool_call_response", "id": "x", "response": None})
    run, _, _, remarks = read(
        [
            chat("one", 1, [says("user", *parts)], [answer]),
            chat("two", 2, [says("user", *parts), answer, again, again, again, lost], []),
        ]
    )
    see, image, blob, first, second, *results = run.content
    assert (see, image) == (
        TextObservation(content="See.", source="user"),
        ImageObservation(content="a.png", source="user"),
    )
    assert isinstance(blob, TextObservation)
    assert isinstance(first, ApiAction)
    assert isinstance(second, ApiAction)
    assert (first.raw_arguments, first.reasoning_content, second.kwargs) == ("[1", "Hm.", {"a": "01"})
    assert [item.tool_call_id for item in run.content[3:]] == ["x", "x_2", "x", "x_2", None, None]
    assert [getattr(item, "content", None) for item in results] == ["", "", "", '{"a":1.0}']
    assert remarks == {"unknown_part": 2, "repeated_call_id": 1, "duplicate_result": 1, "orphan_result": 1}
    kept = run.extra["otel"]["content"]
    assert kept["2"]["part"] == parts[2]
    assert kept["3"]["parts"] == [{"type": "server_tool_call", "name": "search"}]


def test_tools_and_what_else_a_span_says_are_kept() -> None:
    tools = [{"type": "function", "name": "look", "description": "d", "parameters": {"type": "object"}}]
    more = {"gen_ai.tool.definitions": tools, "gen_ai.request.model": "m"}
    run = read([chat("one", 1, [ASKS], [CALLS], **more), chat("two", 2, [ASKS, CALLS, SEES], [SAYS])]).trajectory
    assert [tool.name for tool in run.tools] == ["look"]
    assert run.extra["otel"]["spans"][0]["attributes"] == {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ([], "empty"),
        ({"spans": []}, "empty"),
        ("x", "invalid"),
        ([5], "invalid"),
        ({"messages": []}, "invalid"),
        ([{"spanId": "a", "attributes": {"gen_ai.operation.name": "chat"}}], "empty"),
    ],
)
def test_what_shows_no_conversation_is_refused(document: Any, reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        read(document)
    assert caught.value.reason == reason
