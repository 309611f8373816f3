"""Which rows are drawn: shares, quotas, repeats, and that nothing but the seed and the ids decides."""

from __future__ import annotations

import math
import random

import pytest

from agentmill.pipelines.mixture import Mixture, Pool, draw, largest, shares


def pool_of(*counts: int, size: int = 1) -> Pool:
    """Rows of tables 0, 1, …; those of even number have the value "even"."""
    pool = Pool()
    for table, count in enumerate(counts):
        for number in range(count):
            pool.add(f"{table}-{number}", table, size, [(0, "even" if number % 2 == 0 else "odd")])
    return pool


def drawn(pool: Pool, targets: list[float], cap: float = math.inf, repeat: int = 1, seed: int = 0) -> Mixture:
    return draw(pool, pool.order(seed), targets, {0: cap}, repeat)


@pytest.mark.parametrize(
    ("weights", "size", "expected"),
    [
        ({"a": 0.2, "b": 0.8}, 10, {"a": 2, "b": 8}),
        ({"a": 0.5, "b": 0.5}, 5, {"a": 3, "b": 2}),
        ({"b": 0.5, "a": 0.5}, 5, {"a": 3, "b": 2}),
        ({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, 11, {"a": 4, "b": 4, "c": 3}),
        ({"a": 0.1, "b": 0.2, "c": 0.7}, 10, {"a": 1, "b": 2, "c": 7}),
        ({"a": 0.01, "b": 0.99}, 10, {"a": 0, "b": 10}),
        ({"a": 0.2, "b": 0.8000009}, 10**8, {"a": 19999982, "b": 80000018}),
        ({"a": 0.3, "b": 0.7}, 0, {"a": 0, "b": 0}),
    ],
)
def test_shares(weights: dict[str, float], size: int, expected: dict[str, int]) -> None:
    assert shares(weights, size) == expected


def test_each_table_gets_its_share() -> None:
    mixture = drawn(pool_of(10, 10), [3, 7])
    assert (sum(mixture.copies[:10]), sum(mixture.copies[10:]), list(mixture.sizes)) == (3, 7, [3, 7])
    assert max(mixture.copies) == 1
    assert mixture.full == {}


def test_rows_come_once_before_any_comes_again() -> None:
    mixture = drawn(pool_of(4), [10], repeat=3)
    assert sorted(mixture.copies) == [2, 2, 3, 3]
    assert list(drawn(pool_of(4), [10], repeat=2).copies) == [2, 2, 2, 2]
    pool = pool_of(4)
    first = pool.order(0)[:2]
    assert [row for row, copies in enumerate(mixture.copies) if copies == 3] == sorted(first)


def test_a_quota_is_never_passed_and_names_what_it_keeps_out() -> None:
    mixture = drawn(pool_of(10), [10], cap=3)
    assert (sum(mixture.copies), len(mixture.full)) == (6, 4)
    assert {(0, "even"), (0, "odd")} == set(mixture.full.values())
    assert list(drawn(pool_of(2), [9], cap=3, repeat=9).copies) == [3, 3]
    assert sum(drawn(pool_of(10, size=2), [99], cap=5).copies) == 4


def test_the_last_row_may_pass_a_size_in_tokens() -> None:
    mixture = drawn(pool_of(10, size=3), [10])
    assert (sum(mixture.copies), list(mixture.sizes)) == (4, [12])


def largest_of(pool: Pool, weights: dict[str, float], cap: float = math.inf, repeat: int = 1) -> list[int]:
    return list(largest(pool, pool.order(0), weights, {0: cap}, repeat).sizes)


def test_the_largest_mixture_has_the_weights() -> None:
    pool = pool_of(10, 100)
    assert largest_of(pool, {"a": 0.2, "b": 0.8}) == [10, 40]
    assert largest_of(pool, {"a": 0.2, "b": 0.8}, repeat=2) == [20, 80]
    assert largest_of(pool, {"a": 0.5, "b": 0.5}, cap=6) == [6, 6]
    assert largest_of(pool, {"a": 0.5, "b": 0.5}, cap=1) == [1, 1]
    assert largest_of(pool_of(0, 5), {"a": 0.5, "b": 0.5}) == [0, 0]
    assert largest_of(pool_of(7, 7, size=10), {"a": 0.5, "b": 0.5}, cap=40) == [40, 40]


def test_the_order_of_rows_does_not_matter_and_the_seed_does() -> None:
    rows = [(f"r{number}", number % 2) for number in range(50)]
    found = []
    for shuffle in range(3):
        pool = Pool()
        for row_id, table in random.Random(shuffle).sample(rows, len(rows)):
            pool.add(row_id, table, 1)
        mixture = drawn(pool, [5, 9])
        found.append({row_id for row_id, copies in zip(pool.ids, mixture.copies, strict=True) if copies})
    assert found[0] == found[1] == found[2]
    other = drawn(pool_of(50), [5], seed=1)
    assert list(other.copies) != list(drawn(pool_of(50), [5]).copies)


def test_draws_are_uniform() -> None:
    pool = pool_of(1000)
    hits = sum(row < 500 for row in pool.order(3)[:500])
    assert 200 < hits < 300
