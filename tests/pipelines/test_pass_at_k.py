"""pass@k against the hypergeometric distribution, and for which k it is given."""

from __future__ import annotations

import pytest
from scipy import stats

from agentmill.pipelines.pass_at_k import pass_at_k, pass_at_sizes, tasks_by_k


@pytest.mark.parametrize(("attempts", "successes", "k"), [(5, 2, 1), (5, 2, 3), (10, 0, 4), (4, 4, 4), (200, 13, 100)])
def test_pass_at_k_is_the_share_of_subsets_with_a_success(attempts: int, successes: int, k: int) -> None:
    misses = stats.hypergeom.pmf(0, attempts, successes, k)
    assert pass_at_k(attempts, successes, k) == pytest.approx(1 - misses)


@pytest.mark.parametrize(
    ("attempts", "sizes"),
    [
        (1, "1"),
        (2, "1 2"),
        (3, "1 2 3"),
        (4, "1 2 4"),
        (5, "1 2 4 5"),
        (6, "1 2 4 6"),
        (8, "1 2 4 8"),
        (9, "1 2 4 8 9"),
    ],
)
def test_it_is_given_for_powers_of_two_and_for_k_itself(attempts: int, sizes: str) -> None:
    assert [*pass_at_sizes({"a": [True] * attempts})] == sizes.split()


def test_one_dropped_episode_removes_no_figure() -> None:
    outcomes = {"a": [True, False, False, False], "b": [False] * 4, "c": [True, True, True]}
    assert tasks_by_k(outcomes) == {"1": 3, "2": 3, "4": 2}
    assert pass_at_sizes(outcomes) == pytest.approx({"1": 1.25 / 3, "2": 0.5, "4": 0.5})


def test_there_is_none_of_no_tasks() -> None:
    assert (tasks_by_k({}), pass_at_sizes({})) == ({}, {})
