"""Variants of a planning task, easier, harder or other by goal, start or objects, after AgentGen's Bi-Evol.

Every method yields problems that it believes to be on the right side; the generator measures them by their plans.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import msgspec

from agentmill.schemas.records.task import Task
from agentmill.synthesis.environments.pddl.domain import PddlError, Problem
from agentmill.synthesis.environments.pddl.grounding import Grounded, bits
from agentmill.synthesis.environments.pddl.planner import PlanLimits, plan
from agentmill.synthesis.generators.pddl_tasks.planning_environment import (
    GOAL_DRAWS,
    PlanningEnvironment,
    aiming_at,
    explore,
    goal_atoms,
    mask,
    starting_at,
)
from agentmill.synthesis.generators.pddl_tasks.start import Unsamplable

REACH = 4
"""How many actions longer the plan of a harder variant may be."""

NEAR = PlanLimits(max_expansions=3_000, optimal_expansions=3_000)
"""How far a start is searched whose goal is at the wanted distance."""


class Parent(msgspec.Struct, frozen=True):
    """The task that varies, with a plan for it."""

    task: Task
    problem: Problem
    grounded: Grounded
    plan: list[int]


Method = Callable[[PlanningEnvironment, Parent, random.Random], Problem | None]


def fewer_goals(_: PlanningEnvironment, parent: Parent, chance: random.Random) -> Problem | None:
    """A part of the goal."""
    goal = parent.problem.goal
    if len(goal) < 2:
        return None
    # Sorted, so that the goal keeps its order.
    kept = sorted(chance.sample(range(len(goal)), chance.randint(1, len(goal) - 1)))
    return msgspec.structs.replace(parent.problem, goal=tuple(goal[number] for number in kept))


def nearer_start(_: PlanningEnvironment, parent: Parent, chance: random.Random) -> Problem | None:
    """The same goal from a state on the way to it."""
    if len(parent.plan) < 2:
        return None
    state = parent.grounded.init
    for action in parent.plan[: chance.randint(1, len(parent.plan) - 1)]:
        state = parent.grounded.apply(state, action)
    return starting_at(parent.problem, parent.grounded, state)


def further_goal(environment: PlanningEnvironment, parent: Parent, chance: random.Random) -> Problem | None:
    """The same goal and more; or, where nothing can be added, another goal further away."""
    grounded, length = parent.grounded, len(parent.plan)
    near = explore(grounded, length + REACH)
    needs, forbids = grounded.goal_needs, grounded.goal_forbids
    beyond = [
        state
        for state, depth in zip(near.states, near.depths, strict=True)
        if depth > length and state & (needs | forbids) == needs
    ]
    weights = environment.scheme.weights(environment.domain)
    extra = [
        (state, bit)
        # A sample: each state is compared with all others, and there may be thousands.
        for state in chance.sample(beyond, min(len(beyond), 20))
        for bit in bits(state & ~grounded.init & ~needs)
        if grounded.atoms[bit][0] in weights and (near.distance(needs | 1 << bit, forbids) or 0) > length
    ]
    if extra:
        added = grounded.atoms[chance.choice(extra)[1]]
        more = aiming_at(parent.problem, [added]).goal
        return msgspec.structs.replace(parent.problem, goal=(*parent.problem.goal, *more))
    wanted = length + chance.randint(1, REACH)
    atoms = environment.draw_goal(near, wanted, length + 1, len(parent.problem.goal) + 1, chance)
    return aiming_at(parent.problem, atoms) if atoms else None


def more_objects(environment: PlanningEnvironment, parent: Parent, chance: random.Random) -> Problem | None:
    """A larger environment of the kind and a more distant goal, where the environment has rules for its objects."""
    counts = Counter(item.type for item in parent.problem.objects)
    free = [kind for kind, pool in environment.scheme.objects.items() if counts[kind] < len(pool.names)]
    if not free:
        return None
    counts[chance.choice(free)] += 1
    try:
        problem, grounded = environment.sample(chance, counts)
    except (Unsamplable, PddlError):
        return None
    wanted = len(parent.plan) + chance.randint(1, REACH)
    near = explore(grounded, wanted)
    atoms = environment.draw_goal(near, wanted, len(parent.plan) + 1, None, chance)
    return aiming_at(problem, atoms) if atoms else None


def other_goal(environment: PlanningEnvironment, parent: Parent, chance: random.Random) -> Problem | None:
    """Another goal of the same predicates at the same distance."""
    del environment
    length, goal = len(parent.plan), parent.problem.goal
    near = explore(parent.grounded, length)
    predicates = sorted(each.predicate for each in goal)
    weights = dict.fromkeys(predicates, 1.0)
    before = {(each.predicate, *each.arguments) for each in goal}
    for _ in range(GOAL_DRAWS):
        atoms = goal_atoms(parent.grounded, chance.choice(near.at(length)), weights, len(goal), chance)
        same_kind = sorted(atom[0] for atom in atoms) == predicates
        if same_kind and {*atoms} != before and near.distance(mask(parent.grounded, atoms)) == length:
            return aiming_at(parent.problem, atoms)
    return None


def other_start(_: PlanningEnvironment, parent: Parent, chance: random.Random) -> Problem | None:
    """The same goal from another state that is as far from it."""
    grounded, length = parent.grounded, len(parent.plan)
    # Twice as far: in a small environment all that is near is nearer to the goal, or further from it.
    states = explore(grounded, 2 * length).states[1:]
    for state in chance.sample(states, min(len(states), GOAL_DRAWS)):
        found = plan(grounded, NEAR, state).plan
        if found is not None and len(found) == length:
            return starting_at(parent.problem, grounded, state)
    return None


METHODS: dict[str, tuple[Method, ...]] = {
    "easier": (fewer_goals, nearer_start),
    "harder": (further_goal, more_objects),
    "other": (other_goal, other_start),
}
