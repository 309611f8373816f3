"""ToolBench trees: every line is kept, siblings know their parent, nobody trains on a prompt of the search."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentmill.schemas.format import FormatError, Origin, Read
from agentmill.schemas.formats.toolbench import ToolBench
from agentmill.schemas.records.trajectory import ApiAction, MessageAction, TextObservation
from tests.schemas.formats.log_records import SYSTEM, TASK, TOOLBENCH, call, node


def read(document: Any) -> Read:
    return ToolBench().read(msgspec.json.encode(document), Origin("demo"))


def tree(*children: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"win": False, "tree": {"tree": node("Action Input", "", *children)}, **fields}


def test_the_lines_of_a_tree_are_siblings_with_parents() -> None:
    run, losses, others, remarks = read(TOOLBENCH)
    (winner,) = others
    assert not losses
    assert not remarks
    assert run.system_prompt == winner.system_prompt == SYSTEM
    assert [tool.name for tool in run.tools] == ["look", "Finish"]
    assert (run.parent_id, run.branch_turn) == (None, None)
    assert (winner.parent_id, winner.branch_turn) == (run.trajectory_id, 2)
    assert winner.content[:3] == [msgspec.structs.replace(item, context_operation="copied") for item in run.content[:3]]
    assert run.content[:3] == [
        TextObservation(content=f"\n{TASK}\nBegin!\n", source="user"),
        ApiAction(function="look", kwargs={"where": "floor"}, description="Look.", turn=1, tool_call_id="call_1"),
        TextObservation(content="a ball", source="environment", turn=1, tool_call_id="call_1"),
    ]
    assert [item.context_operation for item in winner.content] == ["copied"] * 3 + [None] * 2
    assert (run.outcome.status, run.outcome.reason) == ("failure", "gave_up")
    assert (winner.outcome.status, winner.outcome.reason) == ("success", "answered")
    assert run.extra["toolbench"]["win"] is winner.extra["toolbench"]["win"] is True
    kept = run.extra["toolbench"]["answer_generation"]["train_messages"]
    assert kept == {"0": {"2": {"role": "user", "content": "This is not the first time.", "valid": False}}}


def test_pruned_is_no_error_and_errors_are_codes() -> None:
    document = tree(
        call("f", "{}", "fine", 0, pruned=True),
        call("f", '{"a": ', "bad input", 2, pruned=True),
        call("g", "[1]", "no such function", 1),
    )
    runs = [(found := read(document)).trajectory, *found.others]
    assert [run.outcome.status for run in runs] == ["unknown"] * 3
    assert [run.outcome.truncated for run in runs] == [True, True, False]
    assert [run.content[-1].error for run in runs] == [False, True, True]
    assert [run.content[0].raw_arguments for run in runs if isinstance(run.content[0], ApiAction)] == [
        None,
        '{"a": ',
        "[1]",
    ]
    assert [run.parent_id for run in runs] == [None, runs[0].trajectory_id, runs[0].trajectory_id]
    assert [run.branch_turn for run in runs] == [None, 1, 1]
    assert len({run.trajectory_id for run in runs}) == 3


def test_a_branch_of_a_branch_has_the_branch_as_its_parent() -> None:
    second = call("b", "{}", "2", 0, call("c", "{}", "3", 0), call("d", "{}", "4", 0))
    runs = [(found := read(tree(call("a", "{}", "1", 0), second))).trajectory, *found.others]
    assert [run.parent_id for run in runs] == [None, runs[0].trajectory_id, runs[1].trajectory_id]
    assert [run.branch_turn for run in runs] == [None, 1, 2]


def test_thoughts_without_an_action_are_messages_and_a_shared_thought_is_said_twice() -> None:
    shared = node("Thought", "T", call("a", "{}", "1", 0, Elo=7.0), call("b", "{}", "2", 0))
    found = read(tree(node("Thought", "first", shared)))
    run, (other,) = found.trajectory, found.others
    assert run.content[0] == MessageAction(content="first", turn=1)
    assert [getattr(item, "description", None) for item in run.content] == [None, "T", None]
    assert [getattr(item, "description", None) for item in other.content] == [None, "T", None]
    assert [item.context_operation for item in other.content] == ["copied", None, None]
    assert run.extra["toolbench"]["content"]["1"]["input"]["Elo"] == 7.0
    assert read(tree(node("Thought", "end"))).trajectory.content == [MessageAction(content="end", turn=1)]


def test_a_search_without_contexts_knows_its_query() -> None:
    answer = {"query": TASK, "valid_data": False, "function": [], "total_tokens": 5}
    run = read(tree(call("a", "{}", "1", 0), answer_generation=answer)).trajectory
    assert run.content[0] == TextObservation(content=TASK, source="user")
    assert run.system_prompt is None
    assert run.extra["toolbench"]["answer_generation"] == {"query": TASK, "valid_data": False, "total_tokens": 5}


def test_candidates_are_lines() -> None:
    leaf = call("a", "{}", "1", 0)
    chain = [{key: value for key, value in each.items() if key != "children"} for each in (leaf, leaf["children"][0])]
    run = read(tree(leaf, compare_candidates=[chain, [{"other": 1}]])).trajectory
    assert run.extra["toolbench"]["compare_candidates"] == [0, [{"other": 1}]]


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"win": True}, "invalid"),
        ({"tree": {"tree": []}}, "invalid"),
        (tree(node("Guess", "x")), "unknown_node"),
        (tree({"node_type": "Thought"}), "invalid"),
        (tree(node("Thought", "x", node("Action Input", "{}"))), "unknown_node"),
    ],
)
def test_what_is_no_tree_is_refused(document: Any, reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        read(document)
    assert caught.value.reason == reason


def test_a_thought_that_goes_on_otherwise_is_no_copy() -> None:
    shared = node("Thought", "T", call("a", "{}", "1", 0), node("Thought", "dead end"))
    found = read(tree(shared))
    (other,) = found.others
    assert [getattr(item, "description", None) for item in found.trajectory.content] == ["T", None]
    assert other.content == [MessageAction(content="T", turn=1), MessageAction(content="dead end", turn=2)]
    assert other.branch_turn == 1
