"""Tool calls as text."""

from __future__ import annotations

import msgspec
import pytest

from agentmill.schemas.dialects import DIALECTS
from agentmill.schemas.dialects.tool_text import TOOL_TEXTS, TextFormat
from agentmill.schemas.records.trajectory import ApiAction, CodeAction
from agentmill.schemas.templates.rendering import segments
from agentmill.schemas.views.annotations import NOTHING
from agentmill.schemas.views.sft import Sft
from agentmill.schemas.views.view import Unused
from tests.builders import agent_message, called, instruction, seen, tool, tool_trajectory, trajectory
from tests.schemas.chat_templates import real

FUNCTION = (
    '{"name":"look","description":"look something",'
    '"parameters":{"type":"object","properties":{"where":{"type":"string"}}}}'
)

ASSISTANT = {
    "react": 'Thought: Both.\nAction: look\nAction Input: {"where":"box"}\n'
    'Action: look\nAction Input: {"where":"floor"}',
    "json": 'Both.\n{"name": "look", "arguments": {"where":"box"}}\n{"name": "look", "arguments": {"where":"floor"}}',
    "xml": 'Both.\n<tool_call>\n{"name": "look", "arguments": {"where":"box"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "look", "arguments": {"where":"floor"}}\n</tool_call>',
    "function_xml": "Both.\n<function=look>\n<parameter=where>box</parameter>\n</function>\n"
    "<function=look>\n<parameter=where>floor</parameter>\n</function>",
}
USER = {
    "react": "Observation: empty\nObservation: a ball",
    "json": '{"name": "look", "result": "empty"}\n{"name": "look", "result": "a ball"}',
    "xml": "<tool_response>\nempty\n</tool_response>\n<tool_response>\na ball\n</tool_response>",
    "function_xml": "EXECUTION RESULT of [look]:\nempty\nEXECUTION RESULT of [look]:\na ball",
}
ANSWER = {"react": "Final Answer: On the floor."}

for _texts in (ASSISTANT, USER):
    _texts["hermes"] = _texts["xml"]


@pytest.mark.parametrize("tool_format", list(TOOL_TEXTS))
def test_tools_calls_and_results_are_text(tool_format: TextFormat) -> None:
    content = [*tool_trajectory().content]
    content[1] = msgspec.structs.replace(content[1], description="Both.")
    (row,) = Sft(tool_format=tool_format).make_rows(tool_trajectory(content=content), NOTHING)
    assert row.tools is None
    assert [(message.role, message.content) for message in row.messages] == [
        ("system", f"Use tools.\n\n{TOOL_TEXTS[tool_format].tools}\n{FUNCTION}"),
        ("user", "Where is the ball?"),
        ("assistant", ASSISTANT[tool_format]),
        ("user", USER[tool_format]),
        ("assistant", ANSWER.get(tool_format, "On the floor.")),
    ]
    assert [message.train for message in row.messages] == [False, False, True, False, True]
    assert all(not message.tool_calls and message.tool_call_id is None for message in row.messages)


def test_results_of_different_turns_stay_apart() -> None:
    content = [
        instruction(),
        called("move", 1, "a", to="box"),
        seen("moved", 1, tool_call_id="a"),
        called("move", 2, "b", to="floor"),
        seen("moved back", 2, tool_call_id="b"),
        agent_message("Done.", 3),
    ]
    (row,) = Sft(tool_format="xml").make_rows(trajectory(content=content, tools=[tool()]), NOTHING)
    assert [message.role for message in row.messages] == ["system", *["user", "assistant"] * 3]


def test_a_text_world_has_no_tools_to_write() -> None:
    (native,) = Sft().make_rows(trajectory(), NOTHING)
    (react,) = Sft(tool_format="react").make_rows(trajectory(), NOTHING)
    assert react.messages == native.messages


def test_arguments_are_shown_as_they_were_written() -> None:
    for raw, shown in (('{"n": 1.0}', '{"n": 1.0}'), ("{n: 1", '"{n: 1"'), ("[" * 5000, '"' + "[" * 5000 + '"')):
        call = ApiAction(function="f", kwargs={}, raw_arguments=raw, turn=1)
        (row,) = Sft(tool_format="json").make_rows(trajectory(content=[instruction(), call]), NOTHING)
        assert row.messages[-1].content == f'{{"name": "f", "arguments": {shown}}}'


def test_arguments_that_are_no_texts_are_json_in_function_xml() -> None:
    call = ApiAction(function="f", kwargs={"n": 1, "of": ["a"], "text": "two\nlines"}, turn=1)
    (row,) = Sft(tool_format="function_xml").make_rows(trajectory(content=[instruction(), call]), NOTHING)
    assert row.messages[-1].content == (
        '<function=f>\n<parameter=n>1</parameter>\n<parameter=of>["a"]</parameter>\n'
        "<parameter=text>\ntwo\nlines\n</parameter>\n</function>"
    )
    raw = msgspec.structs.replace(call, kwargs={}, raw_arguments="{n: 1")
    (row,) = Sft(tool_format="function_xml").make_rows(trajectory(content=[instruction(), raw]), NOTHING)
    assert row.messages[-1].content == "<function=f>\n<parameter=input>{n: 1</parameter>\n</function>"


@pytest.mark.parametrize("name", ["react", "hermes", "function_xml"])
def test_a_dialect_reads_the_calls_of_the_same_name(name: TextFormat) -> None:
    call = ApiAction(function="look", kwargs={"where": "a box"}, description="Where?", turn=1)
    (row,) = Sft(tool_format=name).make_rows(trajectory(content=[instruction(), call]), NOTHING)
    read = DIALECTS.load(name)().read(row.messages[-1].content)
    assert [(each.function, each.kwargs, each.description) for each in read.actions] == [
        ("look", {"where": "a box"}, "Where?")
    ]


@pytest.mark.parametrize("template", ["cohere", "gemma", "llama3"])
@pytest.mark.parametrize("tool_format", list(TOOL_TEXTS))
def test_templates_that_know_no_tools_can_be_trained_on(template: str, tool_format: TextFormat) -> None:
    (row,) = Sft(tool_format=tool_format).make_rows(tool_trajectory(), NOTHING)
    messages = row.messages if template != "gemma" else row.messages[1:]  # it knows no system prompt either
    found = [segment.text for segment in segments(messages, None, real(template)) if segment.train]
    assert len(found) == 2
    assert all(message.content in text for message, text in zip(row.messages[2::2], found, strict=True))


def test_react_refuses_turns_that_would_be_read_as_others() -> None:
    thought = "List, then delete.\nAction: rm\nAction Input: {}"
    quoted = msgspec.structs.replace(called("ls", 1, "a", p="."), description=thought)
    code = CodeAction(language="bash", content="ls", turn=1)
    for action in (quoted, code):
        run = trajectory(content=[instruction(), action], tools=[tool()])
        with pytest.raises(Unused) as caught:
            Sft(tool_format="react").make_rows(run, NOTHING)
        assert caught.value.reason == "unsayable"
        assert Sft(tool_format="native").make_rows(run, NOTHING)
