"""Roles with a persona, and with drafts of which the same model chooses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentmill.schemas.config import validate
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.synthesis.policies.policy import ContextOverflow, Conversation
from agentmill.synthesis.rollouts.roles import Role
from agentmill.synthesis.strategies.multi_agent import MultiAgent
from tests.answer_environment import question
from tests.errors import user_error
from tests.synthesis.strategies.talking import Speaker, calls, exploration, lines, of_roles, spoken, talk

PERSONAS = ["You are in a hurry.", "You are polite.", "You doubt everything."]
USER = {"name": "user", "person": True, "sees": "dialogue", "stop": "BYE"}
AGENT = {"name": "agent", "acts": True, "told": False}


async def test_each_episode_draws_a_persona_by_its_seed() -> None:
    strategy = MultiAgent.model_validate({"roles": [{**USER, "personas": PERSONAS}, AGENT], "k": 30})
    given: dict[str, Any] = {"user": lines("Hello.", "BYE"), "agent": lines("@user Yes?")}
    found = []
    for _ in range(2):
        explored = exploration(question("ab"), **given)
        runs = [run for piece in strategy.planned(explored) async for run in strategy.explore(explored, piece)]
        found.append([of_roles(run)["user"].system_prompt for run in runs if isinstance(run, Trajectory)])
    assert found[0] == found[1]
    drawn = {prompt.partition("This is who you are:\n")[2] for prompt in found[0]}
    assert drawn == set(PERSONAS)
    own = {**USER, "personas": PERSONAS[:1], "prompt": "Be brief. {persona} End with {stop}."}
    run = await talk(question("ab"), [own, AGENT], **given)
    assert of_roles(run)["user"].system_prompt == "Be brief. You are in a hurry. End with BYE."
    assert "hurry" not in of_roles(run)["agent"].system_prompt


def drafting(best: Any) -> Speaker:
    """Drafts its seed, and chooses ``best``."""

    def said(conversation: Conversation) -> str:
        if conversation.answer_schema is not None:
            return best if isinstance(best, str) else json.dumps({"critique": "So.", "best": best})
        return f"BYE {conversation.seed}"

    return Speaker(said)


@pytest.mark.parametrize(
    ("best", "taken"), [(1, 0), (3, 2), (0, 0), (4, 0), ("I like them all.", 0), ('{"best": 1' + "0" * 5_000, 0)]
)
async def test_of_several_drafts_the_one_that_the_model_chooses_is_its_message(best: Any, taken: int) -> None:
    user = drafting(best)
    run = await talk(question("ab"), [{**USER, "best_of": 3}, AGENT], user=user, agent=lines("look"))
    drafts = [f"BYE {each.seed}" for each in user.asked[:3]]
    assert len(set(drafts)) == 3
    assert spoken(run) == [("user", "speaker", drafts[taken])]
    assert calls(run)["user"] == 4
    choice = user.asked[3]
    assert all(f"{n}. {draft}" in str(choice.content[-1].content) for n, draft in enumerate(drafts, 1))  # type: ignore[union-attr]
    assert choice.answer_schema is not None
    assert choice.answer_schema["properties"]["best"]["maximum"] == 3
    assert run.extra.get("undecided_drafts") == (None if best in (1, 3) else 1)
    assert run.usage.completion_tokens == of_roles(run)["user"].usage.completion_tokens
    assert run.content[-1].synthetic


async def test_drafts_that_are_too_long_together_are_undecided() -> None:
    def reply(conversation: Conversation) -> str:
        if conversation.answer_schema is not None:
            raise ContextOverflow("too long")
        return f"BYE {conversation.seed}"

    user = Speaker(reply)
    run = await talk(question("ab"), [{**USER, "best_of": 3}, AGENT], user=user, agent=lines("look"))
    assert spoken(run) == [("user", "speaker", f"BYE {user.asked[0].seed}")]
    assert run.extra.get("undecided_drafts") == 1
    assert calls(run)["user"] == 3
    assert run.usage.completion_tokens == of_roles(run)["user"].usage.completion_tokens == 3 * 3


async def test_the_choice_is_no_part_of_what_the_others_see() -> None:
    agent = lines("@user Yes?", "answer ab")
    user = drafting(2)
    run = await talk(question("ab"), [{**USER, "best_of": 2, "stop": "NEVER"}, AGENT], user=user, agent=agent)
    assert not any("drafts" in str(item.content) for item in run.content)  # type: ignore[union-attr]
    assert not any("drafts" in str(item.content) for each in agent.asked for item in each.content)  # type: ignore[union-attr]


@pytest.mark.parametrize("role", [{"acts": True}, {"veto": "NO"}])
def test_who_acts_or_reviews_makes_no_drafts(role: dict[str, Any]) -> None:
    with user_error("rule-broken", "best_of"):
        validate(Role, {"name": "x", "best_of": 2, **role}, "role")


def test_a_new_parameter_changes_the_ids_of_those_that_use_it_alone() -> None:
    def planned(**given: Any) -> list[str]:
        strategy = MultiAgent.model_validate({"roles": [{**USER, **given}, AGENT]})
        return strategy.planned(exploration(question("ab"), user=lines("x")))

    assert planned() == planned(best_of=1) == planned(personas=[])
    assert len({*planned(), *planned(best_of=2), *planned(personas=PERSONAS)}) == 3
