"""Exact values that are known."""

from __future__ import annotations

import pytest

from agentmill.synthesis.environments.gymnasium_text.environment import solve


def test_a_chain_is_worth_its_discounted_end() -> None:
    """Going right from 0 over 1 to 2 pays 1 at the end; going left ends at once and pays a half."""
    table = {
        0: {0: [(1.0, 0, 0.5, True)], 1: [(1.0, 1, 0.0, False)]},
        1: {0: [(1.0, 0, 0.0, False)], 1: [(1.0, 2, 1.0, True)]},
        2: {0: [(1.0, 2, 0.0, True)], 1: [(1.0, 2, 0.0, True)]},
    }
    values, policy = solve(table, discount=0.9)
    assert values == pytest.approx([0.9, 1.0, 0.0])
    assert policy == [1, 1, 0]
    assert solve(table, discount=0.4)[1] == [0, 1, 0]


def test_chances_are_averaged() -> None:
    table = {0: {0: [(0.25, 1, 1.0, True), (0.75, 0, 0.0, False)]}, 1: {0: [(1.0, 1, 0.0, True)]}}
    values, _ = solve(table, discount=0.8)
    assert values[0] == pytest.approx(0.25 / (1 - 0.8 * 0.75))


def test_the_slippery_lake_has_its_published_value() -> None:
    import gymnasium

    game = gymnasium.make("FrozenLake-v1", map_name="4x4", is_slippery=True).unwrapped
    values, policy = solve(game.P, discount=0.99)
    assert values[0] == pytest.approx(0.5420, abs=1e-4)
    assert policy[:4] == [0, 3, 3, 3]
