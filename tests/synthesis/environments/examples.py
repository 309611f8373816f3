"""Planning worlds for tests, small and known."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import msgspec

from agentmill.synthesis.environments.pddl.domain import Domain, Problem
from agentmill.synthesis.environments.pddl.environment import PddlEnvironment
from agentmill.synthesis.environments.pddl.grounding import Grounded, ground
from agentmill.synthesis.environments.pddl.reader import read_domain, read_problem

(WAREHOUSE_SPEC, WAREHOUSE_TASK), (BLOCKS_SPEC, BLOCKS_TASK) = PddlEnvironment.examples()
WAREHOUSE, BLOCKS = WAREHOUSE_SPEC.source, BLOCKS_SPEC.source
WAREHOUSE_PROBLEM: str = WAREHOUSE_TASK.initial_state["problem"]
BLOCKS_PROBLEM: str = BLOCKS_TASK.initial_state["problem"]

HANOI = """
(define (domain hanoi)
  (:requirements :strips)
  (:predicates (smaller ?x ?y) (on ?x ?y) (clear ?x))
  (:action move
    :parameters (?disc ?from ?to)
    :precondition (and (smaller ?disc ?to) (on ?disc ?from) (clear ?disc) (clear ?to))
    :effect (and (clear ?from) (on ?disc ?to) (not (on ?disc ?from)) (not (clear ?to)))))
"""


def warehouse(**changes: Any) -> PddlEnvironment:
    """Reset; ``changes`` are of the parameters."""
    spec = msgspec.structs.replace(WAREHOUSE_SPEC, parameters={**WAREHOUSE_SPEC.parameters, **changes})
    environment = PddlEnvironment(spec)
    environment.reset(WAREHOUSE_TASK, 0)
    return environment


def hanoi_problem(n_discs: int) -> str:
    """The optimum is 2 ** n_discs - 1 moves."""
    discs = [f"d{number}" for number in range(n_discs)]
    order = [*discs, "left"]
    smaller = [f"(smaller {disc} {peg})" for disc in discs for peg in ("left", "middle", "right")]
    smaller += [f"(smaller {small} {big})" for n, small in enumerate(discs) for big in discs[n + 1 :]]
    tower = [f"(on {upper} {lower})" for upper, lower in pairwise(order)]
    goal = [f"(on {upper} {lower})" for upper, lower in zip(discs, [*discs[1:], "right"], strict=True)]
    return (
        f"(define (problem tower) (:domain hanoi) (:objects left middle right {' '.join(discs)})"
        f" (:init {' '.join(smaller + tower)} (clear {discs[0]}) (clear middle) (clear right))"
        f" (:goal (and {' '.join(goal)})))"
    )


def blocks_problem(n_blocks: int, seed: int) -> str:
    """Random towers, to be rebuilt as one tower in alphabetic order."""
    chance = random.Random(seed)
    names = [f"b{number}" for number in range(n_blocks)]
    mixed = chance.sample(names, n_blocks)
    facts = ["(hand-empty)", f"(on-table {mixed[0]})", f"(clear {mixed[-1]})"]
    for lower, upper in pairwise(mixed):
        facts += [f"(on {upper} {lower})"] if chance.random() < 0.5 else [f"(on-table {upper})", f"(clear {lower})"]
    goal = [f"(on {upper} {lower})" for lower, upper in pairwise(names)]
    return (
        f"(define (problem p) (:domain blocks) (:objects {' '.join(names)}) (:init {' '.join(facts)})"
        f" (:goal (and {' '.join(goal)})))"
    )


def read(domain_text: str, problem_text: str) -> tuple[Domain, Problem]:
    """Both texts, parsed."""
    domain = read_domain(domain_text)
    return domain, read_problem(problem_text, domain)


def grounded(domain_text: str, problem_text: str) -> Grounded:
    """Both texts, parsed and grounded."""
    return ground(*read(domain_text, problem_text))


def reachable_states(world: Grounded) -> set[int]:
    """All of them, by exhaustion."""
    seen, queue = {world.init}, [world.init]
    for state in queue:
        for action in world.applicable(state):
            child = world.apply(state, action)
            if child not in seen:
                seen.add(child)
                queue.append(child)
    return seen
