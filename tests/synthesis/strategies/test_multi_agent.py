"""Several agents in one episode: whose turn it is, who hears what, and what comes of facts that only one knows."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import pytest

from agentmill.schemas.records.task import Lineage
from agentmill.schemas.records.trajectory import ApiAction
from agentmill.synthesis.policies.policy import Conversation
from agentmill.synthesis.strategies.multi_agent import MultiAgent
from agentmill.synthesis.verifiers.check_outcome import CheckOutcome
from tests.answer_environment import AnswerEnvironment, question
from tests.ruin_environment import RuinEnvironment, ruin_task
from tests.synthesis.strategies.talking import (
    PAIR,
    WATCHED,
    WITHIN_99_9,
    Speaker,
    asker,
    calls,
    chance,
    critic,
    exploration,
    heard,
    last,
    lines,
    own,
    secret,
    split,
    spoken,
    talk,
    teller,
)


@pytest.mark.parametrize("n", [1, 2, 5])
async def test_a_secret_that_two_share_takes_so_many_messages(n: int) -> None:
    ann, bob = Speaker(asker), Speaker(teller)
    run = await talk(split("vxqzjwk", n), PAIR, ann=ann, bob=bob)
    assert run.outcome.status == "success"
    assert [role for _, role, _ in spoken(run)] == ["speaker"] * 2 * n + ["actor"]
    assert calls(run) == {"ann": n + 1, "bob": n} == {"ann": len(ann.asked), "bob": len(bob.asked)}
    assert spoken(run)[-1] == ("ann", "actor", "answer vxqzjwk")
    whole = "vxqzjwk"[-n:]
    assert not any(whole in text for each in ann.asked for text in (*heard(each), each.system_prompt) if n > 1)
    assert (await CheckOutcome().verify(split("vxqzjwk", n), run, AnswerEnvironment())).passed is True


async def test_the_kind_of_a_twin_is_kept() -> None:
    lineage = Lineage(operator="contrast", notes={"contrast": "silent"})
    task = msgspec.structs.replace(split("v", 1), lineage=lineage)
    run = await talk(task, PAIR, ann=Speaker(asker), bob=Speaker(teller))
    assert (run.extra["contrast"], set(run.extra["roles"])) == ("silent", {"ann", "bob"})


async def test_attempts_are_episodes_of_their_own() -> None:
    explored = exploration(ruin_task(2, 4), make=RuinEnvironment, actor=chance(0.5), critic=critic(0.0))
    strategy = MultiAgent.model_validate({"roles": WATCHED, "k": 12})
    runs = [run for piece in strategy.planned(explored) async for run in strategy.explore(explored, piece)]
    assert [run.attempt for run in runs] == list(range(12))
    assert {run.outcome.status for run in runs} == {"success", "failure"}


async def test_noisy_agents_succeed_as_often_as_the_closed_form_says() -> None:
    """Each of n letters comes over right with probability q: the answer is right with q to the n."""
    n, q, k = 3, 0.8, 400

    def noisy(conversation: Conversation) -> str:
        return teller(conversation) if random.Random(conversation.seed).random() < q else "?"

    ann, bob = Speaker(asker), Speaker(noisy)
    runs = [await talk(split("vxqzjwk", n), PAIR, seed=seed, ann=ann, bob=bob) for seed in range(k)]
    won, value = sum(run.outcome.status == "success" for run in runs), q**n
    assert len({run.trajectory_id for run in runs}) == k
    assert abs(won / k - value) < WITHIN_99_9 * math.sqrt(value * (1 - value) / k)


async def test_words_without_an_address_go_round_in_the_order_of_the_roles() -> None:
    roles = [{"name": "ann", "prompt": "Argue."}, {"name": "bob", "prompt": "Argue."}, {"name": "chair", "acts": True}]
    run = await talk(
        question("yes"), roles, ann=lines("yes"), bob=lines("no"), chair=lines("@ann Sure?", "@bob Sure?", "answer yes")
    )
    assert [who for who, _, _ in spoken(run)] == ["ann", "bob", "chair", "ann", "chair", "bob", "chair"], (
        "whoever is addressed answers, and gives the turn back"
    )
    assert run.outcome.status == "success"


async def test_an_answer_by_name_is_no_call() -> None:
    """The scout answers with ``@agent``: the next words of the agent are not for the scout again."""
    roles = [{"name": "agent", "acts": True}, {"name": "user"}, {"name": "scout", "prompt": "You scout."}]
    said = {"agent": lines("@scout Look.", "It is b.", "answer b"), "user": lines("Well."), "scout": lines("@agent b")}
    run = await talk(question("b"), roles, **said, scaffold="tools", max_messages=5)
    assert [who for who, _, _ in spoken(run)] == ["agent", "scout", "agent", "user", "scout"]


@pytest.mark.parametrize(
    ("scaffold", "expected", "who"),
    [
        ("text", "@planner Well?", "planner"),
        ("text", "Well, \n@planner?", None),
        ("react", "I do not know.\n@planner Well?", "planner"),
        ("react", "@planner is right.\nanswer b", None),
        ("tools", "@planner Well?", "planner"),
    ],
)
async def test_an_address_stands_where_a_command_would(scaffold: Any, expected: str, who: str | None) -> None:
    roles = [{"name": "actor", "acts": True, "sees": "own"}, {"name": "eve", "sees": "own"}, {"name": "planner"}]
    eve, planner = lines("So."), lines("@actor Go on.")
    run = await talk(
        question("b"),
        roles,
        actor=lines(expected, "answer b"),
        eve=eve,
        planner=planner,
        scaffold=scaffold,
        max_messages=2,
    )
    assert [agent for agent, role, _ in spoken(run) if role == "speaker"] == ([] if who is None else ["actor", who])
    assert [last(each) for each in planner.asked] == ([] if who is None else [f"actor: {expected}"])
    assert run.outcome.reason == ("max_messages" if who else None)
    assert not eve.asked


async def test_what_is_said_to_a_reviewer_is_said_to_nobody_by_name() -> None:
    roles = [{"name": "actor", "acts": True}, {"name": "eve", "sees": "own", "prompt": "Say so."}, *WATCHED[1:]]
    eve = lines("So.")
    await talk(question("b"), roles, actor=lines("@critic Why?"), eve=eve, scaffold="tools", max_messages=2)
    assert last(eve.asked[0]) == "actor: @critic Why?"


async def test_one_hands_over_to_specialists_who_work_apart() -> None:
    """Each specialist sees its own doings and what it is asked; the one who asks sees their answers only."""
    roles = [
        {"name": "lead", "acts": True, "sees": "own"},
        {"name": "scout", "acts": True, "sees": "own", "told": False},
        {"name": "clerk", "sees": "own", "told": False, "prompt": "You keep the books.", "knows": "goal.secrets"},
    ]
    lead = Speaker(
        lambda said: (
            ["@scout Look around.", "@clerk Which letter?"][own(said)]
            if own(said) < 2
            else f"answer {last(said)[-1]}{heard(said)[-3][-1]}"
        )
    )
    scout, clerk = lines("look", "@lead It is b"), lines("a")
    run = await talk(question("ab", "a", seen="b"), roles, lead=lead, scout=scout, clerk=clerk)
    assert spoken(run) == [
        ("lead", "speaker", "@scout Look around."),
        ("scout", "actor", "look"),
        ("scout", "speaker", "@lead It is b"),
        ("lead", "speaker", "@clerk Which letter?"),
        ("clerk", "speaker", "a"),
        ("lead", "actor", "answer ab"),
    ]
    assert run.outcome.status == "success"
    assert heard(lead.asked[-1]) == [
        "Find the word.",
        "The room is dark.",
        "@scout Look around.",
        "scout: @lead It is b",
        "@clerk Which letter?",
        "clerk: a",
    ]
    assert heard(scout.asked[-1]) == ["The room is dark.", "lead: @scout Look around.", "look", "You see b."]
    assert heard(clerk.asked[0]) == ["lead: @clerk Which letter?"]


CUSTOMER = [
    {"name": "user", "person": True, "sees": "dialogue", "knows": "goal.secrets", "stop": "###STOP###"},
    {"name": "agent", "acts": True, "told": False},
]


def customer(conversation: Conversation) -> str:
    """Says its word only when asked for it, and ends when it is told that it has been done."""
    if "Which" in last(conversation):
        return secret(conversation)
    return "###STOP###" if "Done" in last(conversation) else "I want a word."


@pytest.mark.parametrize("scaffold", ["tools", "text"])
@pytest.mark.parametrize(("asks", "status"), [(True, "success"), (False, "failure")])
async def test_a_person_says_what_it_knows_only_when_it_is_asked(scaffold: Any, asks: bool, status: str) -> None:
    at = "" if scaffold == "tools" else "@user "

    def act(conversation: Conversation) -> str | ApiAction:
        if asks and last(conversation) == "I want a word.":
            return f"{at}Which word?"
        word = last(conversation) if asks else "any"
        return ApiAction(function="answer", kwargs={"text": word}) if scaffold == "tools" else f"answer {word}"

    user, agent = Speaker(customer), Speaker(act)
    run = await talk(question("tulip", "tulip"), CUSTOMER, user=user, agent=agent, scaffold=scaffold)
    assert run.outcome.status == status
    assert calls(run) == ({"user": 2, "agent": 2} if asks else {"user": 1, "agent": 1})
    assert "Find the word." in heard(user.asked[0])
    assert not any("Find the word." in text for text in heard(agent.asked[-1])), "only the person knows what it wants"
    assert all("room" not in text for each in user.asked for text in heard(each)), "it hears, and sees nothing"
    assert heard(agent.asked[0]) == ["The room is dark.", "I want a word."], "a person is heard without its name"
    said = [item for item in run.content if getattr(item, "agent", None) == "user"]
    assert [item.synthetic for item in said] == [True] * len(said)
    assert "###STOP###" in user.asked[0].system_prompt


async def test_a_person_ends_the_conversation() -> None:
    user, agent = Speaker(customer), lines("Done.")
    run = await talk(question("tulip", "tulip"), CUSTOMER, user=user, agent=agent, scaffold="tools")
    assert [what for _, _, what in spoken(run)] == ["I want a word.", "Done.", "###STOP###"]
    outcome = run.outcome
    assert (outcome.status, outcome.terminated, outcome.truncated, outcome.reason) == ("failure", True, False, None)
    assert run.extra["ended_by"] == "user"
