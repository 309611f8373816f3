"""pass@k: how likely k attempts at a task hold a success, by the unbiased estimator of Chen et al. 2021
(arXiv:2107.03374, equation 1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean


def pass_at_k(attempts: int, successes: int, k: int) -> float:
    """Probability that k of ``attempts`` >= k samples, drawn without replacement, hold a success."""
    return 1.0 - math.comb(attempts - successes, k) / math.comb(attempts, k)


def tasks_by_k(outcomes: Mapping[str, Sequence[bool]]) -> dict[str, int]:
    """How many tasks have k or more attempts; k is 1, 2, 4 … below the most attempts of any task, and this most."""
    attempts = [len(each) for each in outcomes.values()]
    most = max(attempts, default=0)
    sizes = [*(2**power for power in range((most - 1).bit_length())), most] if most else []
    return {str(k): sum(n >= k for n in attempts) for k in sizes}


def pass_at_sizes(outcomes: Mapping[str, Sequence[bool]]) -> dict[str, float]:
    """pass@k for each k of ``tasks_by_k``, averaged over the tasks that have so many attempts."""
    return {
        k: fmean(pass_at_k(len(each), sum(each), int(k)) for each in outcomes.values() if len(each) >= int(k))
        for k in tasks_by_k(outcomes)
    }
