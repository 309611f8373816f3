"""Search trees in worlds whose values are known: what is tried, in which order, what it is found to be worth."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from typing import Any

import pytest

from agentmill.schemas.records.trajectory import MessageAction
from agentmill.synthesis.policies.policy import PolicySettings, Turn
from agentmill.synthesis.policies.scripted import ScriptedPolicy
from tests.decision_environment import (
    Chooser,
    DecisionEnvironment,
    best_value,
    chance_value,
    decision_task,
)
from tests.synthesis.strategies.searching import DEEP, moves, search


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
    world, here = DecisionEnvironment(), ""
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
