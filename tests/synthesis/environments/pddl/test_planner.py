"""Plans that are known, plans that cannot be, and limits."""

from __future__ import annotations

import pytest

from agentmill.synthesis.environments.pddl.grounding import Grounded
from agentmill.synthesis.environments.pddl.heuristic import AdditiveHeuristic
from agentmill.synthesis.environments.pddl.planner import PlanLimits, plan
from tests.synthesis.environments.examples import (
    BLOCKS,
    BLOCKS_PROBLEM,
    HANOI,
    WAREHOUSE,
    WAREHOUSE_PROBLEM,
    blocks_problem,
    grounded,
    hanoi_problem,
)

BEST_FIRST_ONLY = PlanLimits(optimal_expansions=0)


def solves(world: Grounded, actions: list[int] | None) -> bool:
    state = world.init
    for number in actions or []:
        if number not in world.applicable(state):
            return False
        state = world.apply(state, number)
    return world.is_goal(state)


@pytest.mark.parametrize(("n_discs", "optimum"), [(1, 1), (3, 7), (5, 31)])
def test_hanoi_takes_its_known_optimum(n_discs: int, optimum: int) -> None:
    world = grounded(HANOI, hanoi_problem(n_discs))
    found = plan(world)
    assert found.plan is not None
    assert (len(found.plan), found.optimal, found.exhausted) == (optimum, True, False)
    assert solves(world, found.plan)


def test_the_examples_take_what_a_person_would() -> None:
    for domain, problem, optimum in ((WAREHOUSE, WAREHOUSE_PROBLEM, 5), (BLOCKS, BLOCKS_PROBLEM, 6)):
        found = plan(grounded(domain, problem))
        assert found.plan is not None
        assert (len(found.plan), found.optimal) == (optimum, True)


@pytest.mark.parametrize("seed", range(4))
def test_best_first_search_finds_plans_that_are_not_much_longer(seed: int) -> None:
    world = grounded(BLOCKS, blocks_problem(6, seed))
    found, best = plan(world, BEST_FIRST_ONLY), plan(world)
    assert found.plan is not None
    assert best.plan is not None
    assert solves(world, found.plan)
    assert not found.optimal
    assert len(best.plan) <= len(found.plan) <= 2 * len(best.plan)


def test_large_problems_are_solved_beyond_the_reach_of_breadth_first_search() -> None:
    world = grounded(BLOCKS, blocks_problem(14, seed=3))
    found = plan(world, PlanLimits(optimal_expansions=100))
    assert solves(world, found.plan)
    assert found.expansions > 100


@pytest.mark.parametrize("limits", [PlanLimits(), BEST_FIRST_ONLY], ids=["breadth-first", "best-first"])
def test_an_exhausted_space_proves_that_there_is_no_plan(limits: PlanLimits) -> None:
    circle = BLOCKS_PROBLEM.replace("(on green blue) (on blue red)", "(on green blue) (on blue red) (on red green)")
    found = plan(grounded(BLOCKS, circle), limits)
    assert (found.plan, found.exhausted) == (None, True)


def test_an_unreachable_goal_is_known_without_search() -> None:
    found = plan(grounded(WAREHOUSE, WAREHOUSE_PROBLEM.replace("(at rob aisle))", "(path dock depot))")))
    assert (found.plan, found.exhausted, found.expansions) == (None, True, 0)


def test_a_goal_that_holds_needs_no_action() -> None:
    found = plan(
        grounded(WAREHOUSE, WAREHOUSE_PROBLEM.replace("(lies crate1 depot)", "").replace("rob aisle", "rob dock"))
    )
    assert (found.plan, found.expansions, found.optimal) == ([], 0, True)


def test_limits_end_the_search_without_a_verdict() -> None:
    world = grounded(BLOCKS, blocks_problem(8, seed=0))
    few = plan(world, PlanLimits(max_expansions=5))
    assert (few.plan, few.exhausted, few.expansions) == (None, False, 5)
    most = 20 * len(world.actions)
    some = plan(world, PlanLimits(optimal_expansions=0, max_estimated=most))
    assert (some.plan, some.exhausted) == (None, False)
    assert 1 <= some.expansions < 20


def test_a_plan_may_start_elsewhere() -> None:
    world = grounded(HANOI, hanoi_problem(3))
    whole = plan(world).plan
    assert whole is not None
    rest = plan(world, start=world.apply(world.init, whole[0])).plan
    assert rest is not None
    assert len(rest) == len(whole) - 1


def test_the_additive_heuristic_adds_up_the_goals() -> None:
    world = grounded(WAREHOUSE, WAREHOUSE_PROBLEM)
    estimate = AdditiveHeuristic(world)
    # at rob aisle: 1; lies crate1 depot: drop 1 + at rob depot 2 + carries (lift 1 + at rob aisle 1); not busy: 0.
    assert estimate(world.init) == 1 + (1 + 2 + 2) + 0
    state = world.init
    for number in plan(world).plan or []:
        state = world.apply(state, number)
    assert estimate(state) == 0
