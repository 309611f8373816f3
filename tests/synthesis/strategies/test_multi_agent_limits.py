"""What ends an episode of several agents, what tells two such runs apart, and mistakes in their parameters."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import create_model

from agentmill.schemas.config import validate
from agentmill.schemas.records.trajectory import ApiAction
from agentmill.synthesis.policies.policy import ContextOverflow, Conversation, PolicyError
from agentmill.synthesis.rollouts.roles import NotInTask, Role
from agentmill.synthesis.strategies.multi_agent import MultiAgent
from agentmill.synthesis.verifiers.check_outcome import CheckOutcome
from tests.answer_environment import AnswerEnvironment, question
from tests.errors import user_error
from tests.ruin_environment import RuinEnvironment, ruin_task
from tests.synthesis.strategies.talking import (
    PAIR,
    WATCHED,
    Speaker,
    asker,
    calls,
    exploration,
    lines,
    of_roles,
    split,
    spoken,
    talk,
    teller,
)


async def test_talk_and_actions_have_limits() -> None:
    chatter = await talk(split("ab", 1), PAIR, ann=lines("@bob Well?"), bob=lines("Well."), max_messages=7)
    assert (chatter.outcome.truncated, chatter.outcome.reason) == (True, "max_messages")
    assert calls(chatter) == {"ann": 4, "bob": 3}
    busy = await talk(split("ab", 1), PAIR, ann=lines("look"), bob=lines("Well."), max_turns=4)
    assert (busy.outcome.reason, calls(busy)) == ("max_turns", {"ann": 4, "bob": 0})


async def test_what_waits_for_a_review_when_time_is_up_is_not_carried_out() -> None:
    class Slow(Speaker):
        async def act(self, conversation: Conversation) -> Any:
            await asyncio.sleep(60)

    run = await talk(
        ruin_task(2, 4),
        WATCHED,
        RuinEnvironment,
        actor=lines("right"),
        critic=Slow(lambda _: ""),
        episode_timeout_s=0.1,
    )
    assert (run.outcome.reason, spoken(run)) == ("episode_timeout", [("actor", "proposer", "right")])
    assert run.content[-1].state_digest is None
    assert (await CheckOutcome().verify(ruin_task(2, 4), run, RuinEnvironment())).status == "scored"


async def test_who_only_speaks_cannot_leave_calls_without_an_answer() -> None:
    silent = Speaker(lambda _: ApiAction(function="look", kwargs={}))
    for roles in ([{"name": "planner"}, {"name": "actor", "acts": True}], WATCHED):
        other = next(role["name"] for role in roles if not role.get("acts"))
        with pytest.raises(PolicyError, match=f"'{other}' only speaks") as caught:
            await talk(question("b"), roles, **{other: silent}, actor=lines("look"), scaffold="tools")
        assert caught.value.reason == "unexpected_call"


async def test_a_critic_that_cannot_read_it_all_ends_the_episode() -> None:
    def overwhelmed(_: Conversation) -> str:
        raise ContextOverflow("too long")

    run = await talk(ruin_task(2, 4), WATCHED, RuinEnvironment, actor=lines("right"), critic=Speaker(overwhelmed))
    assert (run.outcome.truncated, run.outcome.reason) == (True, "context_overflow")


async def test_what_an_agent_should_know_must_stand_in_the_task() -> None:
    with pytest.raises(NotInTask, match=r"task 'answer-ab' has no goal\.secrets\.ann"):
        await talk(question("ab"), PAIR, ann=lines("x"), bob=lines("x"))


async def test_facts_that_are_no_text_are_told_as_json_and_prompts_say_where() -> None:
    roles = [{"name": "bob", "prompt": "{name}|{knows}|{others}|{instruction}|{rules}", "knows": "goal"}, PAIR[0]]
    bob = lines("x")
    await talk(question("a{b}", {"ann": "1x"}), roles, bob=bob, ann=lines("answer a{b}"))
    assert bob.asked[0].system_prompt == (
        'bob|{"answer":"a{b}","secrets":{"ann":"1x"}}|ann|Find the word.|' + AnswerEnvironment().rules
    )


def test_ids_tell_apart_what_makes_a_difference() -> None:
    task, one, other = question("a"), lines("x"), Speaker(lambda _: "x", model="other")
    base: dict[str, Any] = {"roles": WATCHED}

    def planned(parameters: dict[str, Any], **policies: Any) -> list[str]:
        return MultiAgent.model_validate({**base, **parameters}).planned(
            exploration(task, **{"actor": one, **policies})
        )

    ids = [
        planned({}),
        planned({}, critic=other),
        planned({"max_vetoes": 1}),
        planned({"max_messages": 9}),
        planned({"roles": [WATCHED[0], {**WATCHED[1], "prompt": "Be strict."}]}),
        planned({"roles": list(reversed(WATCHED))}),
        planned({"scaffold": "tools"}),
    ]
    assert len({each for found in ids for each in found}) == len(ids)
    later = create_model(
        "Later", __base__=MultiAgent, roles=(list[create_model("_", __base__=Role, new=(int, 0))], ...)
    )  # type: ignore[misc]
    explored = exploration(task, actor=one)
    assert later.model_validate(base).planned(explored) == planned({}), "a parameter that is new changes no id"
    assert planned({}, critic=one) == planned({}), "a role without a policy of its own has that of the actor"
    assert planned({"k": 3})[0] == planned({})[0]


async def test_it_says_of_each_role_what_it_cost_and_who_played_it() -> None:
    ann, bob = Speaker(asker, model="big"), Speaker(teller, model="small")
    run = await talk(split("vxqzjwk", 2), PAIR, ann=ann, bob=bob)
    roles = of_roles(run)
    assert {name: each.model for name, each in roles.items()} == {"ann": "big", "bob": "small"}
    for name, speaker in (("ann", ann), ("bob", bob)):
        assert roles[name].usage.prompt_tokens == sum(map(len, speaker.prompts))
    assert run.usage.prompt_tokens == sum(each.usage.prompt_tokens or 0 for each in roles.values())


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"roles": [{"name": "a"}, {"name": "b"}]}, ("rule-broken", "roles", "needs `acts: true`")),
        ({"roles": [{"name": "a", "acts": True}, {"name": "A"}]}, ("rule-broken", "roles", "'a'")),
        (
            {"roles": [{"name": "a", "acts": True, "sees": "dialogue"}, {"name": "b"}]},
            ("rule-broken", "`sees: all` or `own`"),
        ),
        (
            {"roles": [{"name": "a", "acts": True}, {"name": "b", "max_actions": 1}]},
            ("rule-broken", "go with `acts: true`"),
        ),
        ({"roles": [{"name": "a", "acts": True, "veto": "NO"}, {"name": "b"}]}, ("rule-broken", "veto")),
        ({"roles": [{"name": "a", "acts": True}, {"name": "b", "person": True}]}, ("rule-broken", "person", "stop")),
        ({"roles": [{"name": "a", "acts": True}, {"name": "b", "knows": "task_id"}]}, ("rule-broken", "task_id")),
        (
            {"roles": [{"name": "b", "sees": "dialogue", "told": False}, {"name": "a", "acts": True}]},
            ("rule-broken", "'b'"),
        ),
        *(
            ({"context": each, "roles": WATCHED}, ("rule-broken", f"context: {each}"))
            for each in ("sliding_window", "fold", "notes")
        ),
        ({"context_tokens": 9, "roles": WATCHED}, ("rule-broken", "stop")),
        ({"roles": [{"name": "a", "acts": True}]}, ("invalid-value", "roles", "2 entries")),
        ({"roles": [{"name": "a b", "acts": True}, {"name": "b"}]}, ("invalid-value", "roles.0.name")),
    ],
)
def test_mistakes_in_parameters_are_explained(parameters: dict[str, Any], message: tuple[str, ...]) -> None:
    with user_error(*message):
        validate(MultiAgent, parameters, "step multi_agent")
