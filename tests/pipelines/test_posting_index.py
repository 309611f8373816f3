"""The inverted index: shares of entries, and features that come with many keys."""

from __future__ import annotations

import random

import pytest

from agentmill.pipelines import posting_index
from agentmill.pipelines.posting_index import Postings, WordRuns, runs


def test_shares() -> None:
    index = Postings([[1, 2, 3, 3], [3, 4], []])
    assert index.shares([3, 2, 9, 3]) == {0: pytest.approx(2 / 3), 1: 0.5}
    assert index.shares([]) == {}
    assert index.known([4, 5]) == {4}
    assert index.totals().tolist() == [3, 2, 0]
    assert bool(index)
    assert not Postings([])
    assert Postings([]).shares([1]) == {}


@pytest.mark.parametrize("held", [1, 7, 10**6])
def test_what_comes_with_many_keys_is_common(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posting_index, "PAIRS_HELD", held)
    index = Postings([[1, 2], [2, 3]], limit=2)
    seen = [([1, 2], 10), ([1, 2], 11), ([2, 3], 12), ([3], 13), ([3], 13), ([1], 10), ([9], 14)]
    for features, key in random.Random(held).sample(seen, len(seen)):
        index.observe(features, key)
    index.close()
    assert index.known([1, 2, 3]) == {1, 3}
    assert index.totals().tolist() == [1, 1]
    assert index.shares([1, 2]) == {0: 1.0}
    assert index.shares([2, 3], rare=False) == {0: 0.5, 1: 1.0}


def test_without_a_limit_nothing_is_common() -> None:
    index = Postings([[1]])
    for key in range(99):
        index.observe([1], key)
    index.close()
    assert index.shares([1]) == {0: 1.0}


def test_runs_of_words() -> None:
    index = WordRuns([["a b c d", "x y"], ["b c d e f"]], 3, limit=5)
    index.close()
    assert index.totals().tolist() == [2, 3]
    assert index.shares(["B, c: d!", "e f"]) == {0: 0.5, 1: pytest.approx(1 / 3)}
    assert index.found("a b c d e", ["z b c d e z"]) == "b c d e"
    assert index.found("a b c", ["nothing of it at all"]) == ""
    assert len(runs([[b"a"], [b"a", b"b"]], 2)) == 1
    assert len(runs([], 2)) == 0
