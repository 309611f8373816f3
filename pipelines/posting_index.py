"""Which entries share a feature with a text: an inverted index that leaves out what many texts have.

Features are 64-bit hashes of runs of words, actions and the like. Everything here is the same for any order of what is
observed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from agentmill.pipelines.duplicates import Hashes, Numbers, shingles, words_of

PAIRS_HELD = 1_000_000
"""Pairs of a feature and a key that are collected before they are counted: 16 MB."""


class Postings:
    """The entries that have a feature, and the features that are common.

    Memory is 24 bytes for each feature of each entry, and while features are counted 16 for each pair of a feature and
    a key, of which there are at most ``limit`` for a feature, and ``PAIRS_HELD`` more.
    """

    def __init__(self, rows: Iterable[Iterable[int]], limit: int | None = None) -> None:
        """Index ``rows``, the features of each entry; one that comes with more than ``limit`` keys is common."""
        unique = [np.unique(as_hashes(row)) for row in rows]
        flat = np.concatenate(unique) if unique else as_hashes(())
        entries = np.repeat(np.arange(len(unique)), [len(row) for row in unique])
        self._features, numbers = np.unique(flat, return_inverse=True)
        order = np.argsort(numbers, kind="stable")
        self._entries = entries[order]
        self._starts = np.searchsorted(numbers[order], np.arange(len(self._features) + 1))
        self._sizes = np.bincount(entries, minlength=len(unique))
        self._totals = self._sizes
        self._limit = limit
        self._common = np.zeros(len(self._features), dtype=bool)
        self._pairs: list[npt.NDArray[np.uint64]] = []
        self._held = 0

    def __bool__(self) -> bool:
        return len(self._features) > 0

    def observe(self, features: Iterable[int], key: int) -> None:
        """Note that these features come with ``key``."""
        if self._limit is None:
            return
        places = self._places(features)
        if len(places):
            self._pairs.append(np.column_stack([places.astype(np.uint64), np.full(len(places), key, np.uint64)]))
            self._held += len(places)
            if self._held >= PAIRS_HELD:
                self._count(self._limit)

    def close(self) -> None:
        """Settle which features are common; they no longer count for any entry."""
        if self._limit is not None:
            self._count(self._limit)
        self._pairs, self._held = [], 0
        left = np.repeat(~self._common, np.diff(self._starts))
        self._totals = np.bincount(self._entries[left], minlength=len(self._totals))

    def totals(self) -> Numbers:
        """How many features of each entry count, (entries,)."""
        return self._totals

    def known(self, features: Iterable[int]) -> set[int]:
        """Those of the features that an entry has and that are not common."""
        return set(self._features[self._places(features)].tolist())

    def shares(self, features: Iterable[int], rare: bool = True) -> dict[int, float]:
        """The share of the features of each entry that is among ``features``, of the entries of which any is.

        Only features that are not common count, unless ``rare`` is false.
        """
        places = self._places(features, rare)
        if not len(places):
            return {}
        totals = self._totals if rare else self._sizes
        found = np.concatenate([self._entries[self._starts[place] : self._starts[place + 1]] for place in places])
        entries, counts = np.unique(found, return_counts=True)
        return dict(zip(entries.tolist(), (counts / totals[entries]).tolist(), strict=True))

    def _places(self, features: Iterable[int], rare: bool = True) -> Numbers:
        """The places of those features that are known, each once; with ``rare`` without common ones."""
        wanted = np.unique(as_hashes(features))
        if not len(self._features) or not len(wanted):
            return np.empty(0, dtype=np.int64)
        places = np.minimum(np.searchsorted(self._features, wanted), len(self._features) - 1)
        known: Numbers = places[self._features[places] == wanted]
        return known[~self._common[known]] if rare else known

    def _count(self, limit: int) -> None:
        if not self._pairs:
            return
        pairs = np.unique(np.concatenate(self._pairs), axis=0)
        features = pairs[:, 0].astype(np.int64)
        self._common |= np.bincount(features, minlength=len(self._features)) > limit
        self._pairs = [pairs[~self._common[features]]]
        # What stays is counted again each time, so that memory is bounded by the limit and not by the texts.
        self._held = 0


class WordRuns:
    """An index of runs of ``size`` words; shorter texts have none."""

    def __init__(self, texts: Iterable[Iterable[str]], size: int, limit: int) -> None:
        """Index the texts of each entry; ``limit`` as for ``Postings``."""
        self._size = size
        self._postings = Postings((self._runs(row) for row in texts), limit)

    def observe(self, texts: Iterable[str], key: int) -> None:
        """Note that the runs of these texts come with ``key``."""
        if self._postings:
            self._postings.observe(self._runs(texts), key)

    def close(self) -> None:
        """As ``Postings.close``."""
        self._postings.close()

    def totals(self) -> Numbers:
        """As ``Postings.totals``."""
        return self._postings.totals()

    def shares(self, texts: Iterable[str]) -> dict[int, float]:
        """As ``Postings.shares``, of the runs of these texts."""
        return self._postings.shares(self._runs(texts)) if self._postings else {}

    def found(self, text: str, texts: Iterable[str]) -> str:
        """The first stretch of words of ``text`` that is in ``texts``; empty if there is none."""
        words, known = words_of([text]), set(self._runs(texts).tolist())
        marks = [each in known for each in runs([words], self._size).tolist()]
        start = next((place for place, mark in enumerate(marks) if mark), None)
        if start is None:
            return ""
        stop = next((place for place in range(start, len(marks)) if not marks[place]), len(marks))
        return b" ".join(words[start : stop + self._size - 1]).decode(errors="replace")

    def _runs(self, texts: Iterable[str]) -> Hashes:
        return runs([words_of([text]) for text in texts], self._size)


def runs(sequences: Iterable[Sequence[bytes]], size: int) -> Hashes:
    """Hashes of all runs of ``size`` words, of which none reaches from one sequence into the next."""
    return shingles([each for each in sequences if len(each) >= size], size)[0]


def as_hashes(features: Iterable[int]) -> Hashes:
    """Features as an array."""
    return features if isinstance(features, np.ndarray) else np.fromiter(features, dtype=np.uint64)
