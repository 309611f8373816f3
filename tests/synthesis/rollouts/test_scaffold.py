"""Scaffolds: what of a message is the command, and that the rest of it stays where it was."""

from __future__ import annotations

from typing import Any

import pytest

from agentmill.schemas.chat import to_messages
from agentmill.schemas.records.trajectory import ApiAction, MessageAction
from agentmill.schemas.views.annotations import NOTHING
from agentmill.schemas.views.sft import Sft
from agentmill.synthesis.policies.policy import Turn
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
    assert read("react", turn).actions == [MessageAction(content=command, description=description)]
    for name in ("text", "tools"):
        assert read(name, turn) == turn
    (action,) = read("react", turn).actions
    assert to_messages(None, [action])[0].content == expected, "it is shown as it was written"
    call = Turn(actions=[ApiAction(function="look", kwargs={})])
    assert read("react", call) == call


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
