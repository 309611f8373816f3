"""The statistics of an evaluation: how well a model acts, how sure that is, and by how much one beats another.

The unit is the task. A task tried k times counts once, with its share of successes, so intervals do not shrink by
repeating the same task; they speak of new tasks drawn like these, not of new environments.

* A model's success has a Wilson score interval (E. B. Wilson, JASA 22, 1927), which stays honest at 0 and at n of n.
* The difference of two models on the same tasks has a paired bootstrap percentile interval (Efron and Tibshirani, An
  Introduction to the Bootstrap, 1993, ch. 13). Pairing removes the spread between easy and hard tasks; the bootstrap
  makes no assumption on the shape and also serves for k > 1, where tests for binary pairs do not. It says nothing
  where all differences are equal; there an exact binomial bound takes its place.
* Beside it stands the exact sign test on the tasks that differ, for k = 1 the exact McNemar test (Biometrika 34, 1947).
* pass@k is the unbiased estimator of Chen et al. 2021 (arXiv:2107.03374, equation 1).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist, fmean
from typing import Any

import msgspec
import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 10_000
BOOTSTRAP_SEED = 20_211
LOOP_REPEATS = 3
"""An episode loops if it takes the same action this often from the same state."""

Interval = tuple[float, float]


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """What evaluation needs of one finished episode. ``invalid`` counts the actions that the environment refused."""

    task_id: str
    attempt: int
    success: bool
    actions: int
    invalid: int
    turns: int
    looped: bool
    truncated: bool
    completion_tokens: int | None = None


class PairedDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Success of one model minus that of another on the ``n`` tasks that both tried; ``better`` and ``worse`` count."""

    value: float
    ci95: Interval
    p_value: float
    n: int
    better: int
    worse: int


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """One model on one split. ``n`` counts tasks; rates are in [0, 1]; ``None`` where there is nothing to divide by.

    ``turns_per_success`` and ``completion_tokens_per_success`` divide what all episodes spent by the successes among
    them: the price of one success, failures included.
    """

    n: int
    episodes: int
    success: float | None
    ci95: Interval | None
    pass_at_k: dict[str, float]
    invalid_action_rate: float | None
    loop_rate: float | None
    truncation_rate: float | None
    turns_per_success: float | None
    completion_tokens_per_success: float | None


def wilson(successes: float, n: int, confidence: float = CONFIDENCE) -> Interval:
    """Wilson score interval of ``successes`` out of ``n`` >= 1; ``successes`` may be a sum of shares."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = successes / n
    centre = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def pass_at_k(attempts: int, successes: int, k: int) -> float:
    """Probability that k of ``attempts`` >= k samples, drawn without replacement, hold a success."""
    return 1.0 - math.comb(attempts - successes, k) / math.comb(attempts, k)


def sign_test(better: int, worse: int) -> float:
    """Two-sided exact p-value that ``better`` and ``worse`` are equally likely; 1 where nothing differs."""
    n = better + worse
    tail: float = sum(math.comb(n, i) for i in range(min(better, worse) + 1)) / 2**n
    return min(1.0, 2 * tail)


def bootstrap_mean(values: Sequence[float], confidence: float = CONFIDENCE, resamples: int = RESAMPLES) -> Interval:
    """Percentile interval of the mean of ``values`` (at least one, each in [-1, 1]).

    Resamples are drawn as counts of the distinct values, so the cost does not grow with ``len(values)``. Where all
    values are equal, n equal draws still leave room for a share ``u = 1 - (alpha / 2) ** (1 / n)`` of others.
    """
    counts = Counter(values)
    n = len(values)
    alpha = 1 - confidence
    if len(counts) == 1:
        unseen = 1 - (alpha / 2) ** (1 / n)
        centre = (1 - unseen) * values[0]
        return max(-1.0, centre - unseen), min(1.0, centre + unseen)
    levels = sorted(counts)
    draws = np.random.default_rng(BOOTSTRAP_SEED).multinomial(n, [counts[level] / n for level in levels], resamples)
    low, high = np.quantile(draws @ np.array(levels) / n, [alpha / 2, 1 - alpha / 2])
    return float(low), float(high)


def successes_by_task(episodes: Iterable[Episode]) -> dict[str, list[bool]]:
    """For each task the outcomes of its attempts, in the order of ``attempt``."""
    outcomes: dict[str, list[bool]] = defaultdict(list)
    for episode in sorted(episodes, key=lambda each: (each.task_id, each.attempt)):
        outcomes[episode.task_id].append(episode.success)
    return dict(outcomes)


def paired_difference(base: Sequence[Episode], tuned: Sequence[Episode]) -> PairedDifference | None:
    """Success of ``tuned`` minus ``base`` over the tasks that both finished; ``None`` if there are none."""
    before, after = successes_by_task(base), successes_by_task(tuned)
    shared = sorted(before.keys() & after.keys())
    if not shared:
        return None
    differences = [fmean(after[task]) - fmean(before[task]) for task in shared]
    better = sum(difference > 0 for difference in differences)
    worse = sum(difference < 0 for difference in differences)
    return PairedDifference(
        value=fmean(differences),
        ci95=bootstrap_mean(differences),
        p_value=sign_test(better, worse),
        n=len(shared),
        better=better,
        worse=worse,
    )


def measure(episodes: Sequence[Episode]) -> Measures:
    """The measures of one model from its finished episodes."""
    outcomes = successes_by_task(episodes)
    shares = [fmean(attempts) for attempts in outcomes.values()]
    successes = sum(episode.success for episode in episodes)
    tokens = [episode.completion_tokens for episode in episodes if episode.completion_tokens is not None]
    return Measures(
        n=len(outcomes),
        episodes=len(episodes),
        success=fmean(shares) if shares else None,
        ci95=wilson(sum(shares), len(shares)) if shares else None,
        pass_at_k=pass_at_powers(outcomes),
        invalid_action_rate=ratio(sum(each.invalid for each in episodes), sum(each.actions for each in episodes)),
        loop_rate=ratio(sum(each.looped for each in episodes), len(episodes)),
        truncation_rate=ratio(sum(each.truncated for each in episodes), len(episodes)),
        turns_per_success=ratio(sum(each.turns for each in episodes), successes),
        completion_tokens_per_success=ratio(sum(tokens), successes) if len(tokens) == len(episodes) else None,
    )


def pass_at_powers(outcomes: Mapping[str, Sequence[bool]]) -> dict[str, float]:
    """pass@k, averaged over the tasks, for k = 1, 2, 4 … up to the fewest attempts that any task had."""
    fewest = min((len(attempts) for attempts in outcomes.values()), default=0)
    sizes = [2**power for power in range(fewest.bit_length())]
    return {str(k): fmean(pass_at_k(len(attempts), sum(attempts), k) for attempts in outcomes.values()) for k in sizes}


def ratio(numerator: float, denominator: float) -> float | None:
    """Their quotient, or ``None`` where there is nothing to divide by."""
    return numerator / denominator if denominator else None


def loops(steps: Iterable[tuple[Any, Any]], repeats: int = LOOP_REPEATS) -> bool:
    """Whether one (state, action) pair occurs ``repeats`` times or more among ``steps``."""
    return any(count >= repeats for count in Counter(steps).values())
