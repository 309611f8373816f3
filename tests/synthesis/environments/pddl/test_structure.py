"""Digests that do not see names and orders, and see everything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmill.synthesis.environments.pddl.structure import domain_structure, task_structure
from tests.hash_seeds import printed
from tests.synthesis.environments.examples import (
    BLOCKS,
    BLOCKS_PROBLEM,
    HANOI,
    WAREHOUSE,
    WAREHOUSE_PROBLEM,
    blocks_problem,
    hanoi_problem,
    read,
)
from tests.synthesis.environments.pddl.renaming import Renaming

WORLDS = [
    read(WAREHOUSE, WAREHOUSE_PROBLEM),
    read(BLOCKS, BLOCKS_PROBLEM),
    read(HANOI, hanoi_problem(3)),
    read(BLOCKS, blocks_problem(6, seed=1)),
]
PATHS = "(path dock aisle) (path aisle dock) (path aisle depot) (path depot aisle)"


@given(st.sampled_from(WORLDS), st.integers(0, 2**32))
def test_names_and_orders_do_not_count(world: tuple, seed: int) -> None:  # type: ignore[type-arg]
    domain, problem = world
    renaming = Renaming(seed)
    other_domain, other_problem = renaming.domain(domain), renaming.problem(problem)
    assert other_domain != domain
    assert domain_structure(other_domain) == domain_structure(domain)
    assert task_structure(other_domain, other_problem) == task_structure(domain, problem)


DOMAIN_CHANGES = [
    ("(not (busy ?r)))\n", "(busy ?r))\n"),
    (" (not (= ?a ?b))", ""),
    ("(not (= ?a ?b))", "(= ?a ?b)"),
    ("(carries ?r ?c) (busy ?r)", "(carries ?r ?c)"),
    ("(:types place crate robot)", "(:types place crate - object robot - crate)"),
    ("(:constants depot - place)", "(:constants depot far - place)"),
    ("(busy ?r - robot)", "(busy ?r - robot) (spare ?r - robot)"),
    ("(at ?r ?p) (carries", "(at ?r depot) (carries"),
    ("(at ?r ?p) (lies ?c ?p)", "(at ?r ?p) (lies ?c depot)"),
]


@pytest.mark.parametrize(("old", "new"), DOMAIN_CHANGES)
def test_a_change_of_the_domain_counts(old: str, new: str) -> None:
    assert old in WAREHOUSE
    changed, problem = read(WAREHOUSE.replace(old, new, 1), WAREHOUSE_PROBLEM)
    domain, _ = read(WAREHOUSE, WAREHOUSE_PROBLEM)
    assert domain_structure(changed) != domain_structure(domain)
    assert task_structure(changed, problem) != task_structure(domain, problem)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(lies crate1 depot)", "(lies crate1 dock)"),
        ("(not (busy rob))", "(busy rob)"),
        ("(lies crate2 dock)", "(lies crate2 aisle)"),
        (" (path depot aisle)", ""),
        ("crate1 crate2 - crate", "crate1 crate2 crate3 - crate"),
        (" (at rob aisle)", ""),
    ],
)
def test_a_change_of_the_problem_counts(old: str, new: str) -> None:
    assert old in WAREHOUSE_PROBLEM
    domain, problem = read(WAREHOUSE, WAREHOUSE_PROBLEM)
    _, changed = read(WAREHOUSE, WAREHOUSE_PROBLEM.replace(old, new))
    assert task_structure(domain, problem) != task_structure(domain, changed)


def test_the_goal_may_name_either_of_two_like_crates() -> None:
    alike = WAREHOUSE_PROBLEM.replace("(lies crate2 dock)", "(lies crate2 aisle)")
    domain, first = read(WAREHOUSE, alike)
    _, second = read(WAREHOUSE, alike.replace("(lies crate1 depot)", "(lies crate2 depot)"))
    assert task_structure(domain, first) == task_structure(domain, second)


def test_one_ring_is_not_two_rings() -> None:
    """Six places with two neighbours each: plain colour refinement cannot tell them apart."""

    def rings(pairs: str) -> str:
        paths = " ".join(f"(path {pair[0]} {pair[1]}) (path {pair[1]} {pair[0]})" for pair in pairs.split())
        text = WAREHOUSE_PROBLEM.replace("dock aisle - place", "dock a b c d e f - place").replace(PATHS, paths)
        text = text.replace("aisle", "dock")
        return task_structure(*read(WAREHOUSE, text))

    assert rings("ab bc cd de ef fa") != rings("ab bc ca de ef fd")
    assert rings("ab bc cd de ef fa") == rings("ac ce eb bd df fa")


PROGRAM = """
from tests.synthesis.environments.examples import *
from agentmill.synthesis.environments.pddl.planner import PlanLimits, plan
from agentmill.synthesis.environments.pddl.structure import domain_structure, task_structure
for domain_text, problem_text in ((WAREHOUSE, WAREHOUSE_PROBLEM), (BLOCKS, blocks_problem(7, 5))):
    domain, problem = read(domain_text, problem_text)
    world = ground(domain, problem)
    print(domain_structure(domain), task_structure(domain, problem), world.atoms, world.actions)
    print(plan(world), plan(world, PlanLimits(optimal_expansions=0)))
"""


def test_digests_groundings_and_plans_are_the_same_under_every_hash_seed() -> None:
    [told] = printed(PROGRAM)
    assert "unstack" in told
