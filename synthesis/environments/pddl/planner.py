"""A planner for grounded problems: breadth-first while that proves the optimum, then best-first.

Breadth-first search within ``optimal_expansions`` gives shortest plans and proves small problems unsolvable. Beyond
it, greedy best-first search with h_add (Bonet and Geffner, "Planning as heuristic search", 2001) finds plans, whose
superfluous actions are then removed. Ties are broken by order of discovery, so a plan depends on the problem alone.
"""

from __future__ import annotations

import heapq
from collections import deque

import msgspec

from agentmill.synthesis.environments.pddl.grounding import Grounded
from agentmill.synthesis.environments.pddl.heuristic import AdditiveHeuristic


class PlanLimits(msgspec.Struct, frozen=True):
    """How long to search, in expanded states, and of best-first search in the ground actions that estimates go over.

    An estimate goes over all of them, and one expansion needs many estimates. With 5·10⁷ it ends after about
    half a minute on one core.
    """

    max_expansions: int = 30_000
    optimal_expansions: int = 20_000
    max_estimated: int = 50_000_000


class PlanResult(msgspec.Struct, frozen=True):
    """A plan as indices into ``Grounded.actions``, or ``None``.

    ``optimal``: no plan is shorter. ``exhausted``: there is provably no plan. ``expansions`` counts both searches.
    """

    plan: list[int] | None
    expansions: int
    exhausted: bool
    optimal: bool


Parents = dict[int, tuple[int, int]]
"""State to (the state before it, the action between them); the start maps to (start, -1)."""


def plan(grounded: Grounded, limits: PlanLimits = PlanLimits(), start: int | None = None) -> PlanResult:
    """Search for a plan from ``start``, the initial state by default."""
    start = grounded.init if start is None else start
    if grounded.is_goal(start):
        return PlanResult([], 0, exhausted=False, optimal=True)
    if not grounded.reachable_goal:
        return PlanResult(None, 0, exhausted=True, optimal=False)
    first = _breadth_first(grounded, start, min(limits.optimal_expansions, limits.max_expansions))
    if first.plan is not None or first.exhausted:
        return first
    second = _best_first(grounded, start, limits.max_expansions - first.expansions, limits.max_estimated)
    return msgspec.structs.replace(second, expansions=first.expansions + second.expansions)


def _breadth_first(grounded: Grounded, start: int, budget: int) -> PlanResult:
    parents: Parents = {start: (start, -1)}
    queue = deque([start])
    expansions = 0
    while queue:
        if expansions >= budget:
            return PlanResult(None, expansions, exhausted=False, optimal=False)
        state = queue.popleft()
        expansions += 1
        for action in grounded.applicable(state):
            child = grounded.apply(state, action)
            if child not in parents:
                parents[child] = (state, action)
                if grounded.is_goal(child):
                    return PlanResult(_path(parents, child), expansions, exhausted=False, optimal=True)
                queue.append(child)
    return PlanResult(None, expansions, exhausted=True, optimal=False)


def _best_first(grounded: Grounded, start: int, budget: int, most_estimated: int) -> PlanResult:
    estimate = AdditiveHeuristic(grounded)
    parents: Parents = {start: (start, -1)}
    first = estimate(start)
    queue = [] if first is None else [(first, 0, start)]
    expansions = 0
    while queue:
        # Every state that is known has been estimated.
        if expansions >= budget or len(parents) * len(grounded.actions) > most_estimated:
            return PlanResult(None, expansions, exhausted=False, optimal=False)
        state = heapq.heappop(queue)[2]
        expansions += 1
        for action in grounded.applicable(state):
            child = grounded.apply(state, action)
            if child in parents:
                continue
            parents[child] = (state, action)
            if grounded.is_goal(child):
                shortened = _without_detours(grounded, start, _path(parents, child))
                return PlanResult(shortened, expansions, exhausted=False, optimal=False)
            cost = estimate(child)
            if cost is not None:
                heapq.heappush(queue, (cost, len(parents), child))
    return PlanResult(None, expansions, exhausted=True, optimal=False)


def _path(parents: Parents, state: int) -> list[int]:
    actions: list[int] = []
    while parents[state][1] >= 0:
        state, action = parents[state]
        actions.append(action)
    return actions[::-1]


def _without_detours(grounded: Grounded, start: int, actions: list[int]) -> list[int]:
    """Drop each action, with all that then become illegal, where the goal is still reached.

    Greedy action elimination (Nakhost and Müller, "Action elimination and plan neighborhood graph search", 2010).
    """
    position = 0
    while position < len(actions):
        state, kept = start, []
        for number, action in enumerate(actions):
            chosen = grounded.actions[action]
            legal = state & chosen.needs == chosen.needs and not state & chosen.forbids
            if number != position and legal:
                kept.append(action)
                state = grounded.apply(state, action)
        if grounded.is_goal(state):
            actions = kept
        else:
            position += 1
    return actions
