"""Whether a score reaches a threshold, but for the rounding of floating point.

Scores are sums, means and shares, so one that should be 0.8 may be stored as 0.7999999999999999. Every threshold on a
score allows for that, so that what passes where a verdict is made also passes where the verdict is read.
"""

from __future__ import annotations

ROUNDING = 1e-9
"""By so much a score may miss what it should be."""


def reaches(score: float, at_least: float) -> bool:
    """Whether ``score`` is at least this."""
    return score >= at_least - ROUNDING


def exceeds(score: float, at_most: float) -> bool:
    """Whether ``score`` is more than this."""
    return score > at_most + ROUNDING
