"""Search trees with critics, within their budgets, and where somebody fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import ValidationError

from agentmill.schemas.records.trajectory import MessageAction, Usage
from agentmill.schemas.records.verdict import Node
from agentmill.synthesis.policies.policy import ContextOverflow, Conversation, PolicyError, PolicySettings, Turn
from agentmill.synthesis.policies.scripted import ScriptedPolicy
from agentmill.synthesis.rollouts.strategy import Exploration
from agentmill.synthesis.strategies.search.search import read_score
from agentmill.synthesis.strategies.tree_search import TreeSearch
from tests.decision_environment import (
    SPEC,
    Appraiser,
    Chooser,
    DecisionEnvironment,
    Failing,
    decision_task,
    place,
)
from tests.synthesis.strategies.searching import DEEP, exploration, search


async def test_a_critic_leads_the_search() -> None:
    critic, actor = Appraiser(a=0.1, b=0.8, ba=0.7, bb=0.2, start=0.3), Chooser()
    found = await search(decision_task(DEEP), actor, critic, method="beam", branching=8, value="critic")
    assert {where for where, _ in actor.asked} == {"", "b", "ba"}
    assert sorted(critic.asked) == ["a", "b", "ba", "bb"]
    assert [found.by_place[place].extra["estimate"] for place in ("a", "b", "ba", "bb")] == [0.1, 0.8, 0.7, 0.2]
    assert found.by_place["bab"].extra["estimate"] == 0.9
    assert found.root.extra["costs"]["critic_calls"] == 4
    assert found.root.extra["costs"]["actor_calls"] == len(actor.asked) == 24


async def test_a_critic_without_a_score_is_asked_again() -> None:
    said = iter(["hm", "12", "Score: 7"])
    critic = ScriptedPolicy(
        PolicySettings(policy="scripted"), lambda _: Turn(actions=[MessageAction(content=next(said))])
    )
    found = await search(decision_task(DEEP), None, critic, iterations=1, value="critic")
    assert found.root.extra["estimate"] == 0.7
    assert found.root.extra["costs"]["critic_calls"] == 3


class Mumbling(Appraiser):
    """Gives no score of the state ``b``: it says something else, nothing, or cannot read it."""

    def __init__(self, kind: str, **scores: float) -> None:
        super().__init__(**scores)
        self._kind = kind

    async def act(self, conversation: Conversation) -> Turn:
        if place(conversation) != "b":
            return await super().act(conversation)
        if self._kind == "overflow":
            raise ContextOverflow("too long")
        return Turn(actions=[MessageAction(content="hm" if self._kind == "words" else " ")])


@pytest.mark.parametrize("kind", ["words", "silence", "overflow"])
@pytest.mark.parametrize("method", ["mcts", "best_first", "beam"])
async def test_an_unreadable_score_leaves_the_node_unscored_and_the_tree_whole(method: str, kind: str) -> None:
    scores = {"a": 0.2, "aa": 0.2, "ab": 0.2, "ba": 0.8, "bb": 0.1}
    critic = Mumbling(kind, start=0.5, **scores)
    found = await search(decision_task(DEEP), None, critic, value="critic", **METHODS[method])
    assert found.runs
    node = found.by_place["b"]
    assert node.extra["unscored"] is True
    assert "estimate" not in node.extra
    assert found.root.extra["costs"]["unscored_nodes"] == 1
    assert found.by_place["ba"].extra["estimate"] == 0.8
    assert all("unscored" not in each.extra for each in found.nodes if each is not node)


METHODS: dict[str, dict[str, Any]] = {
    "mcts": {"iterations": 12},
    "best_first": {"method": "best_first", "iterations": 12},
    "beam": {"method": "beam", "width": 4},
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", ["rollout", "environment", "critic"])
async def test_a_budget_is_spent_to_the_last_call_and_never_exceeded(method: str, value: Any) -> None:
    async def spent(most: int | None) -> tuple[int, str, list[Node]]:
        actor, critic = Chooser(), Appraiser()
        found = await search(decision_task(DEEP), actor, critic, value=value, max_calls=most, **METHODS[method])
        costs = found.root.extra["costs"]
        assert costs.get("actor_calls", 0) == len(actor.asked)
        assert costs.get("critic_calls", 0) == len(critic.asked)
        return len(actor.asked) + len(critic.asked), found.root.extra["stopped"], found.nodes[1:]

    wanted, stopped, nodes = await spent(None)
    assert wanted > 12
    for most in range(1, wanted):
        assert (await spent(most))[:2] == (most, "budget")
    for most in (wanted, wanted + 1):
        assert [node.q for node in (await spent(most))[2]] == [node.q for node in nodes]
        assert (await spent(most))[:2] == (wanted, stopped)


async def test_a_tree_that_was_solved_with_the_last_call_says_so() -> None:
    parameters: dict[str, Any] = {"branching": 8, "iterations": 9, "max_calls": 2, "value": "environment"}
    task, actor = decision_task({"a": 1.0, "b": 0.0}), Chooser(letters="a")
    found = await search(task, actor, until="solved", **parameters)
    assert (found.root.extra["stopped"], found.root.extra["costs"]["actor_calls"]) == ("solved", 2)
    assert (await search(task, actor, **parameters)).root.extra["stopped"] == "budget"


async def test_what_a_tree_costs_is_told_in_dollars_too() -> None:
    dear = ScriptedPolicy(
        PolicySettings(policy="scripted"),
        lambda _: Turn(actions=[MessageAction(content="a")], usage=Usage(cost_usd=0.25)),
    )
    found = await search(decision_task({"a": 0.1}), dear, branching=3, iterations=2, value="environment")
    assert found.root.extra["costs"]["cost_usd"] == 0.75


@pytest.mark.parametrize("method", METHODS)
async def test_a_budget_of_turns_is_kept(method: str) -> None:
    whole = await search(decision_task(DEEP), **METHODS[method])
    wanted = whole.root.extra["costs"]["turns"]
    assert wanted == len(whole.nodes) - 1 > 6
    for most in range(1, wanted):
        found = await search(decision_task(DEEP), max_steps=most, **METHODS[method])
        assert found.root.extra["costs"]["turns"] == len(found.nodes) - 1 == most
        assert found.root.extra["stopped"] == "budget"
    assert (await search(decision_task(DEEP), max_steps=wanted, **METHODS[method])).root.extra == whole.root.extra


async def test_a_search_that_takes_too_long_keeps_what_it_has() -> None:
    class Tiring(Chooser):
        async def act(self, conversation: Conversation) -> Turn:
            if len(self.asked) == 5:
                await asyncio.sleep(60)
            return await super().act(conversation)

    found = await search(decision_task(DEEP), Tiring(), episode_timeout_s=0.2)
    assert found.root.extra["stopped"] == "timeout"
    assert len(found.runs) == 1
    assert found.root.visits == 1


async def test_a_policy_that_fails_ends_the_search_and_is_named() -> None:
    failing = Failing(PolicySettings(policy="failing", turns=["ba"]))
    with pytest.raises(PolicyError, match="timeout: no answer in 3 s"):
        await search(decision_task(DEEP), failing, branching=8, iterations=40)


async def test_the_environment_is_closed_whatever_happens() -> None:
    class Closing(DecisionEnvironment):
        def close(self) -> None:
            closed.append(self)

    closed: list[DecisionEnvironment] = []
    failing = Failing(PolicySettings(policy="failing", turns=[""]))
    explored = Exploration(
        task=decision_task(DEEP), spec=SPEC, make_environment=Closing, policies={"actor": failing}, seed=0
    )
    [piece] = TreeSearch().planned(explored)
    with pytest.raises(PolicyError):
        [each async for each in TreeSearch().explore(explored, piece)]
    assert len(closed) == 1


async def test_the_same_search_gives_the_same_tree_and_other_seeds_others() -> None:
    one, again, other = [await search(decision_task(DEEP), iterations=6, seed=seed) for seed in (1, 1, 2)]
    assert (one.runs, one.nodes) == (again.runs, again.nodes)
    assert {run.trajectory_id for run in one.runs}.isdisjoint(run.trajectory_id for run in other.runs)


def test_ids_depend_on_what_decides_the_search_and_not_on_k() -> None:
    task, actor = decision_task(DEEP), Chooser()
    plain = TreeSearch().planned(exploration(task, actor=actor))
    assert TreeSearch(k=3).planned(exploration(task, actor=actor))[:1] == plain
    assert TreeSearch(episode_timeout_s=1).planned(exploration(task, actor=actor)) == plain
    others = [TreeSearch(**each) for each in ({"c": 2.0}, {"branching": 5}, {"leaves": "all"}, {"max_calls": 9})]
    ids = {other.planned(exploration(task, actor=actor))[0] for other in others}
    assert len({*ids, *plain}) == 5
    judged = TreeSearch(value="critic").planned(exploration(task, actor=actor, critic=Appraiser()))
    assert judged != plain


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"method": "beam", "c": 2.0}, "`c` goes with `method: mcts`"),
        ({"method": "mcts", "width": 2}, "`width` goes with `method: beam`"),
        ({"method": "best_first", "selection": "uct"}, "`selection` goes with `method: mcts`"),
        ({"method": "beam", "iterations": 4}, "`iterations` goes with"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(parameters: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        TreeSearch(**parameters)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("It went well.\n**Score:** 7/10", 0.7),
        ("Score (0-10): 7", 0.7),
        ("Score from 0 to 10: 4", 0.4),
        ("Score - 7", 0.7),
        ("Score: -3", None),
        ("Score: 70", None),
        ("Score: 3. No, Score: 5.", 0.5),
        ("8", 0.8),
    ],
)
def test_scores_of_a_critic_are_read_without_their_scale(text: str, score: float | None) -> None:
    assert read_score(text) == score
