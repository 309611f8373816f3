"""Agents that steer another one: a critic who prevents, and a planner who says what to do."""

from __future__ import annotations

import math
from typing import Any

import pytest

from agentmill.schemas.records.trajectory import ApiAction, TextObservation
from agentmill.synthesis.policies.policy import Conversation
from agentmill.synthesis.verifiers.check_outcome import CheckOutcome
from tests.ruin_environment import RuinEnvironment, ruin_task, win_probability
from tests.synthesis.strategies.talking import (
    WATCHED,
    WITHIN_99_9,
    Speaker,
    calls,
    chance,
    critic,
    heard,
    last,
    lines,
    own,
    prompt_of,
    spoken,
    talk,
)


async def test_a_critic_prevents_exactly_what_is_wrong() -> None:
    actor, watch = lines("left", "right", "left", "left", "right"), critic()
    run = await talk(ruin_task(2, 4), WATCHED, RuinEnvironment, actor=actor, critic=watch)
    assert [(who, role, what) for who, role, what in spoken(run) if who == "actor"] == [
        ("actor", "proposer", "left"),
        ("actor", "actor", "right"),
        ("actor", "proposer", "left"),
        ("actor", "proposer", "left"),
        ("actor", "actor", "right"),
    ]
    assert run.outcome.status == "success"
    assert calls(run) == {"actor": 5, "critic": 5}
    vetoes = [item for item in run.content if isinstance(item, TextObservation) and item.name == "critic"]
    assert {each.content for each in vetoes} == {"(This was not done. NO, that is one less.)"}
    assert [each.error for each in vetoes] == [True] * 3
    assert heard(actor.asked[1])[2:] == ["left", "(This was not done. NO, that is one less.)"]
    assert not any("OK" in text for text in heard(actor.asked[-1])), "a critic is heard where it objects"
    assert heard(watch.asked[-1])[2:5] == ["actor: left", "NO, that is one less.", "actor: right"]
    assert (await CheckOutcome().verify(ruin_task(2, 4), run, RuinEnvironment())).passed is True


async def test_a_word_prevents_and_a_part_of_a_longer_one_does_not() -> None:
    watch = lines("OK. NOTHING is wrong.", "No NO-OP here: NO!", "OK")
    run = await talk(ruin_task(3, 4), WATCHED, RuinEnvironment, actor=lines("right"), critic=watch, max_turns=2)
    assert [role for who, role, _ in spoken(run) if who == "actor"] == ["actor"]
    run = await talk(ruin_task(2, 4), WATCHED, RuinEnvironment, actor=lines("right"), critic=watch, max_turns=2)
    assert [role for who, role, _ in spoken(run) if who == "actor"] == ["actor", "proposer", "actor"]


@pytest.mark.parametrize(("d", "vetoes"), [(0.0, 3), (1.0, 1), (0.5, 1), (1.0, 3)])
async def test_a_critic_changes_the_odds_as_the_closed_form_says(d: float, vetoes: int) -> None:
    """``left`` comes through if each of so many reviews lets it, or after so many vetoes."""
    p, k = 0.4, 300
    left = 1 - p
    for _ in range(vetoes):
        left = (1 - p) * ((1 - d) + d * left)
    agents = {"actor": chance(p), "critic": critic(d)}
    runs = [
        await talk(ruin_task(2, 4), WATCHED, RuinEnvironment, seed, **agents, max_vetoes=vetoes) for seed in range(k)
    ]
    value = win_probability(2, 4, 1 - left)
    won = sum(run.outcome.status == "success" for run in runs) / k
    assert abs(won - value) < WITHIN_99_9 * math.sqrt(value * (1 - value) / k)


async def test_after_so_many_vetoes_an_action_is_carried_out_unasked() -> None:
    run = await talk(ruin_task(1, 4), WATCHED, RuinEnvironment, actor=lines("left"), critic=critic(), max_vetoes=2)
    assert [role for who, role, _ in spoken(run) if who == "actor"] == ["proposer", "proposer", "actor"]
    assert calls(run) == {"actor": 3, "critic": 2}


async def test_each_call_of_a_vetoed_turn_has_an_answer() -> None:
    actor = Speaker(lambda said: ApiAction(function="right" if own(said) else "left", kwargs={}))
    watch = Speaker(lambda said: "NO" if "left" in last(said) else "OK")
    run = await talk(ruin_task(2, 4), WATCHED, RuinEnvironment, actor=actor, critic=watch, scaffold="tools")
    assert run.outcome.status == "success"
    for each in actor.asked:
        messages = prompt_of(each)
        for place, message in enumerate(messages):
            for call in message.tool_calls:
                assert messages[place + 1].tool_call_id == call.id
    assert all(each.tools == [] for each in watch.asked)
    assert {tool.name for tool in actor.asked[0].tools} == {"left", "right"}


def obedient(conversation: Conversation) -> str:
    """Does what the newest plan says; goes left without one."""
    plans = [text for text in heard(conversation) if text.startswith("planner: ")]
    return plans[-1].removeprefix("planner: ") if plans else "left"


@pytest.mark.parametrize(
    ("hold", "asked"), [({}, 1), ({"max_actions": 3}, 2), ({"max_actions": 2}, 2), ({"max_actions": 1}, 4)]
)
@pytest.mark.parametrize(("plan", "status", "acted"), [("right", "success", 4), ("left", "failure", 1)])
async def test_plans_are_made_once_or_anew_after_so_many_actions(
    hold: Any, asked: int, plan: str, status: str, acted: int
) -> None:
    roles = [{"name": "planner"}, {"name": "actor", "acts": True, **hold}]
    run = await talk(ruin_task(1, 5), roles, RuinEnvironment, planner=lines(plan), actor=Speaker(obedient))
    assert run.outcome.status == status
    assert calls(run) == {"planner": asked if acted == 4 else 1, "actor": acted}


async def test_an_error_brings_a_new_plan() -> None:
    roles = [{"name": "planner"}, {"name": "actor", "acts": True, "pass_on_error": True}]
    planner = Speaker(lambda said: "right" if any("possible" in text for text in heard(said)) else "jump")
    run = await talk(ruin_task(1, 3), roles, RuinEnvironment, planner=planner, actor=Speaker(obedient))
    assert [what for _, _, what in spoken(run)] == ["jump", "jump", "right", "right", "right"]
    assert (run.outcome.status, calls(run)) == ("success", {"planner": 2, "actor": 3})
    stubborn = await talk(
        ruin_task(1, 3),
        [roles[0], {"name": "actor", "acts": True}],
        RuinEnvironment,
        planner=planner,
        actor=Speaker(obedient),
    )
    assert (stubborn.outcome.reason, calls(stubborn)) == ("invalid_actions", {"planner": 1, "actor": 5})
