"""What runs of several agents teach: each of them from what it saw, with the tokens that it sampled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from agentmill.schemas.formats import FORMATS
from agentmill.schemas.records.rows import Message, SftRow
from agentmill.schemas.records.trajectory import Action, ApiAction, Trajectory
from agentmill.schemas.views.annotations import NOTHING
from agentmill.schemas.views.sft import Sft
from agentmill.schemas.views.tree import SearchTrace, Spliced
from agentmill.schemas.views.tree_view import Relative
from agentmill.schemas.views.unpaired import Unpaired
from agentmill.schemas.views.view import Unused, rows_of
from agentmill.schemas.views.world_model import WorldModel
from agentmill.synthesis.policies.policy import ContextOverflow, Conversation
from agentmill.synthesis.rollouts import blocking_env as apart
from agentmill.synthesis.rollouts.blocking_env import Pool, gathered
from agentmill.synthesis.rollouts.scaffold import frame
from agentmill.synthesis.rollouts.strategy import Exploration
from agentmill.synthesis.strategies.multi_agent import MultiAgent
from agentmill.synthesis.token_check import Codec, check_tokens
from tests.answer_environment import AnswerEnvironment, question
from tests.ruin_environment import RuinEnvironment, ruin_task
from tests.synthesis.strategies.talking import (
    Speaker,
    exploration,
    last,
    lines,
    own,
    prompt_of,
    talk,
)

ROLES: list[dict[str, Any]] = [
    {"name": "user", "person": True, "sees": "dialogue", "prompt": "You want something.", "stop": "BYE"},
    {"name": "planner", "sees": "dialogue"},
    {"name": "actor", "acts": True, "told": False, "max_actions": 2},
    {"name": "critic", "veto": "NO"},
]


def acting(conversation: Conversation) -> str | ApiAction:
    """Looks, is told not to look again, asks the user, and answers."""
    said: list[str | ApiAction] = [call("look"), call("look"), "@user Which?", call("look"), call("answer", text="a")]
    return said[own(conversation)]


def call(function: str, **arguments: str) -> ApiAction:
    return ApiAction(function=function, kwargs=arguments)


def judging(conversation: Conversation) -> str:
    return "NO, you did." if own(conversation) == 1 else "OK"


async def company() -> tuple[Trajectory, dict[str, Speaker]]:
    """A run in which all kinds of messages occur, and who lived it."""
    speakers = {
        "user": lines("I want a word.", "The first."),
        "planner": lines("Look, then answer."),
        "actor": Speaker(acting, model="big"),
        "critic": Speaker(judging, model="small"),
    }
    return await talk(question("a", seen="b"), ROLES, **speakers, scaffold="tools"), speakers


def rows(run: Trajectory, **parameters: Any) -> list[SftRow]:
    return rows_of(Sft(**parameters), run, NOTHING)


def silent(messages: list[Message]) -> list[Message]:
    return [msgspec.structs.replace(message, train=False) for message in messages]


async def test_each_agent_learns_from_exactly_what_it_was_shown() -> None:
    run, speakers = await company()
    assert run.outcome.status == "success"
    assert [getattr(item, "agent", None) for item in run.content if isinstance(item, Action)] == [
        *("user", "planner", "actor", "critic", "actor", "critic", "actor", "user"),
        *("actor", "critic", "actor", "critic"),
    ]
    for name, speaker in speakers.items():
        made = rows(run, role=name, rows="step")
        assert len(made) == len(speaker.asked), name
        for row, asked in zip(made, speaker.asked, strict=True):
            assert silent(row.messages[:-1]) == prompt_of(asked), name
            assert (row.messages[-1].role, row.messages[-1].train) == ("assistant", True)
            assert (row.tools is not None) == bool(asked.tools)


async def test_the_deltas_of_each_agent_add_up_to_its_prompts() -> None:
    """Of each agent by itself: prompt and sampled tokens in its turns, and in the rows that are told from its side."""
    run, speakers = await company()
    for name, speaker in speakers.items():
        assert lived_prompts(run, name) == speaker.prompts, name
        made = rows(run, role=name, rows="step")
        told = [row.tokens[-1].input_ids[: row.tokens[-1].turns[-1].start] for row in made]
        assert told == speaker.prompts, name
        assert {segment.model for row in made for segment in row.tokens} == {speaker.model}


def lived_prompts(run: Trajectory, name: str) -> list[list[int]]:
    """The prompts of an agent's turns, put together from the deltas."""
    prompts, sequence = [], list[int]()
    for item in run.content:
        if isinstance(item, Action) and item.agent == name and item.tokens is not None:
            sequence = [*([] if item.tokens.segment_start else sequence), *item.tokens.prompt_ids]
            prompts.append(sequence)
            sequence = [*sequence, *item.tokens.sampled_ids]
    return prompts


async def test_each_agent_has_one_segment() -> None:
    run, speakers = await company()
    starts = [
        item.agent for item in run.content if isinstance(item, Action) and item.tokens and item.tokens.segment_start
    ]
    assert sorted(map(str, starts)) == sorted(speakers)
    verdict = check_tokens(run, Codec(encode=lambda _, before: [], decode=lambda _: ""))
    assert (verdict.evidence["segments"], verdict.evidence["breaks"]) == (4, 0)


async def test_what_was_prevented_is_an_error_and_what_was_done_is_not() -> None:
    run, _ = await company()
    kept = [row.messages[-1] for row in rows(run, role="actor", rows="step", loss="not_error")]
    assert [message.content or message.tool_calls[0].name for message in kept] == [
        "look",
        "@user Which?",
        "look",
        "answer",
    ]
    labels = Unpaired(role="actor", rows="step").make_rows(run, NOTHING)
    assert len(labels) == 5
    refused, told = ruin_task(2, 4), [{"name": "actor", "acts": True}, {"name": "critic", "veto": "NO"}]
    error = await talk(refused, told, RuinEnvironment, actor=lines("jump", "right", "right"), critic=lines("OK"))
    assert [row.messages[-1].content for row in rows(error, role="actor", rows="step", loss="not_error")] == [
        "right",
        "right",
    ], "an error that the world reports after the critic spoke is one"


async def test_a_run_of_several_agents_is_told_from_one_side() -> None:
    run, _ = await company()
    for parameters, reason in (({}, "several_agents"), ({"role": "speaker"}, "no_role"), ({"role": "eve"}, "no_role")):
        with pytest.raises(Unused) as caught:
            rows(run, **parameters)
        assert caught.value.reason == reason
    (row,) = rows(run, role="user", system_prompts=["{system_prompt} Be brief."])
    assert row.messages[0].content == "You want something. Be brief."
    assert row.tokens == [], "that is not what was sampled from"


async def test_worlds_that_block_are_lived_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "POOL", Pool(2))
    found = []
    for blocking in (False, True):
        speakers = {
            "ann": Speaker(lambda said: "@bob Which?" if not own(said) else f"answer {last(said)[-1]}", model="m"),
            "bob": Speaker(lambda _: "b", model="m"),
        }
        strategy = MultiAgent.model_validate({"roles": [{"name": "ann", "acts": True}, {"name": "bob"}]})

        def explore(given: Exploration, strategy: MultiAgent = strategy) -> AsyncIterator[Trajectory]:
            return strategy.explore(given, *strategy.planned(given))

        [run] = await gathered(explore, exploration(question("b"), make=AnswerEnvironment, **speakers), blocking, 5.0)
        found.append(run)
    assert found[0] == found[1]
    assert found[0].outcome.status == "success"


async def test_agents_that_are_one_assistant_think_what_they_said_and_do_what_was_done() -> None:
    run, _ = await company()
    (row,) = rows(run, linearize=["planner", "actor", "critic"])
    assert [
        (message.role, message.content, [call.name for call in message.tool_calls]) for message in row.messages[1:]
    ] == [
        ("user", "Find the word.\nThe room is dark.", []),
        ("user", "I want a word.", []),
        ("assistant", "<planner>\nLook, then answer.\n</planner>", ["look"]),
        ("tool", "You see b.", []),
        (
            "assistant",
            '<actor>\n{"name": "look", "arguments": {}}\n</actor>\n<critic>\nNO, you did.\n</critic>\n'
            "<actor>\n@user Which?\n</actor>",
            [],
        ),
        ("user", "The first.", []),
        ("assistant", None, ["look"]),
        ("tool", "You see b.", []),
        ("assistant", None, ["answer"]),
    ]
    assert [message.train for message in row.messages] == [message.role == "assistant" for message in row.messages]
    assert row.tokens == []
    assert row.tools is not None
    with pytest.raises(Unused, match="'eve'"):
        rows(run, linearize=["actor", "eve"])
    without = rows(run, linearize=["planner", "actor"])[0].messages
    assert "(This was not done. NO, you did.)" in [message.content for message in without]


async def test_what_one_agent_knows_is_told_to_no_other() -> None:
    """Whoever tells the run without one of its prompts has that of the world."""
    roles = [
        {"name": "ann", "acts": True, "knows": "goal.secrets.ann"},
        {"name": "bob", "knows": "goal.secrets.bob", "prompt": "Answer with what you know."},
        {"name": "carl", "prompt": "Comment."},
    ]
    task = question("xy", {"ann": "of-ann", "bob": "of-bob"})
    said = {"ann": lines("@bob Well?", "answer xy"), "bob": lines("@carl Hm."), "carl": lines("@bob Good.", "@ann x")}
    run = await talk(task, roles, **said, max_messages=9)
    assert run.system_prompt == frame("text", AnswerEnvironment()).system_prompt
    told = {name: str(rows(run, role=name)) for name in said}
    assert [["of-ann" in text, "of-bob" in text] for text in told.values()] == [
        [True, False],
        [False, True],
        [False] * 2,
    ]
    assert "of-" not in str(rows(run, linearize=["bob", "carl"]))
    for name in ("openai", "sharegpt"):
        assert "of-" not in str(FORMATS.load(name)().write(run).document), name


async def test_listed_agents_may_stay_silent() -> None:
    roles = [{"name": name, "acts": True} for name in ("lead", "search", "code")]
    run = await talk(question("xy"), roles, lead=lines("@search go", "answer xy"), search=lines("@lead b"))
    assert rows(run, linearize=["lead", "search", "code"]) != []
    with pytest.raises(Unused, match="'code' acts") as caught:
        rows(run, linearize=["code"])
    assert caught.value.reason == "no_role"


async def test_as_one_assistant_what_was_done_decides_and_what_waited_was_not_done() -> None:
    roles = [{"name": "actor", "acts": True}, {"name": "critic", "veto": "NO"}]
    watch = Speaker(lambda said: "NO" if "answer a" in last(said) else "OK")
    run = await talk(question("b"), roles, actor=lines("answer a", "answer b"), critic=watch)
    (row,) = rows(run, linearize=["actor", "critic"], loss="not_error")
    thought = "<actor>\nanswer a\n</actor>\n<critic>\nNO\n</critic>"
    assert [message.content for message in row.messages if message.train] == [f"{thought}\nanswer b"]
    alone = [message for message in rows(run, linearize=["actor"])[0].messages if message.role == "assistant"]
    learnt = [message for message in rows(run, linearize=["actor"], loss="not_error")[0].messages if message.train]
    assert [message.content for message in alone] == ["<actor>\nanswer a\n</actor>", "answer b"]
    assert [message.content for message in learnt] == ["answer b"]

    def overwhelmed(_: Conversation) -> str:
        raise ContextOverflow("too long")

    waits = await talk(question("b"), roles, actor=lines("answer b"), critic=Speaker(overwhelmed))
    (row,) = rows(waits, linearize=["actor", "critic"])
    assert row.messages[-1].content == "<actor>\nanswer b\n</actor>"
    for side in ({"linearize": ["actor", "critic"]}, {"role": "actor"}):
        with pytest.raises(Unused) as caught:
            rows(waits, loss="not_error", **side)
        assert caught.value.reason == "no_loss"


async def test_what_knows_one_agent_only_leaves_such_runs() -> None:
    run, _ = await company()
    nameless = msgspec.structs.replace(run, extra={})
    for each in (run, nameless):
        for view in (Sft(), WorldModel()):
            with pytest.raises(Unused) as caught:
                view.make_rows(each, NOTHING)
            assert caught.value.reason == "several_agents"
        for family in (SearchTrace(), Spliced()):
            made = family.make_rows([Relative(each, NOTHING)])[run.trajectory_id]
            assert isinstance(made, Unused)
            assert made.reason == "several_agents"
