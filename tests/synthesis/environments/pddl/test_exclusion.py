"""What is said to exclude each other never holds together, and the usual pairs are found."""

from __future__ import annotations

import pytest

from agentmill.synthesis.environments.pddl import exclusion
from agentmill.synthesis.environments.pddl.exclusion import exclusions
from agentmill.synthesis.environments.pddl.grounding import bits
from tests.synthesis.environments.examples import (
    BLOCKS,
    HANOI,
    WAREHOUSE,
    WAREHOUSE_PROBLEM,
    blocks_problem,
    grounded,
    hanoi_problem,
    reachable_states,
)


@pytest.mark.parametrize(
    ("domain", "problem"),
    [(BLOCKS, blocks_problem(4, seed=2)), (HANOI, hanoi_problem(4)), (WAREHOUSE, WAREHOUSE_PROBLEM)],
    ids=["blocks", "hanoi", "warehouse"],
)
def test_no_reachable_state_holds_an_excluded_pair(domain: str, problem: str) -> None:
    world = grounded(domain, problem)
    excluded = exclusions(world)
    for state in reachable_states(world):
        for atom in bits(state):
            assert not state & excluded[atom]


def test_a_large_problem_takes_no_time_and_excludes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = grounded(WAREHOUSE, WAREHOUSE_PROBLEM)
    assert any(exclusions(world))
    monkeypatch.setattr(exclusion, "MOST_PAIRS", len(world.atoms) * len(world.actions) - 1)
    assert not any(exclusions(world))


def test_one_thing_in_two_places_is_excluded() -> None:
    world = grounded(WAREHOUSE, WAREHOUSE_PROBLEM)
    excluded = exclusions(world)

    def are_exclusive(first: tuple[str, ...], second: tuple[str, ...]) -> bool:
        return bool(excluded[world.index[first]] >> world.index[second] & 1)

    assert are_exclusive(("lies", "crate1", "dock"), ("lies", "crate1", "depot"))
    assert are_exclusive(("lies", "crate1", "dock"), ("carries", "rob", "crate1"))
    assert are_exclusive(("carries", "rob", "crate1"), ("carries", "rob", "crate2"))
    assert not are_exclusive(("lies", "crate1", "dock"), ("lies", "crate2", "dock"))
    assert not are_exclusive(("carries", "rob", "crate1"), ("busy", "rob"))
