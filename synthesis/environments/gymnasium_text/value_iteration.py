"""Exact policies of games whose transition table is known."""

from __future__ import annotations

from typing import Any

import numpy as np

Table = dict[int, dict[int, list[tuple[float, int, float, bool]]]]
"""State and action to outcomes (probability, next state, reward, whether the game ends), as gymnasium's ``P``."""


def solve(table: Table, discount: float = 0.99, tolerance: float = 1e-10) -> tuple[list[float], list[int]]:
    """The optimal value and action of every state, by value iteration (Bellman, "Dynamic programming", 1957).

    Values are within ``tolerance`` times ``discount / (1 - discount)``. Among equally good actions the first is taken;
    the discount makes shorter ways better.
    """
    probability, successor, reward, going_on = _arrays(table)
    values: np.ndarray[Any, np.dtype[np.float64]] = np.zeros(len(table))
    while True:
        action_values = (probability * (reward + discount * going_on * values[successor])).sum(axis=2)
        improved = action_values.max(axis=1)
        converged = np.abs(improved - values).max() < tolerance
        values = improved
        if converged:
            best = action_values >= action_values.max(axis=1, keepdims=True) - 1e-8
            return values.tolist(), best.argmax(axis=1).tolist()


def _arrays(table: Table) -> tuple[np.ndarray[Any, Any], ...]:
    """(state, action, outcome) arrays of probabilities, next states, rewards and whether the game goes on."""
    width = max(len(outcomes) for actions in table.values() for outcomes in actions.values())
    shape = (len(table), len(table[0]), width)
    probability, reward, going_on = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    successor = np.zeros(shape, dtype=np.int64)
    for state, actions in table.items():
        for action, outcomes in actions.items():
            for place, (chance, after, gain, ends) in enumerate(outcomes):
                probability[state, action, place] = chance
                successor[state, action, place] = after
                reward[state, action, place] = gain
                going_on[state, action, place] = 0.0 if ends else 1.0
    return probability, successor, reward, going_on
