"""Search trees in worlds whose values are known: what is tried, in which order, what it is found to be worth."""

from __future__ import annotations

import asyncio
import math
import random
import statistics
from collections import defaultdict
from typing import Any

import pytest
from pydantic import ValidationError

from schemas.task import Task
from schemas.trajectory import MessageAction, Trajectory, Usage
from schemas.verdict import Node
from synthesis.environments import ENVIRONMENTS, make
from synthesis.policies.policy import ContextOverflow, Conversation, PolicyError, Turn
from synthesis.policies.scripted import ScriptedPolicy
from synthesis.policies.settings import PolicySettings
from synthesis.strategies.strategy import Exploration
from synthesis.strategies.tree_search import TreeSearch
from synthesis.verifiers.check_outcome import CheckOutcome
from tests.decision_world import (
    SPEC,
    Appraiser,
    Chooser,
    DecisionWorld,
    Failing,
    best_value,
    chance_value,
    decision_task,
)

DEEP = {
    "a": {"a": {"a": 0.1, "b": 0.4}, "b": {"a": 0.3, "b": 0.2}},
    "b": {"a": {"a": 0.0, "b": 0.9}, "b": {"a": 0.2, "b": 0.1}},
}
"""By chance "a" looks as good as "b" (0.25 and 0.3); the best leaf is "bab"."""


class Found:
    """What a search of one task yields."""

    def __init__(self, found: list[Trajectory | Node]) -> None:
        self.runs = [each for each in found if isinstance(each, Trajectory)]
        self.nodes = [each for each in found if isinstance(each, Node)]
        self.root = self.nodes[0]
        self.places = {node.node_id: str(node.state_digest).removeprefix("at-") for node in self.nodes}
        self.by_place = {self.places[node.node_id]: node for node in self.nodes}

    def q(self, place: str) -> float:
        q = self.by_place[place].q
        assert q is not None
        return q

    def children(self, node: Node) -> list[Node]:
        return [each for each in self.nodes if each.parent_id == node.node_id]


def exploration(task: Task, seed: int = 3, **policies: Any) -> Exploration:
    return Exploration(task=task, spec=SPEC, make_environment=DecisionWorld, policies=policies, seed=seed)


async def search(task: Task, actor: Any = None, critic: Any = None, seed: int = 3, **parameters: Any) -> Found:
    policies = {"actor": actor or Chooser(), **({"critic": critic} if critic else {})}
    strategy, explored = TreeSearch(**parameters), exploration(task, seed, **policies)
    [piece] = strategy.planned(explored)
    return Found([each async for each in strategy.explore(explored, piece)])


def moves(run: Trajectory) -> str:
    """The path of a run, what it copied in capitals."""
    return "".join(
        item.content.upper() if item.context_operation else item.content
        for item in run.content
        if isinstance(item, MessageAction)
    )


# --- Monte-Carlo tree search -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("selection", "c"), [("uct", 0.5), ("puct", 1.0)])
@pytest.mark.parametrize("value", ["rollout", "environment"])
async def test_mcts_finds_the_values_of_optimal_choice(selection: Any, c: float, value: Any) -> None:
    found = await search(
        decision_task(DEEP), method="mcts", iterations=2_000, branching=8, selection=selection, c=c, value=value
    )
    assert found.root.visits == 2_000
    assert found.q("") == pytest.approx(best_value(DEEP), abs=0.06)
    assert found.q("b") == pytest.approx(best_value(DEEP["b"]), abs=0.05)
    assert found.q("bab") == pytest.approx(0.9, abs=1e-12)
    for place in ("", "b", "ba"):
        best = max(found.children(found.by_place[place]), key=lambda node: node.visits)
        assert found.places[best.node_id] == "bab"[: len(place) + 1]


async def test_the_error_of_mcts_shrinks_with_its_iterations() -> None:
    errors = []
    for iterations in (50, 500, 5_000):
        found = await search(decision_task(DEEP), iterations=iterations, branching=8, selection="uct", c=0.5)
        errors.append(abs(found.q("") - best_value(DEEP)))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.02


async def test_one_iteration_estimates_the_value_of_the_policy() -> None:
    """The mean over 400 trees is within four standard errors of what chance is worth."""
    found = [await search(decision_task(DEEP), iterations=1, seed=seed) for seed in range(400)]
    values = [each.q("") for each in found]
    error = statistics.stdev(values) / math.sqrt(len(values))
    assert statistics.mean(values) == pytest.approx(chance_value(DEEP), abs=4 * error)
    assert error < 0.02
    assert {len(each.runs) for each in found} == {1}


@pytest.mark.parametrize("selection", ["uct", "puct"])
async def test_every_value_is_the_mean_of_what_was_found_below(selection: Any) -> None:
    found = await search(decision_task(DEEP), iterations=200, selection=selection)
    for node in found.nodes:
        below = found.children(node)
        visits = sum(child.visits for child in below)
        if node.visits and not node.terminal:
            assert node.visits == visits + 1
            total = node.extra["estimate"] + sum(child.visits * (child.q or 0.0) for child in below)
            assert node.q == pytest.approx(total / node.visits)


async def test_puct_goes_where_its_formula_says() -> None:
    """Worked out by hand, with priors 3/4 and 1/4 and c = 1; values are what the world shows.

    1: the root (0.5). 2: a, 0.75 against 0.25. 3: N = 1; a 0.2 + 0.75/2 = 0.575, b 0.25: a is expanded, aa.
    4: N = 2; a 0.3 + 0.75 sqrt(2)/3 = 0.654, b 0.25 sqrt(2) = 0.354: a, and in it aa (0.4 + 0.75/2 = 0.775 to 0.25).
    """
    hints = {"": 0.5, "a": 0.2, "aa": 0.4, "aaa": 0.1, "b": 0.9}
    tree = {"a": {"a": {"a": {"a": 0.0}, "b": 0.0}, "b": 0.0}, "b": {"a": 0.0}}
    letters = iter(["a", "a", "b", "a"] * 3)
    actor = ScriptedPolicy(
        PolicySettings(policy="scripted"), lambda _: Turn(actions=[MessageAction(content=next(letters))])
    )
    visits = []
    for iterations in range(1, 5):
        letters = iter(["a", "a", "b", "a"] * 3)
        found = await search(
            decision_task(tree, hints),
            actor,
            iterations=iterations,
            priors="frequency",
            value="environment",
            selection="puct",
        )
        visits.append({place: node.visits for place, node in found.by_place.items() if node.visits})
    assert visits == [
        {"": 1},
        {"": 2, "a": 1},
        {"": 3, "a": 2, "aa": 1},
        {"": 4, "a": 3, "aa": 2, "aaa": 1},
    ]
    assert found.q("a") == pytest.approx((0.2 + 0.4 + 0.1) / 3)
    assert (found.by_place["a"].prior, found.by_place["b"].prior) == (0.75, 0.25)


# --- best first and beam -----------------------------------------------------------------------------------------


async def test_best_first_expands_the_best_state_first_and_of_equals_the_older() -> None:
    tree = {
        "a": {"a": {"a": 0.0, "b": 0.0}, "b": {"a": 0.0, "b": 0.0}},
        "b": {"a": {"a": 0.0, "b": 0.0}, "b": {"a": 0.0, "b": 0.0}},
    }
    hints = {"a": 0.5, "b": 0.6, "ba": 0.2, "bb": 0.5, "aa": 0.55, "ab": 0.1}
    actor = Chooser()
    found = await search(
        decision_task(tree, hints), actor, method="best_first", iterations=20, branching=8, value="environment"
    )
    assert list(dict.fromkeys(where for where, _ in actor.asked)) == ["", "b", "a", "aa", "bb", "ba", "ab"]
    assert found.root.extra["stopped"] == "exhausted"


@pytest.mark.parametrize("seed", range(10))
async def test_a_beam_of_one_is_the_best_of_n_at_each_step(seed: int) -> None:
    tree = {x: {y: {z: (ord(x) + 3 * ord(y) + 7 * ord(z)) % 10 / 10 for z in "abc"} for y in "abc"} for x in "abc"}
    hints = {path: sum(map(ord, path)) * 5 % 7 / 7 for x in "abc" for path in (x, x + "a", x + "b", x + "c")}
    actor = Chooser(letters="abc")
    task = decision_task(tree, hints)
    found = await search(task, actor, seed=seed, method="beam", width=1, branching=3, value="environment")
    drawn: dict[str, list[str]] = defaultdict(list)
    for where, letter in actor.asked:
        drawn[where].append(letter)
    world, here = DecisionWorld(), ""
    world.reset(task, 0)

    def score(path: str) -> float:
        world.restore(path.encode())
        return world.check().score

    for _ in range(3):
        candidates = drawn.pop(here)
        assert len(candidates) == 3
        here = max((here + letter for letter in candidates), key=score)
    assert not drawn
    reached = {moves(run).lower(): run.outcome.reward for run in found.runs}
    assert reached[here] == max(reward for reward in reached.values() if reward is not None) == score(here)


async def test_a_wider_beam_keeps_more_and_ended_runs_leave_it() -> None:
    tree = {"a": 0.7, "b": {"a": {"a": 1.0, "b": 0.0}, "b": 0.3}, "c": {"a": 0.0, "b": 0.0}}
    actor = Chooser(letters="abc")
    parameters: dict[str, Any] = {"method": "beam", "branching": 12, "value": "environment", "max_invalid": 1}
    hints = {"b": 0.6, "c": 0.1, "ba": 0.5}
    narrow = await search(decision_task(tree, hints), actor, width=1, **parameters)
    assert {where for where, _ in actor.asked} == {""}
    assert [moves(run) for run in narrow.runs] == ["a"]
    actor = Chooser(letters="abc")
    await search(decision_task(tree, hints), actor, width=2, **parameters)
    assert {where for where, _ in actor.asked} == {"", "b", "ba"}


async def test_a_search_ends_with_the_first_success_if_that_is_all_that_is_wanted() -> None:
    tree = {"a": {"a": 0.0, "b": 1.0}, "b": {"a": {"a": 0.2, "b": 0.1}, "b": 0.1}}
    for method, own in {"mcts": {}, "best_first": {}, "beam": {"width": 2}}.items():
        parameters: dict[str, Any] = {"method": method, "branching": 8, "value": "environment", **own}
        whole = await search(decision_task(tree, {"ba": 0.5}), **parameters)
        solved = await search(decision_task(tree, {"ba": 0.5}), until="solved", **parameters)
        assert whole.root.extra["stopped"] == ("iterations" if method == "mcts" else "exhausted")
        assert solved.root.extra["stopped"] == "solved"
        assert "success" in {run.outcome.status for run in solved.runs}
        assert solved.root.visits < whole.root.visits


# --- the tree ----------------------------------------------------------------------------------------------------


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
        verdict = await CheckOutcome().verify(task, run, DecisionWorld())
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
        assert len(found.runs) > 1
        for run in found.runs:
            environment = make(spec)
            verdict = await CheckOutcome().verify(task, run, environment)
            environment.close()
            assert (verdict.status, verdict.passed) == ("scored", run.outcome.status == "success")


# --- critics, costs, faults --------------------------------------------------------------------------------------


async def test_a_critic_leads_the_search() -> None:
    critic, actor = Appraiser(a=0.1, b=0.8, ba=0.7, bb=0.2, start=0.3), Chooser()
    found = await search(decision_task(DEEP), actor, critic, method="beam", branching=8, value="critic")
    assert {where for where, _ in actor.asked} == {"", "b", "ba"}
    assert sorted(critic.asked) == ["a", "b", "ba", "bb"]
    assert [found.by_place[place].extra["estimate"] for place in ("a", "b", "ba", "bb")] == [0.1, 0.8, 0.7, 0.2]
    assert found.by_place["bab"].extra["estimate"] == 0.9
    assert found.root.extra["costs"]["critic_calls"] == 4
    assert found.root.extra["costs"]["actor_calls"] == len(actor.asked) == 24


async def test_a_critic_without_a_score_is_asked_again_and_then_blamed() -> None:
    said = iter(["hm", "12", "Score: 7", "hm", "no", "?"])
    critic = ScriptedPolicy(
        PolicySettings(policy="scripted"), lambda _: Turn(actions=[MessageAction(content=next(said))])
    )
    found = await search(decision_task(DEEP), None, critic, iterations=1, value="critic")
    assert found.root.extra["estimate"] == 0.7
    assert found.root.extra["costs"]["critic_calls"] == 3
    with pytest.raises(PolicyError, match="malformed: the critic gave no score from 0 to 10: '\\?'"):
        await search(decision_task(DEEP), None, critic, iterations=1, value="critic")


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
    class Closing(DecisionWorld):
        def close(self) -> None:
            closed.append(self)

    closed: list[DecisionWorld] = []
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
    ("parameters", "said"),
    [
        ({"method": "beam", "c": 2.0}, "`c` goes with `method: mcts`"),
        ({"method": "mcts", "width": 2}, "`width` goes with `method: beam`"),
        ({"method": "best_first", "selection": "uct"}, "`selection` goes with `method: mcts`"),
        ({"method": "beam", "iterations": 4}, "`iterations` goes with"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        TreeSearch(**parameters)
