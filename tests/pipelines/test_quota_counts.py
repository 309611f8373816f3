"""Quotas: which values are full, and equal shares."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from agentmill.pipelines.quota_counts import QuotaCount, equal_shares, full, take


def quota(*values: str, at_most: int | None = None) -> QuotaCount:
    made = QuotaCount("room", at_most)
    for each in values:
        made.add(each.split())
    return made


def test_a_value_is_full_after_so_many() -> None:
    room = quota("hall", "hall", "kitchen", "", "hall kitchen", at_most=1)
    room.start(9, [])
    assert [room.full(row) for row in range(5)] == [None] * 5
    room.take(0)
    assert [room.full(row) for row in range(5)] == ["room=hall", "room=hall", None, None, "room=hall"]
    room.take(3)
    # One without a value is not bounded.
    assert room.full(3) is None
    assert (room.of(3), room.of(4), room.distinct) == ([], ["room=hall", "room=kitchen"], 2)
    room.start(9, [])
    assert room.full(0) is None


def test_the_first_quota_that_is_full_is_named() -> None:
    two = [quota("hall", "hall", at_most=2), quota("a", "a", at_most=1)]
    for each in two:
        each.start(2, [])
    assert full(two, 1) is None
    take(two, 0)
    assert full(two, 1) == "room=a"


@pytest.mark.parametrize(
    ("counts", "forced", "size", "shares", "more"),
    [
        ((10, 10, 2), (0, 0, 0), 10, (4, 4, 2), 0),
        ((10, 10, 10), (0, 0, 0), 10, (3, 3, 3), 1),
        ((10, 10, 2), (6, 0, 0), 10, (6, 2, 2), 0),
        ((10, 10, 10), (5, 0, 0), 10, (5, 2, 2), 1),
        ((1, 1), (0, 0), 5, (1, 1), 3),
        ((7,), (0,), 5, (5,), 0),
    ],
)
def test_equal_shares(
    counts: tuple[int, ...], forced: tuple[int, ...], size: int, shares: tuple[int, ...], more: int
) -> None:
    found, most, spare = equal_shares(np.array(counts), np.array(forced), size)
    assert (tuple(found.tolist()), spare) == (shares, more)
    assert (most <= np.array(counts)).all()


def test_equal_shares_are_as_equal_as_can_be() -> None:
    chance = random.Random(3)
    for _ in range(50):
        values = [value for value in "abc" for _ in range(chance.randrange(1, 7))]
        size = chance.randrange(1, len(values) + 1)
        room = quota(*values)
        room.start(size, [])
        rows = chance.sample(range(len(values)), len(values))
        chosen = [row for row in rows if room.full(row) is None and room.take(row) is None]
        assert len(chosen) == size
        taken = {value: sum(values[row] == value for row in chosen) for value in set(values)}
        for few, many in itertools.permutations(taken, 2):
            assert taken[many] <= taken[few] + 1 or taken[few] == values.count(few)


def test_accepted_ones_count_for_their_value() -> None:
    room = quota("hall", "hall", "hall", "kitchen", "kitchen", at_most=None)
    room.start(4, [0])
    for row in (0, 1, 3):
        assert room.full(row) is None
        room.take(row)
    assert [room.full(row) for row in (2, 4)] == ["room=hall", None]
