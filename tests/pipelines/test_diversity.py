"""Coverage against brute force, planted clusters, and that no order of trajectories decides."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Sequence

import numpy as np
import pytest

from agentmill.pipelines.diversity import (
    WEIGHT_ROOM,
    Coverage,
    Features,
    SketchTable,
    choose_by_clusters,
    choose_by_coverage,
    cluster,
    new_shares,
)
from agentmill.pipelines.operators.diverse_pool import QUALITY_SCALE
from agentmill.pipelines.quota_counts import QuotaCount, full, take

BOUND = 1 - 1 / math.e


def features(*sets: str, width: int = 64) -> Features:
    """Features of one token each, separated by spaces."""
    table = SketchTable(len(sets), [1], width)
    for each in sets:
        table.add([[word.encode() for word in each.split()]])
    return table.features()


def value(made: Features, rows: Sequence[int]) -> int:
    """The weight that some trajectories cover, without what is tested."""
    return int(made.weights[np.unique(np.concatenate([made.numbers[row] for row in rows]))].sum())


def greedy(
    made: Features, size: int, quotas: Sequence[QuotaCount] = (), accepted: Sequence[int] = (), quality: object = None
) -> list[int]:
    for quota in quotas:
        quota.start(size, accepted)
    levels = None if quality is None else np.array(quality)
    order = np.arange(len(made.numbers))
    return list(choose_by_coverage(Coverage(made, levels), order, quotas, accepted, size))


def test_a_feature_weighs_as_many_trajectories_as_have_it() -> None:
    made = features("a b", "a a", "", "b c a")
    assert sorted(made.counts.tolist()) == [0, 1, 2, 3]
    assert made.weights.tolist() == made.counts.tolist()
    assert made.counts[made.numbers].sum(axis=1).tolist() == [5, 3, 0, 6]
    assert made.total == 6


def test_kinds_of_features_weigh_alike() -> None:
    table = SketchTable(2, [1, 1], 64)
    for name in (b"x", b"y"):
        table.add([[b"tool"], [b"%s%d" % (name, number) for number in range(10)]])
    made = table.features()
    weights = made.weights[made.numbers]
    assert weights[:, :32].sum() == 2 * 20
    assert made.weights[1] == 20
    assert made.weights[2:].sum() == 20


def sums_of_kinds(sizes: Sequence[int], width: int = 64) -> list[int]:
    """The weights of kinds of features of one trajectory, of so many features each."""
    table = SketchTable(1, [1] * len(sizes), width * len(sizes))
    table.add([[b"%d" % number for number in range(size)] for size in sizes])
    made = table.features()
    return [int(each.sum()) for each in np.split(made.weights[made.numbers[0]], len(sizes))]


def test_kinds_of_features_weigh_alike_whatever_their_numbers() -> None:
    # Once 3 and 2: 3 / 2 was rounded to 2, so 3 against 4.
    assert sums_of_kinds([3, 2]) == [6, 6]
    assert sums_of_kinds([50, 37, 1]) == [1_850] * 3
    assert sums_of_kinds([3, 0]) == [3, 0]


def test_kinds_of_too_many_features_weigh_alike_but_for_the_last_digits() -> None:
    sums = sums_of_kinds([10_007, 10_009, 10_037, 10_039], 10_100)
    assert max(sums) <= WEIGHT_ROOM // 4 < math.lcm(10_007, 10_009, 10_037, 10_039)
    assert min(sums) > (1 - 1e-10) * max(sums)


def test_the_largest_weights_fit_into_gains() -> None:
    assert QUALITY_SCALE * WEIGHT_ROOM < 2**63
    numbers = np.arange(1, 65, dtype=np.int32).reshape(64, 1)
    weights = np.concatenate([[0], np.full(63, WEIGHT_ROOM // 128), [WEIGHT_ROOM // 2]])
    made = Features(numbers, (weights > 0).astype(np.int64), weights)
    assert greedy(made, 2, quality=[QUALITY_SCALE] * 64) == [63, 0]


def test_a_sketch_keeps_the_same_features_of_sets_that_share_them() -> None:
    words = [f"w{number}" for number in range(400)]
    table = SketchTable(3, [1], 16)
    for each in (words, [*words[1:], words[0]], words[:8]):
        assert table.add([[word.encode() for word in each]])
    made = table.features()
    assert made.numbers.shape == (3, 16)
    assert (made.numbers[0] == made.numbers[1]).all()
    assert (made.numbers[2] > 0).sum() == 8
    # 16 of 400 are kept; of the eight some are among them, and are the same numbers.
    assert len(np.unique(made.numbers)) - 1 <= 16 + 8


def test_the_greedy_choice_is_best_where_sets_do_not_overlap() -> None:
    made = features("a b", "a b", "c", "c", "c", "d")
    # Weights: a 2, b 2, c 3, d 1.
    assert greedy(made, 2) == [0, 2]
    assert greedy(made, 3) == [0, 2, 5]
    shares, coverage = new_shares(made, [0, 2])
    assert shares == {0: 4 / 8, 2: 3 / 8}
    assert coverage.gains(np.arange(6)).tolist() == [0, 0, 0, 0, 0, 1]


def test_the_greedy_choice_has_the_share_of_the_best_that_it_must() -> None:
    chance, ratios = random.Random(5), []
    for _ in range(60):
        sets = [" ".join(chance.sample("abcdefghijklm", chance.randrange(1, 6))) for _ in range(9)]
        made, size = features(*sets), chance.randrange(1, 5)
        rows = greedy(made, size)
        best = max(value(made, rows) for rows in itertools.combinations(range(9), size))
        ratios.append(value(made, rows) / best)
        assert len(set(rows)) == size
        # Lazy evaluation changes nothing: each adds the most that any can.
        for place in range(size):
            before = rows[:place]
            gains = [value(made, [*before, row]) for row in range(9) if row not in before]
            assert value(made, [*before, rows[place]]) == max(gains)
    assert min(ratios) >= BOUND
    assert sum(ratios) / len(ratios) > 0.97


def test_with_a_quota_it_has_half_of_the_best_and_the_quota_holds() -> None:
    chance = random.Random(6)
    for _ in range(40):
        sets = [" ".join(chance.sample("abcdefgh", chance.randrange(1, 5))) for _ in range(8)]
        rooms = [chance.choice("xyz") for _ in sets]
        quota = QuotaCount("room", 1)
        for room in rooms:
            quota.add([room])
        size = len(set(rooms))
        made = features(*sets)
        rows = greedy(made, size, [quota])
        assert sorted(rooms[row] for row in rows) == sorted(set(rooms))
        allowed = [c for c in itertools.combinations(range(8), size) if len({rooms[row] for row in c}) == size]
        assert value(made, rows) >= max(value(made, each) for each in allowed) / 2


def test_all_is_covered_once_more_where_nothing_is_left() -> None:
    made = features("a b c", "a b", "c", "a", "b c")
    # All in one; then once more a b (2 + 3 of 3, 3, 3 …) and c.
    assert greedy(made, 1) == [0]
    assert greedy(made, 3) == [0, 1, 2]
    assert greedy(made, 5) == [0, 1, 2, 4, 3]
    assert greedy(features("", "a", ""), 3) == [1, 0, 2]


def test_quality_decides_between_equal_ones_and_may_outweigh_features() -> None:
    made = features("a b", "a b", "c d", "c d e")
    assert greedy(made, 2, quality=[1, 2, 2, 2]) == [3, 1]
    assert greedy(made, 1, quality=[10, 10, 10, 1]) == [0]
    # A better one covers more of what a worse one has covered.
    assert greedy(made, 3, quality=[1, 2, 2, 2], accepted=[0]) == [0, 3, 1]


def one_by_one(
    coverage: Coverage, order: Sequence[int], quotas: Sequence[QuotaCount], accepted: Sequence[int], size: int
) -> list[int]:
    """The choice as it is defined, with every gain looked at for every choice."""
    chosen = list(accepted)
    for row in accepted:
        coverage.add(row)
        take(quotas, row)
    covers = bool(accepted)
    while len(chosen) < size:
        allowed = [row for row in order if row not in chosen and full(quotas, row) is None]
        if not allowed:
            break
        best = max(allowed, key=coverage.gain)
        if not coverage.gain(best) and covers:
            coverage.reset()
            covers = False
            continue
        covers = covers or coverage.gain(best) > 0
        coverage.add(best)
        take(quotas, best)
        chosen.append(best)
    return chosen


@pytest.mark.parametrize("seed", range(150))
def test_every_choice_adds_most(seed: int) -> None:
    chance = random.Random(seed)
    count, letters = chance.randrange(1, 25), "abcdef"[: chance.randrange(1, 7)]
    made = features(*(" ".join(chance.sample(letters, chance.randrange(len(letters) + 1))) for _ in range(count)))
    quality = np.array([chance.randrange(4) for _ in range(count)]) if seed % 3 else None
    order, size = chance.sample(range(count), count), chance.randrange(1, count + 1)
    accepted = chance.sample(order, chance.randrange(min(3, size) + 1))
    quotas = [QuotaCount("room", chance.choice([None, 1, 3])), QuotaCount("tag", 4)][: seed % 4]
    for quota in quotas:
        for _ in range(count):
            quota.add(chance.sample("xyz", chance.randrange(3)))
    found = []
    for choose in (choose_by_coverage, one_by_one):
        for quota in quotas:
            quota.start(size, accepted)
        found.append([*choose(Coverage(made, quality), np.array(order), quotas, accepted, size)])
    assert found[0] == found[1]


@pytest.mark.parametrize("levels", [1, 1000])
def test_many_trajectories_with_the_same_features_take_linear_time(levels: int) -> None:
    made = features(*["a b"] * 5_000)
    quality = np.arange(5_000) % levels + 1
    started = time.process_time()
    assert len(greedy(made, 5_000, quality=quality)) == 5_000
    # Where each looks at all others, it is two minutes.
    assert time.process_time() - started < 5


def test_accepted_ones_come_first() -> None:
    made = features("a b", "a", "c", "a b c")
    assert greedy(made, 3, accepted=[1]) == [1, 3, 0]


def test_the_order_of_trajectories_decides_nothing() -> None:
    chance = random.Random(7)
    sets = {f"t{number:02d}": " ".join(chance.sample("abcdefghijkl", 4)) for number in range(30)}
    found = set()
    for _ in range(5):
        names = chance.sample(sorted(sets), len(sets))
        made = features(*(sets[name] for name in names))
        order = np.array(sorted(range(30), key=names.__getitem__))
        rows = choose_by_coverage(Coverage(made), order, [], [], 8)
        labels, cosines = cluster(made, order, 4, 1)
        by_cluster = choose_by_clusters(labels, np.rint(cosines * 1e6).astype(np.int64), order, [], [], 8)
        found.add((tuple(names[row] for row in rows), tuple(names[row] for row in by_cluster)))
    assert len(found) == 1


def test_of_trajectories_that_add_alike_one_is_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    weighed = 0
    gain = Coverage.gain

    def counted(self: Coverage, row: int) -> int:
        nonlocal weighed
        weighed += 1
        return gain(self, row)

    monkeypatch.setattr(Coverage, "gain", counted)
    made = features(*["a b"] * 200, *["c"] * 100)
    assert greedy(made, 60) == [place for pair in zip(range(30), range(200, 230), strict=True) for place in pair]
    assert weighed < 300


@pytest.mark.parametrize("seed", range(5))
def test_equal_trajectories_are_chosen_as_different_ones_are(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    made = features(*(" ".join(chance.sample("abcd", chance.randint(1, 2))) for _ in range(40)))
    quality = [chance.randint(1, 2) for _ in range(40)]
    found = greedy(made, 30, quality=quality, accepted=[3])
    monkeypatch.setattr(Coverage, "sets", lambda self, rows: np.arange(len(rows)))
    assert greedy(made, 30, quality=quality, accepted=[3]) == found


@pytest.fixture(scope="module")
def planted() -> Features:
    """Six groups of 5, 6 … 10 trajectories: eight features that a group has in common, two of each alone."""
    return features(*(" ".join([*(f"g{g}-{n}" for n in range(8)), f"x{g}-{i}", f"y{g}-{i}"]) for g, i in MEMBERS))


MEMBERS = [(group, number) for group in range(6) for number in range(5 + group)]


def test_planted_clusters_give_one_each(planted: Features) -> None:
    order = np.arange(len(MEMBERS))
    labels, cosines = cluster(planted, order, 6, 3)
    groups = [group for group, _ in MEMBERS]
    assert len(set(labels.tolist())) == len(set(zip(labels.tolist(), groups, strict=True))) == 6
    assert (cosines > 0.7).all()
    merits = np.array([number for _, number in MEMBERS])
    rows = list(choose_by_clusters(labels, merits, order, [], [], 6))
    # The largest first, the best of each.
    assert [MEMBERS[row] for row in rows] == [(group, 4 + group) for group in reversed(range(6))]
    more = list(choose_by_clusters(labels, merits, order, [], [], 8))
    assert [MEMBERS[row] for row in more[6:]] == [(5, 8), (4, 7)]
    first = MEMBERS.index((5, 0))
    assert list(choose_by_clusters(labels, merits, order, [], [first], 6))[1:] == rows[1:6]
    assert {groups[row] for row in greedy(planted, 6)} == set(range(6))
