"""OpenAI messages: who said what, which result answers which call, and what is odd about it."""

from __future__ import annotations

import json
import weakref
from collections import Counter
from typing import Any

import pytest

from agentmill.schemas.arrow.convert import from_arrow, to_arrow
from agentmill.schemas.chat import to_messages, to_template
from agentmill.schemas.format import Origin, Read
from agentmill.schemas.formats.openai import WEIGHT, OpenAi
from agentmill.schemas.messages.reader import MessageReader
from agentmill.schemas.records.trajectory import ApiAction, MessageAction, Outcome, TextObservation, Trajectory
from tests.builders import agent_message, called, instruction, seen, tool, tool_trajectory, trajectory

ORIGIN = Origin("demo", "train", row=4, licence="MIT")


def assistant(*calls: Any, content: Any = None, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {}), **fields}


def call(name: str, arguments: Any = "{}", call_id: str | None = "c1", **fields: Any) -> dict[str, Any]:
    ids = {} if call_id is None else {"id": call_id}
    return {**ids, "type": "function", "function": {"name": name, "arguments": arguments}, **fields}


def result(content: Any, call_id: str | None = "c1", **fields: Any) -> dict[str, Any]:
    ids = {} if call_id is None else {"tool_call_id": call_id}
    return {"role": "tool", "content": content, **ids, **fields}


def user(content: Any = "Do it.") -> dict[str, Any]:
    return {"role": "user", "content": content}


def read(*messages: Any, dialect: Any = None, **row: Any) -> Read:
    raw = json.dumps({**row, "messages": list(messages)}, ensure_ascii=False).encode()
    return OpenAi(dialect=dialect).read(raw, ORIGIN)


def items(*messages: Any, **fields: Any) -> list[Any]:
    return read(*messages, **fields).trajectory.content


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}


@pytest.mark.parametrize("call_id", ["c1", None])
def test_a_result_of_text_and_an_image_is_one_result(call_id: str | None) -> None:
    shown = [{"type": "text", "text": "A page."}, IMAGE]
    row = {
        "messages": [user(), assistant(call("f", call_id=call_id)), result(shown, call_id), assistant(content="Done.")]
    }
    found = read(*row["messages"])
    assert not +found.remarks
    called, first, second = found.trajectory.content[1:4]
    assert called.tool_call_id == first.tool_call_id == second.tool_call_id is not None
    assert OpenAi().write(found.trajectory).document == row


def test_a_second_result_is_remarked_on() -> None:
    assert read(user(), assistant(call("f")), result("1"), result("2")).remarks == {"duplicate_result": 1}


def test_a_run_with_parallel_calls_and_results_in_any_order() -> None:
    row = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            user(),
            assistant(call("f", '{"a":"01"}'), call("g", call_id="c2"), content="Now.", reasoning_content="hm"),
            result("2", "c2", name="g"),
            result("1"),
            assistant(content="Done."),
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}],
        "resolved": False,
        "instance_id": "x-1",
    }
    found = OpenAi().read(json.dumps(row).encode(), ORIGIN)
    run = found.trajectory
    assert not found.losses
    assert found.remarks == Counter({"undeclared_tool": 1})
    assert run.system_prompt == "Be brief."
    assert run.content == [
        TextObservation(content="Do it.", source="user"),
        ApiAction(
            function="f", kwargs={"a": "01"}, tool_call_id="c1", description="Now.", reasoning_content="hm", turn=1
        ),
        ApiAction(function="g", kwargs={}, tool_call_id="c2", turn=1),
        TextObservation(content="2", source="environment", tool_call_id="c2", name="g", turn=1),
        TextObservation(content="1", source="environment", tool_call_id="c1", turn=1),
        MessageAction(content="Done.", turn=2),
    ]
    assert run.tools[0].name == "f"
    assert run.tools[0].strict is True
    assert run.extra == {"openai": {"resolved": False, "instance_id": "x-1"}}
    assert run.outcome == Outcome()
    assert OpenAi().write(run).document == row


def test_calls_without_ids_are_answered_in_order() -> None:
    legacy = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    rows = [user(), legacy, {"role": "function", "name": "f", "content": "1"}, legacy, user("?")]
    found = read(*rows)
    assert [item.tool_call_id for item in found.trajectory.content] == [None, "call_1", "call_1", None, None]
    assert found.remarks == Counter({"unanswered_call": 1})
    assert OpenAi().write(found.trajectory).document["messages"] == rows
    many = [assistant(call("f", call_id=None), call("g", call_id=None)), result("1", None), result("2", None)]
    assert [item.tool_call_id for item in items(*many)] == ["call_0", "call_1", "call_0", "call_1"]
    assert [item.tool_call_id for item in items(*many[:2])] == [None, "call_1", "call_1"]


def test_results_without_an_id_answer_the_calls_that_no_result_names() -> None:
    rows = [
        assistant(call("f", call_id="a"), call("g", call_id="b"), call("h", call_id="c")),
        result("1", None),
        result("2", "b"),
        result("3", None),
        assistant(call("f", call_id="d")),
        result("4", ""),
        result("5", None),
    ]
    found = read(*rows)
    seen_ids = [item.tool_call_id for item in found.trajectory.content if isinstance(item, TextObservation)]
    assert seen_ids == ["a", "b", "c", "d", None]
    assert found.remarks == Counter({"orphan_result": 1})
    assert OpenAi().write(found.trajectory).document["messages"] == rows


def test_an_id_that_is_made_is_not_in_use() -> None:
    content = items(assistant(call("f", call_id=None)), result("1", None), assistant(call("g", call_id="call_0")))
    assert [item.tool_call_id for item in content] == ["call_0", "call_0", "call_0"]
    content = items(assistant(call("g", call_id="call_1")), assistant(call("f", call_id=None)), result("1", None))
    assert [item.tool_call_id for item in content] == ["call_1", "call_1_", "call_1_"]


@pytest.mark.parametrize(
    ("arguments", "kwargs", "raw"),
    [
        ('{"a": "007", "b": 1.0}', {"a": "007", "b": 1.0}, None),
        ('{"n": 123456789012345678901234567890}', {"n": 123456789012345678901234567890}, None),
        ('{"x": [{"y": [null, "", {}]}, true, "1"]}', {"x": [{"y": [None, "", {}]}, True, "1"]}, None),
        ('{"s": "a</parameter>\\r\\n```\\u001b[0m"}', {"s": "a</parameter>\r\n```\x1b[0m"}, None),
        ({"a": [1, "1"]}, {"a": [1, "1"]}, None),
        ('{"a": 007}', {}, '{"a": 007}'),
        ('{"a": NaN}', {}, '{"a": NaN}'),
        ('{"a": "\\ud800"}', {}, '{"a": "\\ud800"}'),
        ('{"a": ', {}, '{"a": '),
        ("", {}, ""),
        ("[1, 2]", {}, "[1, 2]"),
        ('"text"', {}, '"text"'),
        ("3", {}, "3"),
        ([1, 2], {}, "[1,2]"),
    ],
)
def test_arguments_are_kept_as_they_are(arguments: Any, kwargs: Any, raw: str | None) -> None:
    found = read(assistant(call("f", arguments)))
    action = found.trajectory.content[0]
    assert isinstance(action, ApiAction)
    assert (action.kwargs, action.raw_arguments) == (kwargs, raw)
    assert type(action.kwargs.get("b", 1.0)) is float
    assert found.remarks["invalid_arguments"] == (raw is not None)
    assert from_arrow(to_arrow([found.trajectory], Trajectory), Trajectory) == [found.trajectory]
    (message,) = OpenAi().write(found.trajectory).document["messages"]
    assert message["tool_calls"][0]["function"]["arguments"] == arguments


@pytest.mark.parametrize(
    ("messages", "remarks"),
    [
        ([assistant(call("f"))], {"unanswered_call": 1}),
        ([user(), result("lost", "zz")], {"orphan_result": 1}),
        ([result("early"), assistant(call("f"))], {"orphan_result": 1, "early_result": 1, "unanswered_call": 1}),
        ([assistant(call("f")), result("1"), result("again")], {"duplicate_result": 1}),
        ([assistant(call("f")), result("1"), assistant(call("f")), result("2")], {"repeated_call_id": 1}),
        ([assistant(call("f"), call("f")), result("1"), result("2")], {"repeated_call_id": 1}),
        ([assistant(call("f")), user(), assistant(content="x"), result("late")], {}),
        ([user(), user("More."), assistant(content="a"), assistant(content="b")], {}),
        ([], {}),
    ],
)
def test_odd_runs_are_read_and_remarked_on(messages: Any, remarks: dict[str, int]) -> None:
    found = read(*messages)
    assert found.remarks == Counter(remarks)
    assert OpenAi().write(found.trajectory).document["messages"] == messages


@pytest.mark.parametrize(
    "message",
    [
        user(None),
        {"role": "user"},
        user(""),
        user([]),
        user([{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {"type": "x"}}]),
        user([{"type": "image_url", "image_url": {"url": "i.png", "detail": "low"}}, {"type": "text", "text": "?"}]),
        assistant(content=None),
        {"role": "assistant"},
        assistant(content="", tool_calls=[]),
        assistant(call("f"), content=""),
        {"role": "assistant", "tool_calls": [call("f")]},
        assistant(content="x", weight=0),
        assistant(content="x", weight=0.5),
        assistant(content="x", name="planner", refusal="no"),
        assistant(content="x", reasoning="a", thinking="b"),
        assistant(call("f", index=0)),
        {"role": "system", "content": None},
        {"role": "developer", "content": "x"},
        result(None),
        result([{"type": "text", "text": "shown"}]),
    ],
)
def test_a_message_comes_back_as_it_was(message: Any) -> None:
    found = read(message)
    assert not found.losses
    written = OpenAi().write(found.trajectory)
    assert written.document["messages"] == [message]
    assert not written.losses


def test_weights_say_what_is_trained() -> None:
    content = items(*(assistant(content="x", weight=weight) for weight in (0, 1, 0.5, None)), assistant(content="x"))
    assert [item.train for item in content] == [False, True, True, None, None]


def test_images_and_texts_of_one_message_are_items_of_their_own() -> None:
    parts = [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": "i.png"}}]
    content = items(user(parts), assistant(call("f")), result(parts))
    assert [(type(item).__name__, getattr(item, "content", None)) for item in content[:2]] == [
        ("TextObservation", "See"),
        ("ImageObservation", "i.png"),
    ]
    assert [item.tool_call_id for item in content[2:]] == ["c1", "c1", "c1"]


def test_instructions_in_the_middle_are_no_user_s() -> None:
    content = items(user(), {"role": "system", "content": "Stop."})
    assert content[1] == TextObservation(content="Stop.", source="environment", role="system")


def test_huge_observations_and_odd_characters_survive() -> None:
    text = "é\r\n\x00\x1b[0m\u2028" * 500_000
    found = read(assistant(call("f")), result(text)).trajectory
    assert found.content[1].content == text  # type: ignore[union-attr]
    assert from_arrow(to_arrow([found], Trajectory), Trajectory) == [found]


def test_schemas_that_a_table_filled_with_nulls_are_mended_and_counted() -> None:
    properties = {"a": {"type": "string", "enum": None, "default": None}, "b": None}
    function = {"name": "f", "description": "d", "parameters": {"properties": properties, "type": "object"}}
    found = read(tools=[{"type": "function", "function": function}, {"type": "function", "function": {"name": "g"}}])
    assert found.losses == Counter({"tools.null": 3})
    assert found.trajectory.tools[0].parameters == {"properties": {"a": {"type": "string"}}, "type": "object"}
    honest = {"name": "f", "parameters": {"properties": {"a": {"default": None}}, "type": "dict"}}
    found = read(tools=json.dumps([{"type": "function", "function": honest}]))
    assert not found.losses
    assert found.trajectory.tools[0].parameters == honest["parameters"]


def test_arguments_that_a_table_filled_with_nulls_are_dropped_and_counted() -> None:
    filled = {"city": "Bern", "days": None, "query": None}
    schema = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
    declared = [
        {"type": "function", "function": {"name": name, "parameters": {**schema, **more}}}
        for name, more in (("f", {}), ("open", {"additionalProperties": True}))
    ]
    names = ("f", "open", "unknown")
    found = read(assistant(*(call(name, filled, name) for name in names)), tools=declared)
    calls = found.trajectory.content
    assert [getattr(each, "kwargs", None) for each in calls] == [{"city": "Bern", "days": None}, filled, filled]
    assert found.losses == Counter({"arguments.null": 1})
    as_text = read(assistant(call("f", json.dumps(filled))), tools=declared)
    assert not as_text.losses
    assert [getattr(each, "kwargs", None) for each in as_text.trajectory.content] == [filled]


@pytest.mark.parametrize("tools", ["", "no tools", [{"name": 3}], ["f"], {"f": {}}])
def test_tools_that_are_none_are_kept_whole(tools: Any) -> None:
    found = read(user(), tools=tools).trajectory
    assert found.tools == []
    assert OpenAi().write(found).document["tools"] == tools


def test_messages_as_json_text_are_read() -> None:
    for text in (json.dumps([user("é")]), json.dumps([user("é")], ensure_ascii=False)):
        raw = json.dumps({"messages": text}).encode()
        found = OpenAi().read(raw, ORIGIN)
        assert found.trajectory.content == [TextObservation(content="é", source="user")]
        assert not found.losses
        assert OpenAi().write(found.trajectory).document == {"messages": text}
    raw = json.dumps({"messages": json.dumps([user()], indent=1)}).encode()
    assert OpenAi().read(raw, ORIGIN).losses == Counter({"messages.spelling": 1})


def test_fields_that_are_named_like_our_notes_are_kept() -> None:
    row = {"content": "mine", "spelling": 3, "x": None}
    found = read(user(), **row).trajectory
    assert found.extra["openai"]["row"] == row
    assert OpenAi().write(found).document == {**row, "messages": [user()]}


def test_calls_in_text_become_calls_and_what_follows_their_results() -> None:
    text = "Look.\n<function=ls>\n<parameter=path>/</parameter>\n</function>"
    messages = [user(), assistant(content=text), user("OBSERVATION:\na b"), assistant(content="Done."), user("Thanks.")]
    found = read(*messages, dialect="function_xml").trajectory
    assert [(type(item).__name__, item.tool_call_id) for item in found.content[1:3]] == [
        ("ApiAction", "call_1"),
        ("TextObservation", "call_1"),
    ]
    assert [item.source for item in found.content if isinstance(item, TextObservation)] == [
        "user",
        "environment",
        "user",
    ]
    assert OpenAi(dialect="function_xml").write(found).document == {"messages": messages}
    native = OpenAi().write(found).document["messages"]
    assert [message["role"] for message in native] == ["user", "assistant", "tool", "assistant", "user"]
    assert native[1]["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": '{"path":"/"}'}}
    ]
    assert native[2] == {"role": "tool", "tool_call_id": "call_1", "content": "OBSERVATION:\na b"}


def test_what_follows_the_action_is_a_message_beside_it_and_comes_back() -> None:
    text = "Thought: hm\nAction: search[a] \nObservation: foo\nAction: finish[z]\n"
    messages = [user(), assistant(content=text), user("Observation: bar"), assistant(content="Final Answer: b")]
    found = read(*messages, dialect="react").trajectory
    _, called, rest, seen, _ = found.content
    assert (called.function, called.kwargs, called.tool_call_id) == ("search", {"input": "a"}, "call_1")
    assert (rest.content, rest.turn) == ("Observation: foo\nAction: finish[z]", called.turn)
    assert (seen.content, seen.tool_call_id) == ("Observation: bar", "call_1")
    assert OpenAi(dialect="react").write(found).document == {"messages": messages}


def test_our_own_runs_are_written_and_what_is_lost_is_counted() -> None:
    document, losses = OpenAi().write(tool_trajectory())
    assert losses == Counter({"outcome": 1})
    assert [message["role"] for message in document["messages"]] == [
        *("system", "user", "assistant", "tool", "tool", "assistant")
    ]
    _, losses = OpenAi().write(trajectory(extra={"note": 1}))
    lost = {"content.source": 3, "content.error": 1, "content.reward": 1, "content.tokens": 2, "extra.note": 1}
    run = dict.fromkeys(("task_id", "environment_id", "outcome", "generation", "split"), 1)
    assert losses == Counter({**lost, **run})


def test_turns_of_several_items_are_one_message() -> None:
    run = tool_trajectory(
        content=[instruction(), agent_message("I look."), called("look"), seen("x", 1, tool_call_id="call00100")]
    )
    document, losses = OpenAi().write(run)
    assert document["messages"][2]["content"] == "I look."
    assert losses == Counter({"outcome": 1, "content.class_": 1})
    template = to_template(to_messages(run.system_prompt, run.content))
    assert [each["content"] for each in document["messages"]] == [each["content"] for each in template]


def test_tools_of_a_run_are_declared() -> None:
    document = OpenAi().write(tool_trajectory(tools=[tool("look"), tool("unused")])).document
    assert [each["function"]["name"] for each in document["tools"]] == ["look", "unused"]


def test_a_reader_needs_no_collection_of_garbage() -> None:
    reader = MessageReader("compact", WEIGHT)
    held = weakref.ref(reader.read([user(), assistant(call("look")), result("A lamp.")]))
    assert held() is reader.conversation
    del reader
    assert held() is None
