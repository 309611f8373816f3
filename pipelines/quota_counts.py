"""Quotas: at most so many things of each value of a property, or equal shares, while they are chosen one by one."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


class QuotaCount:
    """At most so many things of each value of ``by``; ``at_most`` ``None``: equal shares.

    Things are numbered as they are added. One of several values counts for each, and one of none is not bounded.
    """

    def __init__(self, by: str, at_most: int | None) -> None:
        self.by = by
        self._at_most = at_most
        self._numbers: dict[str, int] = {}
        self._codes, self._ends = array("i"), array("q", [0])
        self._spare = 0

    def add(self, values: Sequence[str]) -> None:
        """Take note of the values of the next thing."""
        self._codes.extend(self._numbers.setdefault(each, len(self._numbers)) for each in values)
        self._ends.append(len(self._codes))

    def start(self, size: int, accepted: Sequence[int]) -> None:
        """Count from 0, for a choice of ``size`` that begins with those that are ``accepted``."""
        self._names = list(self._numbers)
        self._taken = np.zeros(len(self._numbers), dtype=np.int64)
        if self._at_most is not None:
            self._caps, self._spare = np.full(len(self._numbers), self._at_most), 0
            return
        codes = np.array([code for row in accepted for code in self._of(row)], dtype=np.int64)
        forced = np.bincount(codes, minlength=len(self._numbers))
        counts = np.bincount(np.asarray(self._codes), minlength=len(self._numbers))
        self._caps, self._most, self._spare = equal_shares(counts, forced, size)

    def full(self, row: int) -> str | None:
        """The value of a thing of which no more may be chosen, as ``environment=kitchen``; ``None``: it may be."""
        for code in self._of(row):
            taken = self._taken[code]
            if taken >= self._caps[code] and not (self._spare > 0 and taken < self._most[code]):
                return f"{self.by}={self._names[code]}"
        return None

    def take(self, row: int) -> None:
        """Count a thing that is chosen."""
        for code in self._of(row):
            self._spare -= int(self._at_most is None and self._caps[code] == self._taken[code])
            self._taken[code] += 1

    @property
    def distinct(self) -> int:
        """How many different values there are."""
        return len(self._numbers)

    def of(self, row: int) -> list[str]:
        """The values of a thing, as ``environment=kitchen``."""
        return [f"{self.by}={self._names[code]}" for code in self._of(row)]

    def _of(self, row: int) -> array[int]:
        return self._codes[self._ends[row] : self._ends[row + 1]]


def equal_shares(counts: Numbers, forced: Numbers, size: int) -> tuple[Numbers, Numbers, int]:
    """How many of each value go into ``size`` so that they differ by one at most where there are enough of each.

    ``counts`` are there, and ``forced`` are chosen in any case. Returns the number of each value, the number that it
    may have at most, and how many values may have more than the first.
    """
    low, high = 0, size
    while low < high:
        level = (low + high + 1) // 2
        fits = np.maximum(forced, np.minimum(counts, level)).sum() <= size
        low, high = (level, high) if fits else (low, level - 1)
    shares = np.maximum(forced, np.minimum(counts, low))
    return shares, shares + ((counts > low) & (shares == low)), int(size - shares.sum())


def take(quotas: Sequence[QuotaCount], row: int) -> None:
    """Count a thing that is chosen in all ``quotas``."""
    for quota in quotas:
        quota.take(row)


def full(quotas: Sequence[QuotaCount], row: int) -> str | None:
    """The first value of a thing of which no more may be chosen; ``None``: it may be chosen."""
    return next((found for quota in quotas if (found := quota.full(row)) is not None), None)
