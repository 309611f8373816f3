"""The similarity by which earlier runs are recalled, as its definition."""

from __future__ import annotations


def similarity(one: frozenset[str], other: frozenset[str]) -> float:
    """The Jaccard index of two sets of words, in [0, 1]; 0 for two that are empty."""
    return len(one & other) / (len(one | other) or 1)
