"""ShareGPT: names of speakers, calls and results, loss flags, labels, pairs, and the order that LLaMA-Factory wants."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentmill.schemas.format import FormatError, Origin, Read
from agentmill.schemas.formats.llamafactory import LlamaFactory
from agentmill.schemas.formats.openai import OpenAi
from agentmill.schemas.formats.sharegpt.format import ShareGpt
from agentmill.schemas.formats.toolbench import ToolBench
from agentmill.schemas.ids import part_id
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import ApiAction, MessageAction, TextObservation, Trajectory
from tests.builders import agent_message, instruction, seen, tool, tool_trajectory, trajectory

ORIGIN = Origin("demo")
TOOL = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}


def turn(speaker: str, value: Any, **fields: Any) -> dict[str, Any]:
    return {"from": speaker, "value": value, **fields}


def read(*turns: Any, format_: ShareGpt | None = None, **row: Any) -> Read:
    return (format_ or ShareGpt()).read(json.dumps({"conversations": list(turns), **row}).encode(), ORIGIN)


def comes_back(run: Trajectory, format_: ShareGpt | None = None) -> Any:
    written = (format_ or ShareGpt(order="as_said")).write(run)
    assert not written.losses
    return written.document


def test_calls_and_results_are_linked_by_their_order() -> None:
    calls = [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]
    turns = [
        turn("human", "Do it."),
        turn("function_call", json.dumps(calls[0])),
        turn("observation", "1"),
        turn("function_call", f"<think>\nBoth.\n</think>\n\n{json.dumps(calls)}"),
        turn("observation", "2"),
        turn("gpt", "<think>\nhm\n</think>\n\nDone."),
    ]
    found = read(*turns, tools=json.dumps([TOOL]), system="Be brief.")
    run = found.trajectory
    assert found.remarks == Counter({"unanswered_call": 1, "undeclared_tool": 1})
    assert (run.system_prompt, [each.name for each in run.tools]) == ("Be brief.", ["f"])
    assert run.content == [
        TextObservation(content="Do it.", source="user"),
        ApiAction(function="f", kwargs={"a": 1}, tool_call_id="call_1", turn=1),
        TextObservation(content="1", source="environment", tool_call_id="call_1", turn=1),
        ApiAction(function="f", kwargs={"a": 1}, reasoning_content="Both.", turn=2),
        ApiAction(function="g", kwargs={}, tool_call_id="call_4", turn=2),
        TextObservation(content="2", source="environment", tool_call_id="call_4", turn=2),
        MessageAction(content="Done.", reasoning_content="hm", turn=3),
    ]
    assert comes_back(run) == {"conversations": turns, "tools": json.dumps([TOOL]), "system": "Be brief."}


@pytest.mark.parametrize(
    "speakers",
    [
        ("human", "gpt", "observation"),
        ("user", "assistant", "tool"),
        ("human", "chatgpt", "function"),
        ("user", "bard", "tool"),
    ],
)
def test_speakers_have_many_names(speakers: tuple[str, str, str]) -> None:
    user, model, environment = speakers
    turns = [turn("system", ""), turn(user, "a"), turn(model, "b"), turn(environment, "c"), turn("human", "d")]
    run = read(*turns).trajectory
    assert run.system_prompt == ""
    assert [getattr(item, "source", "model") for item in run.content] == ["user", "model", "environment", "user"]
    assert comes_back(run) == {"conversations": turns}


def test_turns_with_roles_and_contents_and_other_names_of_the_field() -> None:
    row = {"id": "x", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    run = ShareGpt().read(json.dumps(row).encode(), ORIGIN).trajectory
    assert [item.content for item in run.content] == ["a", "b"]  # type: ignore[union-attr]
    assert comes_back(run) == row
    as_text = {"conversations": json.dumps(row["messages"])}
    run = ShareGpt().read(json.dumps(as_text).encode(), ORIGIN).trajectory
    assert comes_back(run) == as_text


def test_loss_flags_say_what_is_trained() -> None:
    turns = [turn("human", "a", loss=None), turn("gpt", "b", loss=False), turn("gpt", "c", loss=True), turn("gpt", "d")]
    run = read(*turns).trajectory
    assert [item.train for item in run.content] == [None, False, True, None]
    assert comes_back(run)["conversations"] == [turn("human", "a"), *turns[1:]]


@pytest.mark.parametrize(
    "value", ["not json", '{"name": "f", "arg', '{"arguments": {}}', "[]", "3", '[{"name": "f"}, 1]']
)
def test_a_call_that_is_none_stays_what_the_model_said(value: str) -> None:
    found = read(turn("function_call", value))
    assert found.trajectory.content == [MessageAction(content=value, turn=1)]
    assert found.remarks == Counter({"invalid_call": 1})
    assert comes_back(found.trajectory) == {"conversations": [turn("function_call", value)]}


def test_arguments_that_are_no_object_are_kept_raw() -> None:
    values = ['{"name": "f", "arguments": [1, 2]}', '{"name": "f", "arguments": "x"}', '{"name": "f"}']
    run = read(*(turn("function_call", value) for value in values)).trajectory
    assert [(item.kwargs, item.raw_arguments) for item in run.content if isinstance(item, ApiAction)] == [
        ({}, "[1,2]"),
        ({}, "x"),
        ({}, None),
    ]
    assert [each["value"] for each in comes_back(run)["conversations"]] == values


def test_a_tag_is_the_outcome() -> None:
    for tag, status in ((True, "success"), (False, "failure"), ("yes", "unknown")):
        run = read(turn("human", "a"), turn("gpt", "b"), label=tag, format_=ShareGpt(kto_tag="label")).trajectory
        assert run.outcome.status == status
        assert comes_back(run, ShareGpt(kto_tag="label"))["label"] == tag
        assert read(turn("gpt", "b"), label=tag).trajectory.extra["sharegpt"]["label"] == tag
    assert ShareGpt(labelled=True).write(trajectory()).document["kto_tag"] is True
    assert "kto_tag" not in ShareGpt().write(trajectory()).document
    with pytest.raises(FormatError, match="unknown_outcome"):
        ShareGpt(labelled=True).write(read(turn("gpt", "b")).trajectory)


@pytest.mark.parametrize("listed", [False, True])
def test_a_pair_is_two_runs(listed: bool) -> None:
    answers = {"chosen": turn("gpt", "good"), "rejected": turn("gpt", "bad")}
    row = {
        "conversations": [turn("system", "s"), turn("human", "a"), turn("gpt", "b"), turn("human", "c")],
        **{side: [answer] if listed else answer for side, answer in answers.items()},
    }
    found = ShareGpt().read(json.dumps(row).encode(), ORIGIN)
    chosen, (rejected,) = found.trajectory, found.others
    assert [chosen.extra["sharegpt"]["side"], rejected.extra["sharegpt"]["side"]] == ["chosen", "rejected"]
    assert (chosen.system_prompt, rejected.system_prompt) == ("s", "s")
    assert [item.content for item in chosen.content] == ["a", "b", "c", "good"]  # type: ignore[union-attr]
    assert [item.content for item in rejected.content] == ["a", "b", "c", "bad"]  # type: ignore[union-attr]
    assert [item.context_operation for item in rejected.content] == ["copied", "copied", "copied", None]
    assert (rejected.parent_id, rejected.branch_turn) == (chosen.trajectory_id, 2)
    assert rejected.trajectory_id == part_id(chosen.trajectory_id, "rejected")
    written = ShareGpt().write_pair(chosen, rejected)
    assert written.document == row
    assert not written.losses
    alone = ShareGpt().write(rejected).document["conversations"]
    assert [each["value"] for each in alone] == ["s", "a", "b", "c", "bad"]


def test_two_runs_of_ours_are_a_pair_from_where_the_agent_parts() -> None:
    good = trajectory(
        content=[instruction(), agent_message("go"), seen("ok", 1), agent_message("win", 2), seen("Won.", 2)]
    )
    bad = trajectory(content=[instruction(), agent_message("go"), seen("ok", 1), agent_message("lose", 2)])
    row = ShareGpt().write_pair(good, bad).document
    assert [each["value"] for each in row["conversations"]] == [
        "Act by commands.",
        "Put the ball into the box.",
        "go",
        "ok",
    ]
    assert [each["value"] for each in row["chosen"]] == ["win", "Won."]
    assert row["rejected"] == turn("gpt", "lose")
    with pytest.raises(FormatError, match="tied_pair"):
        ShareGpt().write_pair(good, good)
    other = trajectory(content=[instruction("Another task."), agent_message("go")], system_prompt=None)
    with pytest.raises(FormatError, match="no_common_prompt"):
        ShareGpt().write_pair(good, other)


def test_what_is_said_beside_a_call_is_a_turn_of_its_own_or_said_in_a_dialect() -> None:
    run = tool_trajectory(
        content=[
            instruction("Where?"),
            ApiAction(function="look", kwargs={"where": "box"}, description="I look.", tool_call_id="x", turn=1),
            seen("empty", 1, tool_call_id="x"),
            agent_message("Nowhere.", 2),
        ]
    )
    plain = ShareGpt(order="as_said").write(run)
    assert [each["from"] for each in plain.document["conversations"]] == [
        *("system", "human", "gpt", "function_call", "observation", "gpt")
    ]
    lost = {"content.description": 1, "content.turn": 1, "content.tool_call_id": 2}
    assert plain.losses == Counter({"outcome": 1, **lost})
    hermes = ShareGpt(dialect="hermes").write(run)
    assert [each["from"] for each in hermes.document["conversations"]] == ["system", "human", "gpt", "human", "gpt"]
    assert hermes.losses == Counter({"outcome": 1, "content.tool_call_id": 2})
    loadable = ShareGpt().write(run)
    assert loadable.document["conversations"][2] == {
        "from": "function_call",
        "value": '<think>\nI look.\n</think>\n\n{"name": "look", "arguments": {"where": "box"}}',
    }
    assert {name: n for name, n in loadable.losses.items() if name.startswith("order.")} == {
        "order.joined_turns": 1,
        "order.text_in_reasoning": 1,
    }
    assert loadable.losses["content.description"] == 1


def parallel_run() -> Trajectory:
    """Two calls of one turn, whose results came in the other order."""
    calls = [
        ApiAction(function="weather", kwargs={"city": city}, tool_call_id=call_id, turn=1)
        for call_id, city in (("x", "Oslo"), ("y", "Rome"))
    ]
    results = [seen(text, 1, tool_call_id=call_id) for call_id, text in (("y", "30 C"), ("x", "-5 C"))]
    return tool_trajectory(content=[instruction("Where is it warm?"), *calls, *results, agent_message("Rome.", 2)])


@pytest.mark.parametrize("form", [ShareGpt(order="as_said"), LlamaFactory()])
def test_results_are_written_in_the_order_of_their_calls(form: ShareGpt | LlamaFactory) -> None:
    written = form.write(parallel_run())
    back = form.read(json.dumps(written.document).encode(), Origin("demo")).trajectory
    calls = {each.tool_call_id: each.kwargs["city"] for each in back.content if isinstance(each, ApiAction)}
    results = [each for each in back.content if isinstance(each, TextObservation) and each.tool_call_id is not None]
    assert {calls[each.tool_call_id]: each.content for each in results} == {"Oslo": "-5 C", "Rome": "30 C"}
    assert written.losses["content.class_"] == 1
    loaded = ShareGpt().write(parallel_run()).document["conversations"]
    assert next(each["value"] for each in loaded if each["from"] == "observation") == "-5 C\n30 C"


def test_what_the_model_thought_comes_before_what_it_wrote() -> None:
    call = ApiAction(
        function="look", kwargs={}, description="I look.", reasoning_content="Where?", tool_call_id="x", turn=1
    )
    run = tool_trajectory(content=[instruction("Go."), call, seen("empty", 1, tool_call_id="x")])
    _, _, text, called, _ = ShareGpt(order="as_said").write(run).document["conversations"]
    assert (text["from"], text["value"]) == ("gpt", "<think>\nWhere?\n</think>\n\nI look.")
    assert (called["from"], "think" in called["value"]) == ("function_call", False)
    (joined,) = [each for each in ShareGpt().write(run).document["conversations"] if each["from"] == "function_call"]
    assert joined["value"].startswith("<think>\nWhere?\nI look.\n</think>")


def ordered(*turns: JsonObject) -> tuple[list[JsonObject], dict[str, int]]:
    """What is written of these turns, and what had to be merged."""
    written = ShareGpt().write(read(*turns).trajectory)
    found: list[JsonObject] = written.document["conversations"]
    assert is_loaded(found)
    return found, {name: n for name, n in written.losses.items() if name.startswith("order.")}


def is_loaded(turns: list[JsonObject]) -> bool:
    """Whether LLaMA-Factory's loader takes a row with these turns; it skips others."""
    rest = turns[1:] if turns and turns[0]["from"] == "system" else turns
    sides = (("human", "observation"), ("gpt", "function_call"))
    for place, each in enumerate(rest):
        if each["from"] not in sides[place % 2]:
            return False
        if each["from"] == "function_call":
            json.loads(re.sub("<think>.*?</think>", "", each["value"], flags=re.DOTALL))
    return len(rest) > 0 and len(rest) % 2 == 0


F, G = '{"name": "f", "arguments": {}}', '{"name": "g", "arguments": {}}'
ORDERS: list[tuple[str, list[tuple[str, str]], list[tuple[str, str]], dict[str, int]]] = [
    (
        "turns_to_the_model",
        [
            *[("human", "x"), ("human", "y"), ("function_call", f"[{F}, {G}]"), ("observation", "1")],
            *[("observation", "2"), ("gpt", "z"), ("human", "end")],
        ],
        [("human", "x\ny"), ("function_call", f"[{F}, {G}]"), ("observation", "1\n2"), ("gpt", "z")],
        {"joined_turns": 2, "turns_after_the_last_answer": 1},
    ),
    (
        "turns_of_the_model",
        [
            *[("human", "x"), ("gpt", "a"), ("gpt", "<think>\nhm\n</think>\n\nb"), ("function_call", F)],
            *[("function_call", G), ("observation", "1"), ("human", "y"), ("gpt", "c"), ("gpt", "d")],
        ],
        [
            *[("human", "x"), ("function_call", f"<think>\na\nhm\nb\n</think>\n\n[{F}, {G}]")],
            *[("observation", "1\ny"), ("gpt", "c\nd")],
        ],
        {"joined_turns": 5, "text_in_reasoning": 2},
    ),
    (
        "a_model_that_speaks_first",
        [("system", "s"), ("gpt", "Hello."), ("human", "x"), ("function_call", F), ("gpt", "Done.")],
        [
            *[("system", "s"), ("human", ""), ("gpt", "Hello."), ("human", "x")],
            ("gpt", f"<tool_call>\n{F}\n</tool_call>\nDone."),
        ],
        {"empty_turn": 1, "joined_turns": 1, "call_in_text": 1},
    ),
    (
        "a_system_turn_in_between",
        [("human", "x"), ("gpt", "a"), ("system", "Now shout."), ("gpt", "B")],
        [("human", "x"), ("gpt", "a"), ("human", "Now shout."), ("gpt", "B")],
        {"role": 1},
    ),
    (
        "two_names_of_one_side",
        [("human", "x"), ("gpt", "a"), ("user", "y"), ("gpt", "b")],
        [("human", "x"), ("gpt", "a"), ("human", "y"), ("gpt", "b")],
        {"role": 1},
    ),
    ("in_order", [("system", "s"), ("human", "x"), ("gpt", "a")], [("system", "s"), ("human", "x"), ("gpt", "a")], {}),
]


@pytest.mark.parametrize(
    ("given", "written", "merged"), [case[1:] for case in ORDERS], ids=[case[0] for case in ORDERS]
)
def test_rows_are_written_in_the_order_that_llamafactory_loads(
    given: list[tuple[str, str]], written: list[tuple[str, str]], merged: dict[str, int]
) -> None:
    turns, losses = ordered(*(turn(speaker, text) for speaker, text in given))
    assert [(each["from"], each["value"]) for each in turns] == written
    assert losses == {f"order.{name}": n for name, n in merged.items()}
    as_said = ShareGpt(order="as_said")
    back = as_said.write(read(*(turn(*each) for each in given)).trajectory).document["conversations"]
    assert [(each["from"], each["value"]) for each in back] == given


def test_fields_of_turns_that_are_joined_are_counted() -> None:
    noted = {"score": 5, "id": "m1"}
    given = turn("human", "x"), turn("human", "y", id="h"), turn("gpt", "a", **noted), turn("gpt", "b", id="m2")
    (prompt, answer), losses = ordered(*given)
    assert (prompt["value"], answer["value"], answer["id"]) == ("x\ny", "a\nb", "m2")
    assert (losses["order.joined_turns"], losses["order.joined_fields"]) == (2, 3)


def test_arguments_may_be_called_parameters() -> None:
    row = {"conversations": [turn("human", "x"), turn("function_call", '{"name": "f", "parameters": {"q": "x"}}')]}
    found = read(*row["conversations"])
    (_, called) = found.trajectory.content
    assert isinstance(called, ApiAction)
    assert (called.kwargs, found.remarks["invalid_call"]) == ({"q": "x"}, 0)
    assert comes_back(found.trajectory) == row


@pytest.mark.parametrize(
    ("flags", "loss", "lost"),
    [
        ((False, None), False, 1),
        ((None, False), False, 1),
        ((True, False, True), False, 2),
        ((None, True), True, 0),
        ((True, None), None, 0),
        ((False, False), False, 0),
    ],
)
def test_joined_answers_have_loss_only_if_all_of_them_have(
    flags: tuple[bool | None, ...], loss: bool | None, lost: int
) -> None:
    answers = [turn("gpt", "a") if flag is None else turn("gpt", "a", loss=flag) for flag in flags]
    (_, answer), losses = ordered(turn("human", "x"), *answers)
    assert answer.get("loss") is loss
    assert losses.get("order.joined_loss", 0) == lost


def test_a_joined_prompt_has_loss_only_if_all_of_it_has() -> None:
    (prompt, _), losses = ordered(turn("human", "x", loss=True), turn("human", "y"), turn("gpt", "a"))
    assert (prompt["loss"], losses["order.joined_loss"]) == (False, 1)


def test_the_text_beside_a_call_is_masked_as_the_call_is() -> None:
    call = ApiAction(function="f", kwargs={}, description="I look.", turn=1, train=False)
    run = tool_trajectory(content=[instruction("Where?"), call, seen("empty", 1), agent_message("Nowhere.", 2)])
    turns = ShareGpt(order="as_said").write(run).document["conversations"]
    assert [each.get("loss") for each in turns if each["from"] in ("gpt", "function_call")] == [False, False, None]
    loadable = ShareGpt().write(run)
    assert loadable.document["conversations"][2]["loss"] is False
    assert "order.joined_loss" not in loadable.losses


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ([turn("human", "x")], "no_answer"),
        ([], "no_answer"),
        ([turn("human", "x"), turn("function_call", "no JSON"), turn("function_call", F)], "turn_order"),
    ],
)
def test_what_llamafactory_cannot_load_in_any_order_is_refused(turns: list[JsonObject], reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        ordered(*turns)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("form", "pattern", "n"),
    [(OpenAi(), "adp/swe-smith/raw.jsonl", 2), (ToolBench(), "toolbench/*.json", 70)],
    ids=["swe_smith", "toolbench"],
)
def test_runs_of_other_formats_are_loaded_by_llamafactory(form: Any, pattern: str, n: int) -> None:
    files = sorted(Path(os.environ.get("AGENTMILL_SAMPLES", "/nowhere")).glob(pattern))
    if not files:
        pytest.skip("AGENTMILL_SAMPLES names no folder with these sample records")
    rows = [
        row
        for file in files
        for row in (file.read_bytes().splitlines() if file.suffix == ".jsonl" else [file.read_bytes()])
    ]
    runs = [form.read(raw, ORIGIN) for raw in rows]
    written = [ShareGpt().write(run).document for each in runs for run in (each.trajectory, *each.others)]
    assert len(written) >= n
    assert all(is_loaded(each["conversations"]) for each in written)


def test_commands_in_text_and_their_results() -> None:
    turns = [
        turn("human", "Find shoes."),
        turn("gpt", "Thought:\nI search.\n\nAction:\nsearch[shoes]"),
        turn("human", "Page 1"),
        turn("gpt", "ACTION: look"),
        turn("human", "A shoe."),
        turn("gpt", "Thought: done\nFinal Answer: found"),
        turn("human", "A new question."),
    ]
    options = {"parameters": {"search": "keywords"}}
    react = ShareGpt(dialect="react", dialect_options=options, order="as_said")
    run = read(*turns, format_=react).trajectory
    assert isinstance(run.content[1], ApiAction)
    assert run.content[1].kwargs == {"keywords": "shoes"}
    sources = [item.source for item in run.content if isinstance(item, TextObservation)]
    assert sources == ["user", "environment", "environment", "user"]
    assert [item.tool_call_id for item in run.content] == [None, "call_1", "call_1", None, None, None, None]
    assert comes_back(run, react) == {"conversations": turns}


def os_turn(task: str) -> dict[str, Any]:
    return turn("human", f"Now, I will start a new problem in a new OS. My problem is:\n\n{task}")


def test_a_user_turn_after_a_terminal_call_is_the_users() -> None:
    turns = [
        os_turn("Count the files."),
        turn("gpt", "Think: I look.\n\nAct: bash\n\n```bash\nls | wc -l\n```"),
        turn("human", "The output of the OS:\n3"),
        turn("gpt", "Think: It is 3.\n\nAct: answer(3)"),
        os_turn("Delete them."),
        turn("gpt", "Think: I do.\n\nAct: bash\n\n```bash\nrm *\n```"),
        turn("human", "The output of the OS:\n"),
        turn("gpt", "Think: Done.\n\nAct: finish"),
    ]
    react = ShareGpt(dialect="react")
    run = read(*turns, format_=react).trajectory
    seen = [item for item in run.content if isinstance(item, TextObservation)]
    assert [item.source for item in seen] == ["user", "environment", "user", "environment"]
    assert [item.tool_call_id for item in seen] == [None, "call_1", None, "call_5"]
    assert run.content[3].tool_call_id is None
    assert comes_back(run, react) == {"conversations": turns}
    answered = read(*turns, format_=ShareGpt(dialect="react", dialect_options={"terminal": []})).trajectory
    assert answered.content[3].tool_call_id == answered.content[4].tool_call_id == "call_3"


TERMINAL: dict[str, tuple[str, str]] = {
    "react": ("Action: look[box]", "Action: finish[42]"),
    "function_xml": ("<function=look>\n</function>", "<function=finish>\n</function>"),
    "execute": ("<execute_bash>\nls\n</execute_bash>", "<execute_bash> exit </execute_bash>"),
    "brackets": ("look[box]", "finish[42]"),
    "webarena": ("```click [7]```", "```stop [42]```"),
    "hermes": ('<tool_call>\n{"name": "look"}\n</tool_call>', '<tool_call>\n{"name": "finish"}\n</tool_call>'),
    "fenced": ("```\nls\n```", "```\nsubmit\n```"),
}


@pytest.mark.parametrize("dialect", TERMINAL)
def test_every_dialect_names_its_terminal_calls(dialect: Any) -> None:
    options = {"terminal": ["submit"]} if dialect == "fenced" else {}
    format_ = ShareGpt(dialect=dialect, dialect_options=options)
    for call, source in zip(TERMINAL[dialect], ("environment", "user"), strict=True):
        run = read(turn("human", "a"), turn("gpt", call), turn("human", "b"), format_=format_).trajectory
        assert run.content[-1].source == source  # type: ignore[union-attr]
        assert (run.content[1].tool_call_id is None) == (source == "user")


def test_the_result_of_a_turn_with_a_terminal_call_is_that_of_the_other_call() -> None:
    first, last = TERMINAL["function_xml"]
    turns = [turn("human", "a"), turn("gpt", f"{first}\n{last}"), turn("human", "b")]
    run = read(*turns, format_=ShareGpt(dialect="function_xml")).trajectory
    assert [item.tool_call_id for item in run.content] == [None, "call_1", None, "call_1"]
    run = read(*turns[:2], *[turn("observation", text) for text in "bc"], format_=ShareGpt(dialect="function_xml"))
    ids = [item.tool_call_id for item in run.trajectory.content]
    assert ids == [None, "call_1", "call_2", "call_1", "call_2"]


def test_tools_of_ours_are_bare_functions_as_text() -> None:
    document = ShareGpt().write(tool_trajectory(tools=[tool("look")])).document
    assert json.loads(document["tools"])[0]["name"] == "look"


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"{}", "invalid"),
        (b'{"conversations": [{"from": "human", "value": "cut"}', "invalid_json"),
        (b'{"conversations": [{"from": "human", "value": "\xe9"}]}', "invalid_json"),
        (b'{"conversations": {"from": "human"}}', "invalid"),
        (b'{"conversations": ["x"]}', "invalid"),
        (b'{"conversations": [{"from": "human", "value": 3}]}', "invalid"),
        (b'{"conversations": [{"from": "function_call", "value": null}]}', "invalid"),
        (b'{"conversations": [{"from": "human", "value": "x", "content": "y"}]}', "invalid"),
        (b'{"conversations": [{"value": "x"}]}', "unknown_role"),
        (b'{"conversations": [{"from": "alien", "value": "x"}]}', "unknown_role"),
        (b'{"conversations": [{"from": "human", "value": [{"type": "video"}]}]}', "unknown_part"),
    ],
)
def test_what_cannot_be_read_has_a_reason(raw: bytes, reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        ShareGpt().read(raw, ORIGIN)
    assert caught.value.reason == reason
    assert "\n" not in caught.value.detail


def test_a_pair_with_a_system_field_comes_back() -> None:
    ask, good, bad = turn("human", "Capital of France?"), turn("gpt", "Paris."), turn("gpt", "Lyon.")
    found = read(turn("human", "Hi"), turn("gpt", "Hello"), ask, chosen=good, rejected=bad, system="You are terse.")
    written = ShareGpt().write_pair(found.trajectory, found.others[0])
    assert (written.document["chosen"], written.document["rejected"]) == (good, bad)
    assert written.document["system"] == "You are terse."


@pytest.mark.parametrize(("no", "yes"), [(False, True), (0, 1), (0.0, 0.5)])
def test_loss_marks_may_be_numbers(no: Any, yes: Any) -> None:
    turns = [turn("human", "a"), turn("gpt", "b", loss=no), turn("human", "c"), turn("gpt", "d", loss=yes)]
    found = read(*turns)
    assert [item.train for item in found.trajectory.content if isinstance(item, MessageAction)] == [False, True]
    assert comes_back(found.trajectory)["conversations"] == turns
    assert read(turn("human", "a"), turn("gpt", "b", loss="0")).remarks == Counter({"unread_loss_mark": 1})


@pytest.mark.parametrize("broken", ['[{"name": "f"}, {"type": "web_search"}]', "[{'name': 'f'}]", {"f": 1}])
def test_declarations_that_are_no_functions_are_counted(broken: Any) -> None:
    found = read(turn("human", "a"), turn("gpt", "b"), tools=broken)
    assert found.losses == {"tools.unread": 1}
    assert [each.name for each in found.trajectory.tools] == (["f"] if "web_search" in broken else [])
    assert ShareGpt(order="as_said").write(found.trajectory).document["tools"] == broken
    for none in ("", "null", "[]"):
        assert not read(turn("human", "a"), turn("gpt", "b"), tools=none).losses
