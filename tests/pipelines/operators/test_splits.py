"""Groups in splits: shares are met as well as the groups allow, whatever their order."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest

from agentmill.pipelines.operators.bounds import Rows
from agentmill.pipelines.operators.splits import assign_groups, check_split
from tests.errors import user_error

SHARES = {"train": 0.8, "dev": 0.1, "test": 0.1}


def sizes_of(found: dict[str, str], sizes: dict[str, int]) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for group, split in found.items():
        counted[split] += sizes[group]
    return dict(counted)


@pytest.mark.parametrize("seed", range(3))
def test_shares_are_met(seed: int) -> None:
    sizes = {f"g{number}": 1 + number % 7 for number in range(140)}
    found = assign_groups(sizes, SHARES, seed)
    assert sizes_of(found, sizes) == {"train": 448, "dev": 56, "test": 56}
    mixed = dict(random.Random(seed).sample(list(sizes.items()), len(sizes)))
    assert assign_groups(mixed, SHARES, seed) == found
    assert assign_groups(sizes, SHARES, seed + 1) != found


def test_every_split_gets_a_group() -> None:
    found = assign_groups({"a": 100, "b": 1, "c": 1}, SHARES, 0)
    assert found["a"] == "train"
    assert set(found.values()) == set(SHARES)
    with user_error("split-empty", "2 groups", "3 splits"):
        assign_groups({"a": 100, "b": 1}, SHARES, 0)


def test_many_groups_take_linear_time() -> None:
    sizes = {f"g{number}": 1 for number in range(100_000)}
    started = time.process_time()
    found = assign_groups(sizes, SHARES, 0)
    # A pass over all groups for each of them takes half a minute.
    assert time.process_time() - started < 5
    assert sizes_of(found, sizes) == {"train": 80_000, "dev": 10_000, "test": 10_000}


def test_a_split_that_has_no_rows_is_refused_where_that_is_known() -> None:
    rows = Rows(n=5, splits={"train": 5, "held_out_tasks": 0})
    for split in ("trian", "held_out_tasks"):
        with user_error("split-empty", f"no tasks of split {split!r}", "known: train."):
            check_split(rows, split)
    check_split(rows, "train")
    check_split(rows, None)
    check_split(Rows(n=5), "trian")
    check_split(Rows(n=0, splits={"train": 0}), "train")
