"""Steps per second of the grounded stepper against unified-planning's sequential simulator, on the same plans.

A step is: list every applicable action, apply the plan's next one, ask whether the goal holds. Grounding is not counted
on either side. Both walk the same states: the lists are compared on the way, action by action.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from agentmill.synthesis.environments.pddl.domain import Domain
from agentmill.synthesis.environments.pddl.environment import PddlEnvironment
from agentmill.synthesis.environments.pddl.grounding import Grounded, ground
from agentmill.synthesis.environments.pddl.planner import plan
from agentmill.synthesis.environments.pddl.reader import read_domain, read_problem

TARGET = 500
MIN_SECONDS = 0.5
SIZES = (4, 8, 12)


def blocks_problem(n_blocks: int, seed: int) -> str:
    """A random blocks problem: towers to be rebuilt."""
    chance = random.Random(seed)
    facts: list[str] = ["(hand-empty)"]
    goal: list[str] = []
    for conditions in (facts, goal):
        blocks = [f"b{number}" for number in range(n_blocks)]
        chance.shuffle(blocks)
        for position, block in enumerate(blocks):
            if position and chance.random() < 0.6:
                conditions.append(f"(on {block} {blocks[position - 1]})")
            else:
                conditions += [f"(on-table {block})"] + ([f"(clear {blocks[position - 1]})"] if position else [])
        conditions.append(f"(clear {blocks[-1]})")
    objects = " ".join(f"b{number}" for number in range(n_blocks))
    return (
        f"(define (problem p) (:domain blocks) (:objects {objects}) (:init {' '.join(facts)})"
        f" (:goal (and {' '.join(goal)})))"
    )


def own_walk(grounded: Grounded, actions: list[int]) -> list[list[int]]:
    state, listed = grounded.init, []
    for action in actions:
        listed.append(grounded.applicable(state))
        state = grounded.apply(state, action)
        grounded.is_goal(state)
    return listed


class Simulated:
    """The same problem in unified-planning."""

    def __init__(self, domain_text: str, problem_text: str) -> None:
        from unified_planning.io import PDDLReader
        from unified_planning.shortcuts import SequentialSimulator, get_environment

        get_environment().credits_stream = None
        self.problem = PDDLReader().parse_problem_string(domain_text, problem_text)
        self.simulator = SequentialSimulator(self.problem)

    def walk(self, calls: list[tuple[Any, list[Any]]]) -> list[list[str]]:
        """The applicable actions before each step, in words."""
        state, listed = self.simulator.get_initial_state(), []
        for action, arguments in calls:
            applicable = list(self.simulator.get_applicable_actions(state))
            listed.append(sorted(" ".join([a.name, *map(str, parameters)]) for a, parameters in applicable))
            state = self.simulator.apply(state, action, arguments)
            self.simulator.is_goal(state)
        return listed

    def call(self, name: str, arguments: tuple[str, ...]) -> tuple[Any, list[Any]]:
        """A step as the simulator takes it."""
        return self.problem.action(name), [self.problem.object(argument) for argument in arguments]


def steps_per_second(walk: Callable[[], object], n_steps: int) -> float:
    walk()
    start, rounds = time.perf_counter(), 0
    while time.perf_counter() - start < MIN_SECONDS:
        walk()
        rounds += 1
    return rounds * n_steps / (time.perf_counter() - start)


def compare(domain_text: str, domain: Domain, n_blocks: int) -> float:
    """Print one line; returns the ratio."""
    text = blocks_problem(n_blocks, seed=n_blocks)
    grounded = ground(domain, read_problem(text, domain))
    actions = plan(grounded).plan
    if not actions:
        raise RuntimeError(f"no plan for {n_blocks} blocks")
    simulated = Simulated(domain_text, text)
    calls = [simulated.call(grounded.actions[number].name, grounded.actions[number].arguments) for number in actions]
    names = [" ".join([action.name, *action.arguments]) for action in grounded.actions]
    own_lists = [sorted(names[number] for number in listed) for listed in own_walk(grounded, actions)]
    if own_lists != simulated.walk(calls):
        raise RuntimeError("the two list different applicable actions")
    own = steps_per_second(lambda: own_walk(grounded, actions), len(actions))
    theirs = steps_per_second(lambda: simulated.walk(calls), len(actions))
    print(
        f"{n_blocks:>3} blocks, {len(grounded.actions):>4} ground actions, {len(actions):>3} steps: "
        f"{own:>9,.0f} against {theirs:>6.1f} steps/s, ratio {own / theirs:,.0f}"
    )
    return own / theirs


def main() -> None:
    domain_text = PddlEnvironment.examples()[1][0].source
    domain = read_domain(domain_text)
    ratios = [compare(domain_text, domain, n_blocks) for n_blocks in SIZES]
    verdict = "met" if min(ratios) >= TARGET else "MISSED"
    print(f"stepper: smallest ratio {min(ratios):,.0f}, target {TARGET} {verdict}")


if __name__ == "__main__":
    main()
