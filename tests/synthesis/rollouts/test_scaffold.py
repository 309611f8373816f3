"""Scaffolds: what of a message is the command, and that the rest of it stays where it was."""

from __future__ import annotations

import time
from typing import Any

import pytest

from agentmill.schemas.chat import to_messages
from agentmill.schemas.dialects.tool_text import SCAFFOLD_FORMATS
from agentmill.schemas.records.trajectory import AnyAction, ApiAction, MessageAction, Tool, TurnTokens
from agentmill.schemas.views.annotations import NOTHING
from agentmill.schemas.views.sft import Sft
from agentmill.synthesis.policies.completion import request_body
from agentmill.synthesis.policies.policy import Conversation, Turn
from agentmill.synthesis.rollouts.scaffold import frame, read
from agentmill.synthesis.strategies.sample import Sample
from agentmill.synthesis.strategies.tree_search import TreeSearch
from agentmill.synthesis.verifiers.check_outcome import CheckOutcome
from tests.answer_environment import AnswerEnvironment, question
from tests.synthesis.strategies.talking import Speaker, exploration, heard, lines, prompt_of, talk

TASK = question("b", seen="b")


@pytest.mark.parametrize(
    ("expected", "description", "command"),
    [
        ("I must look.\nThen I know.\nlook", "I must look.\nThen I know.", "look"),
        ("I must look.\nlook \n", "I must look.", "look \n"),
        ("look", None, "look"),
        ("\nlook", None, "\nlook"),
        ("", None, ""),
    ],
)
def test_the_last_line_is_the_command(expected: str, description: str | None, command: str) -> None:
    turn = Turn(actions=[MessageAction(content=expected)])
    assert read("react", turn, []).actions == [MessageAction(content=command, description=description)]
    for name in ("text", "tools"):
        assert read(name, turn, []) == turn
    (action,) = read("react", turn, []).actions
    assert to_messages(None, [action])[0].content == expected, "it is shown as it was written"
    call = Turn(actions=[ApiAction(function="look", kwargs={})])
    assert read("react", call, []) == call


WRITTEN = {
    "tools_hermes": (
        'I must look.\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "answer", "arguments": {"text":"b"}}\n</tool_call>',
        "<tool_response>\nYou see b.\n</tool_response>",
    ),
    "tools_function_xml": (
        "I must look.\n<function=look>\n</function>",
        "<function=answer>\n<parameter=text>b</parameter>\n</function>",
        "EXECUTION RESULT of [look]:\nYou see b.",
    ),
    "tools_react": (
        "Thought: I must look.\nAction: look\nAction Input: {}",
        'Action: answer\nAction Input: {"text":"b"}',
        "Observation: You see b.",
    ),
}
"""Two turns of an agent by scaffold, and the answer to the first as it is shown."""


@pytest.mark.parametrize("scaffold", WRITTEN)
async def test_calls_written_as_text_are_those_of_tools(scaffold: Any) -> None:
    look, answer, seen = WRITTEN[scaffold]
    tool_format = SCAFFOLD_FORMATS[scaffold]
    agent = lines(look, answer)
    explored = exploration(TASK, actor=agent)
    [run] = [
        each async for each in Sample(scaffold=scaffold).explore(explored, *Sample(scaffold=scaffold).planned(explored))
    ]
    calls = [item for item in run.content if isinstance(item, ApiAction)]
    assert [(call.function, call.kwargs, call.description) for call in calls] == [
        ("look", {}, "I must look."),
        ("answer", {"text": "b"}, None),
    ]
    assert run.outcome.status == "success"
    assert run.tools == AnswerEnvironment().tools
    assert (await CheckOutcome().verify(TASK, run, AnswerEnvironment())).passed
    first, second = [request_body(asked, "m", {"tool_choice": "auto", "temperature": 0.5}) for asked in agent.asked]
    assert "tools" not in first
    assert "tool_choice" not in first
    assert '"name":"answer"' in first["messages"][0]["content"]
    assert second["messages"][-2:] == [
        {"role": "assistant", "content": look},
        {"role": "user", "content": seen},
    ], "it reads its turn as it wrote it"
    assert [call.tokens.segment_start for call in calls if call.tokens] == [True, False]
    (row,) = Sft(tool_format=tool_format).make_rows(run, NOTHING)
    assert [message.content for message in row.messages[:-1]] == [each["content"] for each in second["messages"]]
    assert [segment.input_ids for segment in row.tokens] == [[*agent.prompts[1], *agent.ids(row.messages[-1])]]
    (native,) = Sft().make_rows(run, NOTHING)
    assert native.messages[2].tool_calls[0].name == "look"
    assert native.tokens == [], "the tokens are those of another text"


@pytest.mark.parametrize(
    ("scaffold", "text"),
    [
        ("tools_hermes", '<tool_call>\n{"name": "NAME", "arguments": {}}\n</tool_call>'),
        ("tools_function_xml", "<function=NAME>\n</function>"),
        ("tools_react", "Action: NAME\nAction Input: {}"),
    ],
)
def test_calls_in_a_thought_are_not_done(scaffold: str, text: str) -> None:
    quoted, done = text.replace("NAME", "rm"), text.replace("NAME", "look")
    thought = f"<think>\nI might do\n{quoted}\nbut no.\n</think>"
    turn = Turn(actions=[MessageAction(content=f"{thought}\n{done}")])
    (action,) = read(scaffold, turn, []).actions
    assert action == ApiAction(function="look", kwargs={}, description=thought)
    alone = Turn(actions=[MessageAction(content=thought)])
    assert read(scaffold, alone, []) == alone
    if scaffold != "tools_react":  # which reads on to the next label
        more = Turn(actions=[MessageAction(content=f"{thought}\n{done}\nSo.")])
        (action,) = read(scaffold, more, []).actions
        assert action == ApiAction(function="look", kwargs={}, description=f"{thought}\nSo.")


def test_an_action_that_react_goes_on_to_write_is_neither_done_nor_shown() -> None:
    first, second = (f"Thought: {name}\nAction: {name}\nAction Input: {{}}" for name in ("look", "rm"))
    for rest, thought in ((second, "look"), ("Thought: so", "look\nThought: so")):
        turn = Turn(actions=[MessageAction(content=f"{first}\n{rest}")])
        assert read("tools_react", turn, []).actions == [ApiAction(function="look", kwargs={}, description=thought)]


def test_react_takes_a_block_of_code_at_the_end_whole() -> None:
    code = "```python\nx = 1\n\nsubmit(x)\n```"
    turn = Turn(actions=[MessageAction(content=f"First:\n```\nold\n```\nI hand it in.\n{code}")])
    (action,) = read("react", turn, []).actions
    assert action == MessageAction(content=code, description="First:\n```\nold\n```\nI hand it in.")
    alone = Turn(actions=[MessageAction(content=code)])
    assert read("react", alone, []) == alone


def test_fences_without_end_take_no_time() -> None:
    turn = Turn(actions=[MessageAction(content="```python\nx = 1\n" * 20_000 + "```x\n```")])
    began = time.process_time()
    read("react", turn, [])
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize(
    ("schema", "written", "value"),
    [
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "5", 5),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", None),
        ({"type": ["integer", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "null", "null"),
        ({"enum": [1, 2, 3]}, "2", 2),
        ({"enum": ["1", "2"]}, "2", "2"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "2", "2"),
        ({"type": "integer"}, "two", "two"),
        ({}, "2", "2"),
    ],
)
def test_arguments_written_as_text_are_of_the_type_that_the_tool_declares(
    schema: dict[str, Any], written: str, value: Any
) -> None:
    tool = Tool(name="f", description="", parameters={"type": "object", "properties": {"a": schema}})
    text = f"<function=f>\n<parameter=a>\n{written}\n</parameter>\n</function>"
    turn = Turn(actions=[MessageAction(content=f"<tool_call>\n{text}\n</tool_call>")])
    assert read("tools_function_xml", turn, [tool]).actions == [ApiAction(function="f", kwargs={"a": value})]


def test_only_react_stops_at_an_observation_whatever_else_it_stops_at() -> None:
    def stop(tool_format: Any, tools: Any, **sampling: Any) -> Any:
        asked = Conversation(
            episode_id="e", system_prompt="s", content=(), tools=tools, tool_format=tool_format, seed=0
        )
        return request_body(asked, "m", sampling).get("stop")

    tools = AnswerEnvironment().tools
    assert stop("react", tools) == ["\nObservation:"]
    assert stop("react", tools, stop=["###"]) == ["\nObservation:", "###"]
    assert stop("react", tools, stop="###") == ["\nObservation:", "###"]
    assert stop("react", tools, stop=["\nObservation:"]) == ["\nObservation:"]
    assert stop("hermes", tools, stop="###") == "###"
    assert stop("react", []) is stop("hermes", tools) is stop("native", tools) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<function=add>\n<parameter=amount>2</parameter>\n</function>", {"amount": 2}),
        ("<function=add>\n<parameter=amount>two</parameter>\n</function>", {"amount": "two"}),
        ("<function=add>\n<parameter=name>2</parameter>\n</function>", {"name": "2"}),
        ("<function=add>\n<parameter=either>2</parameter>\n</function>", {"either": "2"}),
        ("<function=add>\n<parameter=other>2</parameter>\n</function>", {"other": "2"}),
        ("<function=sub>\n<parameter=amount>2</parameter>\n</function>", {"amount": "2"}),
    ],
)
def test_arguments_become_what_the_tool_declares(text: str, expected: dict[str, Any]) -> None:
    properties = {"amount": {"type": "integer"}, "name": {"type": "string"}, "either": {"type": ["string", "integer"]}}
    tools = [Tool(name="add", parameters={"type": "object", "properties": properties})]
    (call,) = read("tools_function_xml", Turn(actions=[MessageAction(content=text)]), tools).actions
    assert isinstance(call, ApiAction)
    assert call.kwargs == expected


def test_prose_after_a_call_joins_its_thought_and_what_is_no_call_stays() -> None:
    call = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    tokens = TurnTokens(prompt_ids=[1], sampled_ids=[2], logprobs=[-0.5], segment_start=True)

    def actions(text: str) -> list[AnyAction]:
        action = MessageAction(content=text, tokens=tokens, reasoning_content="Hm.")
        return read("tools_hermes", Turn(actions=[action]), []).actions

    (alone,) = actions(f"Before.\n{call}\nAfter.")
    assert (alone.description, alone.tokens, alone.reasoning_content) == ("Before.\nAfter.", tokens, "Hm.")
    first, second = actions(f"{call}\n{call}\nAfter.")
    assert [(each.description, each.tokens) for each in (first, second)] == [(None, tokens), ("After.", None)]
    for text in ("no call", call.removesuffix("</tool_call>"), ""):
        assert actions(text) == [MessageAction(content=text, tokens=tokens, reasoning_content="Hm.")]


@pytest.mark.parametrize(("scaffold", "status"), [("react", "success"), ("text", "failure")])
async def test_thoughts_are_kept_and_the_command_is_done(scaffold: Any, status: str) -> None:
    agent = lines("I do not know.\nlook", "It is b.\nanswer b")
    strategy = Sample(scaffold=scaffold, max_turns=2)
    explored = exploration(TASK, actor=agent)
    [run] = [each async for each in strategy.explore(explored, *strategy.planned(explored))]
    assert run.outcome.status == status
    assert frame(scaffold, AnswerEnvironment()).tools == []
    assert (await CheckOutcome().verify(TASK, run, AnswerEnvironment())).passed is (status == "success")
    if scaffold == "react":
        done = [(item.description, item.content) for item in run.content if isinstance(item, MessageAction)]
        assert done == [("I do not know.", "look"), ("It is b.", "answer b")]
    assert prompt_of(agent.asked[1])[2].content == "I do not know.\nlook", "it reads its message as it wrote it"
    (row,) = Sft().make_rows(run, NOTHING)
    assert row.messages[2].content == "I do not know.\nlook"
    starts = [item.tokens.segment_start for item in run.content if isinstance(item, MessageAction) and item.tokens]
    assert starts == [True, False]


async def test_other_thoughts_and_the_same_command_are_one_node_of_a_tree() -> None:
    agent = Speaker(lambda said: f"Thought {said.seed}.\nanswer b")
    explored = exploration(TASK, actor=agent)
    strategy = TreeSearch(scaffold="react", iterations=2, branching=3, max_turns=3)
    found = [each async for each in strategy.explore(explored, *strategy.planned(explored))]
    assert len(agent.asked) == 3
    assert len({text for each in agent.asked for text in heard(each)}) == 2
    assert [type(each).__name__ for each in found] == ["Trajectory", "Node", "Node"]


async def test_words_of_others_are_read_whole() -> None:
    roles = [{"name": "planner"}, {"name": "actor", "acts": True}]
    run = await talk(
        TASK, roles, planner=lines("First this.\nThen that."), actor=lines("Well.\nanswer b"), scaffold="react"
    )
    said = [(item.description, item.content) for item in run.content if isinstance(item, MessageAction)]
    assert said == [(None, "First this.\nThen that."), ("Well.", "answer b")]
    assert run.outcome.status == "success"
