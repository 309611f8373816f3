"""Shares of a sequence or a set, the same in every run."""

from __future__ import annotations

import math
from fractions import Fraction

from schemas.ids import derive_seed


def falls_in(number: int, share: float) -> bool:
    """Whether the ``number``-th thing (from 0) falls into ``share``: of the first n things, ``floor(n * share)`` do."""
    exact = Fraction(str(share))
    return math.floor((number + 1) * exact) > math.floor(number * exact)


def chosen(identifier: str, share: float) -> bool:
    """Whether the thing of that id falls into a random ``share`` of all; a larger share holds a smaller one."""
    return derive_seed("share", identifier) < share * 2**31
