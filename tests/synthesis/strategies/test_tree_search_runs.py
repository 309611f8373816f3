"""What search trees yield: runs that share their beginnings, and the nodes between."""

from __future__ import annotations

import random
from typing import Any

import pytest

from agentmill.schemas.records.trajectory import MessageAction
from agentmill.synthesis.environments import ENVIRONMENTS, make
from agentmill.synthesis.policies.policy import ContextOverflow, Conversation, PolicyError, PolicySettings, Turn
from agentmill.synthesis.policies.scripted import ScriptedPolicy
from agentmill.synthesis.rollouts.strategy import Exploration
from agentmill.synthesis.strategies.tree_search import TreeSearch
from agentmill.synthesis.verifiers.check_outcome import CheckOutcome
from tests.decision_environment import (
    Chooser,
    DecisionEnvironment,
    decision_task,
)
from tests.synthesis.strategies.searching import DEEP, Found, moves, search


async def test_runs_share_their_beginnings_and_each_turn_is_owned_once() -> None:
    found = await search(decision_task(DEEP), iterations=60, branching=8)
    assert sorted(moves(run).lower() for run in found.runs) == [x + y + z for x in "ab" for y in "ab" for z in "ab"]
    first, *branches = found.runs
    assert (first.parent_id, first.branch_turn, moves(first)) == (None, None, "bab")
    rewards = [run.outcome.reward or 0.0 for run in found.runs]
    assert rewards == sorted(rewards, reverse=True)
    by_id = {run.trajectory_id: run for run in found.runs}
    assert len(by_id) == 8
    for run in branches:
        parent = by_id[str(run.parent_id)]
        assert run.branch_turn is not None
        shared = run.branch_turn - 1
        assert moves(run).lower()[:shared] == moves(parent).lower()[:shared]
        assert moves(run) == moves(run).lower()[:shared].upper() + moves(run).lower()[shared:]
        assert all((item.context_operation == "copied") == (item.turn < run.branch_turn) for item in run.content)
        assert run.attempt > parent.attempt
    own = [moves(run)[place:] for run in found.runs for place in [sum(map(str.isupper, moves(run)))]]
    assert sum(map(len, own)) == 2 + 4 + 8
    for node in found.nodes[1:]:
        owner = by_id[str(node.trajectory_id)]
        assert moves(owner)[node.turn - 1].islower()
        assert moves(owner).lower()[: node.turn] == found.places[node.node_id]


async def test_what_a_tree_yields_is_what_happens_when_it_is_replayed() -> None:
    task = decision_task(DEEP)
    found = await search(task, iterations=40, leaves="all")
    for run in found.runs:
        verdict = await CheckOutcome().verify(task, run, DecisionEnvironment())
        assert (verdict.status, verdict.reason) == ("scored", None)
        assert verdict.passed == (run.outcome.status == "success")


async def test_leaves_that_did_not_end_are_yielded_if_wanted() -> None:
    parameters: dict[str, Any] = {"method": "beam", "branching": 8, "value": "environment"}
    ended = await search(decision_task(DEEP, {"b": 0.5, "ba": 0.5}), **parameters)
    every = await search(decision_task(DEEP, {"b": 0.5, "ba": 0.5}), **parameters, leaves="all")
    assert sorted(moves(run).lower() for run in ended.runs) == ["baa", "bab"]
    assert sorted(moves(run).lower() for run in every.runs) == ["a", "baa", "bab", "bb"]
    cut = [run.outcome for run in every.runs if len(moves(run)) < 3]
    assert {(each.truncated, each.terminated, each.reason) for each in cut} == {(True, False, "search_ended")}
    unowned = {ended.places[node.node_id] for node in ended.nodes if node.trajectory_id is None}
    assert unowned == {"a", "bb"}


async def test_turns_that_do_the_same_are_one_child_and_the_first_is_kept() -> None:
    words = iter(["a", " a ", "a\n", "b"])
    actor = ScriptedPolicy(
        PolicySettings(policy="scripted"), lambda _: Turn(actions=[MessageAction(content=next(words))])
    )
    found = await search(
        decision_task({"a": 0.1, "b": 0.2}), actor, method="beam", branching=4, value="environment", priors="frequency"
    )
    assert [found.places[node.node_id] for node in found.nodes] == ["", "a", "b"]
    assert [(node.prior, node.extra["draws"]) for node in found.nodes[1:]] == [(0.75, 3), (0.25, 1)]
    assert [moves(run) for run in found.runs] == ["b", "a"]
    tokens = {"prompt_tokens": 0, "completion_tokens": 0}
    assert found.root.extra["costs"] == {"actor_calls": 4, "turns": 2, **tokens, "cost_usd": 0.0}


@pytest.mark.parametrize(("priors", "expected"), [("uniform", 0.5), ("logprob", 0.9)])
async def test_priors_are_known(priors: Any, expected: float) -> None:
    found = await search(
        decision_task({"a": 0.1, "b": 0.2}), Chooser(weight=9), branching=60, iterations=2, priors=priors
    )
    assert found.by_place["a"].prior == pytest.approx(expected)
    assert found.by_place["b"].prior == pytest.approx(1 - expected)


async def test_priors_by_log_probability_need_some() -> None:
    actor = ScriptedPolicy(PolicySettings(policy="scripted", turns=["a"] * 9))
    with pytest.raises(PolicyError, match="no_logprobs"):
        await search(decision_task({"a": 0.1}), actor, priors="logprob")


async def test_tokens_of_all_turns_on_the_way_are_kept() -> None:
    for run in (await search(decision_task(DEEP), iterations=30)).runs:
        actions = [item for item in run.content if isinstance(item, MessageAction)]
        assert [action.tokens.sampled_ids for action in actions if action.tokens] == [
            [ord(c)] for c in moves(run).lower()
        ]


async def test_illegal_turns_are_children_and_end_a_run_like_any_other() -> None:
    actor = Chooser(letters="ax")
    found = await search(
        decision_task({"a": 1.0}), actor, iterations=60, branching=8, max_invalid=2, value="environment"
    )
    assert sorted(moves(run).lower() for run in found.runs) == ["a", "xa", "xx"]
    assert {run.outcome.reason for run in found.runs} == {None, "invalid_actions"}
    short = await search(decision_task(DEEP), method="beam", branching=8, value="environment", max_turns=2)
    assert {(len(moves(run)), run.outcome.reason) for run in short.runs} == {(2, "max_turns")}


async def test_a_full_context_ends_a_run_where_it_is_full() -> None:
    def full(conversation: Conversation) -> Turn:
        if len(conversation.content) > 4:
            raise ContextOverflow("64 tokens")
        return Turn(actions=[MessageAction(content="a")])

    found = await search(decision_task(DEEP), ScriptedPolicy(PolicySettings(policy="scripted"), full), iterations=5)
    [run] = found.runs
    assert (run.outcome.truncated, run.outcome.reason, moves(run)) == (True, "context_overflow", "aa")
    assert found.by_place["aa"].terminal


@pytest.mark.parametrize("family", ENVIRONMENTS)
async def test_trees_grow_in_every_family_and_their_runs_can_be_replayed(family: str) -> None:
    def choose(conversation: Conversation) -> Turn:
        assert conversation.choices
        return Turn(actions=[MessageAction(content=random.Random(conversation.seed).choice(conversation.choices))])

    actor = ScriptedPolicy(PolicySettings(policy="scripted"), choose)
    strategy = TreeSearch(constrain="admissible", iterations=12, branching=3, max_turns=8, leaves="all")
    for spec, task in ENVIRONMENTS.load(family).examples():
        explored = Exploration(
            task=task, spec=spec, make_environment=lambda spec=spec: make(spec), policies={"actor": actor}, seed=1
        )
        [piece] = strategy.planned(explored)
        found = Found([each async for each in strategy.explore(explored, piece)])
        assert found.root.visits == 12
        environment = make(spec)
        environment.reset(task, seed=1)
        assert (len(found.runs) > 1) == bool(environment.admissible()), "programs cannot be listed"
        environment.close()
        for run in found.runs:
            environment = make(spec)
            verdict = await CheckOutcome().verify(task, run, environment)
            environment.close()
            assert (verdict.status, verdict.passed) == ("scored", run.outcome.status == "success")
