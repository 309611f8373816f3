"""The statistics of an evaluation: how well a model acts, how sure that is, and by how much one beats another.

A task tried k times counts once, with its share of successes, so intervals do not shrink by repeating the same task.
Tasks of one environment are alike, so they do not count as independent: intervals and p-values are clustered by
environment (E. Miller, Adding Error Bars to Evals, 2024, arXiv:2411.00640), and hold for new environments
drawn like these. Where each task has an environment of its own they are those of independent tasks.

* A model's success has a Wilson score interval (E. B. Wilson, JASA 22, 1927), which stays honest at 0 and at n of n,
  for the effective number of tasks: n over the design effect, the ratio of the cluster-robust variance to that of
  independent tasks (L. Kish, Survey Sampling, 1965; N. Dean and M. Pagano, J. Surv. Stat. Methodol. 3, 2015). It is
  lowered for the degrees of freedom (E. L. Korn and B. I. Graubard, Survey Methodology 24, 1998).
* The difference of two models on the same tasks has a percentile interval of the paired bootstrap (Efron and
  Tibshirani, An Introduction to the Bootstrap, 1993, ch. 13) that draws whole environments (A. C. Cameron and
  D. L. Miller, A Practitioner's Guide to Cluster-Robust Inference, J. Hum. Resour. 50, 2015). Pairing removes the
  spread between easy and hard tasks. From fewer than ten environments the bootstrap is too narrow; there the interval
  is Student's, with the standard error of a jackknife that leaves out each environment once and one degree of freedom
  less than environments (Cameron and Miller, section VI: CR3). Both have no width where all environments differ by the
  same; there an exact binomial bound takes their place.
* Its p-value is of the exact sign test on the environments in which one model does better; where each task has its own
  and k = 1, this is the exact McNemar test (Biometrika 34, 1947).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import NormalDist, fmean, stdev
from typing import Any

import msgspec
import numpy as np
from scipy.stats import binomtest
from scipy.stats import t as student_t

from agentmill.pipelines.pass_at_k import pass_at_sizes, tasks_by_k
from agentmill.pipelines.recipes.summary import FEW_ENVIRONMENTS
from agentmill.schemas.chat import is_mark
from agentmill.schemas.records.trajectory import (
    Action,
    AnyAction,
    AnyItem,
    ApiAction,
    CodeAction,
    TextObservation,
    Trajectory,
)
from agentmill.schemas.records.verdict import Verdict
from agentmill.synthesis.rollouts.episode import TIMEOUT
from agentmill.synthesis.rollouts.step import acts

CONFIDENCE = 0.95
RESAMPLES = 10_000
# Fixed, so that the same episodes always give the same interval.
BOOTSTRAP_SEED = 20_211
METHOD = "clustered by environment, Student below 10; actions upon the environment; timeouts unscored; pass@k up to k"
"""The method that ``evaluation.json`` names; one with another is made anew."""

BY = "by"
"""Where the measures of a model have those of groups of tasks, by field and value."""

LOOP_REPEATS = 3
"""An episode loops if it takes the same action this often from the same state."""

Interval = tuple[float, float]


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """What evaluation needs of one finished episode. ``invalid`` counts the actions that the environment refused."""

    task_id: str
    environment_id: str
    attempt: int
    success: bool
    actions: int
    invalid: int
    turns: int
    looped: bool
    truncated: bool
    completion_tokens: int | None = None


class PairedDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Success of one model minus that of another on the ``n`` tasks that both tried, of so many ``environments``.

    ``better`` and ``worse`` count tasks; ``p_value`` is by environments, of which so many are better and worse. What
    is ``None`` was not counted by the version that measured it.
    """

    value: float
    ci95: Interval
    p_value: float
    n: int
    better: int
    worse: int
    environments: int | None = None
    environments_better: int | None = None
    environments_worse: int | None = None


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """One model on one split. ``n`` counts tasks and ``environments`` those they are of; ``unscored`` the episodes that
    were dropped or have no scored verdict, on which nothing here rests.

    Rates are in [0, 1]; ``None`` where there is nothing to divide by. ``pass_at_k_tasks`` counts the tasks that each
    of ``pass_at_k`` is over.

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
    environments: int | None = None
    unscored: int | None = None
    pass_at_k_tasks: dict[str, int] = {}


def wilson(successes: float, n: float, confidence: float = CONFIDENCE) -> Interval:
    """Wilson score interval of ``successes`` out of ``n`` >= 1; neither need be whole: shares, effective tasks."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = successes / n
    centre = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def student_interval(shares: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Student's interval of the mean of two or more independent shares, such as the successes of runs by seed.

    Of a few values a bootstrap would be too narrow. It assumes that they are spread as by a normal distribution.
    ``None`` where all are equal: how much others would differ is not known then.
    """
    # Rounded: means of other values differ in the last bits where they are equal.
    if len({round(share, 9) for share in shares}) == 1:
        return None
    half = student_t.ppf((1 + confidence) / 2, len(shares) - 1) * stdev(shares) / math.sqrt(len(shares))
    return max(0.0, fmean(shares) - float(half)), min(1.0, fmean(shares) + float(half))


def jackknife_variance(groups: Sequence[Sequence[float]]) -> float:
    """Variance of the mean of all values in two or more ``groups``, by leaving out each group once."""
    n, total = sum(map(len, groups)), math.fsum(value for group in groups for value in group)
    left = [(total - math.fsum(group)) / (n - len(group)) for group in groups]
    return (len(groups) - 1) / len(groups) * math.fsum((mean - total / n) ** 2 for mean in left)


def effective_tasks(groups: Sequence[Sequence[float]]) -> float:
    """How many independent tasks tell as much as these, whose shares of success are grouped by environment.

    Between 1 and the number of tasks. As many as environments where all shares are equal, and 1 for one environment:
    how much environments differ was not seen then. The fewer environments, the less is known of that, so the fewer.
    """
    shares = [share for group in groups for share in group]
    n, mean = len(shares), fmean(shares)
    spread = sum((share - mean) ** 2 for share in shares)
    if len(groups) == 1 or spread == 0:
        return len(groups)
    independent = spread / (n * (n - 1))
    between = sum(sum(share - mean for share in group) ** 2 for group in groups)
    clustered = len(groups) / (len(groups) - 1) * between / n**2
    by_tasks, by_groups = (float(student_t.ppf((1 + CONFIDENCE) / 2, count - 1)) for count in (n, len(groups)))
    return max(1.0, n / max(1.0, clustered / independent) * (by_tasks / by_groups) ** 2)


def sign_test(better: int, worse: int) -> float:
    """Two-sided exact p-value that ``better`` and ``worse`` are equally likely; 1 where nothing differs."""
    n = better + worse
    return float(binomtest(better, n).pvalue) if n else 1.0


def bootstrap_mean(
    groups: Sequence[Sequence[float]], confidence: float = CONFIDENCE, resamples: int = RESAMPLES
) -> Interval:
    """Percentile interval of the mean of values in [-1, 1]; whole ``groups`` of them are drawn, none is empty.

    From fewer than ``FEW_ENVIRONMENTS`` groups it is Student's, with the jackknife's standard error.
    Groups of equal sum and size are drawn together, so the cost does not grow with their number. Where the means of
    all n groups are equal, n equal draws still leave room for a share ``u = 1 - (alpha / 2) ** (1 / n)`` of others.
    """
    # Rounded: sums of the same values in another order differ in the last bits.
    counts = Counter((round(sum(group), 9), len(group)) for group in groups)
    n, alpha = len(groups), 1 - confidence
    means = {round(total / size, 9) for total, size in counts}
    if len(means) == 1:
        unseen = 1 - (alpha / 2) ** (1 / n)
        centre = (1 - unseen) * means.pop()
        return max(-1.0, centre - unseen), min(1.0, centre + unseen)
    if n < FEW_ENVIRONMENTS:
        # Resamples of few groups are too alike: of two, half of them hold one group only.
        mean = fmean(value for group in groups for value in group)
        half = float(student_t.ppf(1 - alpha / 2, n - 1)) * math.sqrt(jackknife_variance(groups))
        return max(-1.0, mean - half), min(1.0, mean + half)
    # Sorted, since the draws depend on the order.
    levels = sorted(counts)
    draws = np.random.default_rng(BOOTSTRAP_SEED).multinomial(n, [counts[level] / n for level in levels], resamples)
    totals, sizes = (draws @ np.array(column) for column in zip(*levels, strict=True))
    low, high = np.quantile(totals / sizes, [alpha / 2, 1 - alpha / 2])
    return float(low), float(high)


def successes_by_task(episodes: Iterable[Episode]) -> dict[str, list[bool]]:
    """For each task the outcomes of its attempts, in the order of ``attempt``."""
    outcomes: dict[str, list[bool]] = defaultdict(list)
    for episode in sorted(episodes, key=lambda each: (each.task_id, each.attempt)):
        outcomes[episode.task_id].append(episode.success)
    return dict(outcomes)


def by_environment(values: Mapping[str, float], episodes: Iterable[Episode]) -> list[list[float]]:
    """The ``values`` of tasks, grouped by the environments of these."""
    environments = {episode.task_id: episode.environment_id for episode in episodes}
    groups: dict[str, list[float]] = defaultdict(list)
    for task, value in values.items():
        groups[environments[task]].append(value)
    return list(groups.values())


def paired_difference(base: Sequence[Episode], tuned: Sequence[Episode]) -> PairedDifference | None:
    """Success of ``tuned`` minus ``base`` over the tasks that both finished; ``None`` if there are none."""
    before, after = successes_by_task(base), successes_by_task(tuned)
    shared = sorted(before.keys() & after.keys())
    if not shared:
        return None
    differences = {task: fmean(after[task]) - fmean(before[task]) for task in shared}
    groups = by_environment(differences, base)
    # Rounded, so that the last bits of a sum make no environment better or worse.
    means = [round(fmean(group), 9) for group in groups]
    better, worse = (sum(sign * mean > 0 for mean in means) for sign in (1, -1))
    return PairedDifference(
        value=fmean(differences.values()),
        ci95=bootstrap_mean(groups),
        p_value=sign_test(better, worse),
        n=len(shared),
        better=sum(difference > 0 for difference in differences.values()),
        worse=sum(difference < 0 for difference in differences.values()),
        environments=len(groups),
        environments_better=better,
        environments_worse=worse,
    )


def measure(episodes: Sequence[Episode]) -> Measures:
    """The measures of one model from its finished episodes."""
    outcomes = successes_by_task(episodes)
    shares = {task: fmean(attempts) for task, attempts in outcomes.items()}
    groups = by_environment(shares, episodes)
    success = fmean(shares.values()) if shares else None
    effective = effective_tasks(groups) if shares else 0.0
    successes = sum(episode.success for episode in episodes)
    tokens = [episode.completion_tokens for episode in episodes if episode.completion_tokens is not None]
    return Measures(
        n=len(outcomes),
        environments=len(groups),
        episodes=len(episodes),
        success=success,
        ci95=None if success is None else wilson(success * effective, effective),
        pass_at_k=pass_at_sizes(outcomes),
        pass_at_k_tasks=tasks_by_k(outcomes),
        invalid_action_rate=ratio(sum(each.invalid for each in episodes), sum(each.actions for each in episodes)),
        loop_rate=ratio(sum(each.looped for each in episodes), len(episodes)),
        truncation_rate=ratio(sum(each.truncated for each in episodes), len(episodes)),
        turns_per_success=ratio(sum(each.turns for each in episodes), successes),
        # The tokens of some episodes alone would make a success look cheaper than it is.
        completion_tokens_per_success=ratio(sum(tokens), successes) if len(tokens) == len(episodes) else None,
    )


def ratio(numerator: float, denominator: float) -> float | None:
    """Their quotient, or ``None`` where there is nothing to divide by."""
    return numerator / denominator if denominator else None


def loops(steps: Iterable[tuple[Any, Any]], repeats: int = LOOP_REPEATS) -> bool:
    """Whether one (state, action) pair occurs ``repeats`` times or more among ``steps``."""
    return any(count >= repeats for count in Counter(steps).values())


def episodes_of(trajectories: Iterable[Trajectory], verdicts: Iterable[Verdict]) -> list[Episode]:
    """One episode per trajectory that has a scored verdict; the others tell nothing of the model and are left out.

    So are those that ``episode_timeout_s`` ended before they passed: the time depends on the machine and its load.
    """
    passed = {verdict.trajectory_id: bool(verdict.passed) for verdict in verdicts if verdict.status == "scored"}
    return [
        episode_of(trajectory, passed[trajectory.trajectory_id])
        for trajectory in trajectories
        if trajectory.trajectory_id in passed
        and (passed[trajectory.trajectory_id] or trajectory.outcome.reason != TIMEOUT)
    ]


def episode_of(trajectory: Trajectory, success: bool) -> Episode:
    """The episode; the agent's own actions are those of turn 1 and later that were not copied from a parent.

    What other agents say, and what they object to before the environment is asked, does not count.
    """
    own = [item for item in trajectory.content if item.turn > 0 and item.context_operation != "copied"]
    actions = sum(acts(item) for item in own)
    refused = sum(item.error for item in own if answers(item))
    return Episode(
        task_id=trajectory.task_id or trajectory.trajectory_id,
        environment_id=trajectory.environment_id or "",
        attempt=trajectory.attempt,
        success=success,
        actions=actions,
        # One action may be answered by several errors.
        invalid=min(refused, actions),
        turns=len({item.turn for item in own if acts(item)}),
        looped=loops(steps(trajectory)),
        truncated=trajectory.outcome.truncated,
        completion_tokens=trajectory.usage.completion_tokens,
    )


def steps(trajectory: Trajectory) -> Iterator[tuple[str, str]]:
    """(state, action) of every action: the state digest that was last seen, or else the text that was."""
    state = ""
    for item in trajectory.content:
        if isinstance(item, Action):
            if acts(item):
                yield state, words(item)
        elif item.state_digest is not None:
            state = item.state_digest
        elif isinstance(item, TextObservation) and answers(item):
            state = item.content


def answers(item: AnyItem) -> bool:
    """Whether it is an observation of the environment: no summary of earlier turns, and no objection of an agent."""
    return not isinstance(item, Action) and not is_mark(item) and getattr(item, "source", None) != "agent"


def words(action: AnyAction) -> str:
    """What an action says, without the thought that led to it."""
    if isinstance(action, ApiAction):
        arguments = msgspec.json.encode(action.kwargs, order="sorted").decode()
        return f"{action.function} {action.raw_arguments or arguments}"
    if isinstance(action, CodeAction):
        return f"{action.language}\n{action.content}"
    return action.content
