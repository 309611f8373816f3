"""The calibration of a judge: how its verdicts agree with those of a reference, and which verdicts that holds for.

* Agreement and the two error rates have Wilson score intervals, as in ``agentmill.pipelines.evaluation``. Pairs count
  as independent.
* Cohen's kappa (J. Cohen, Educ. Psychol. Meas. 20, 1960) is agreement beyond chance: 1 where both always agree, 0 where
  they agree as often as two judges with the same shares of passes who know nothing. Its interval is of the percentile
  bootstrap over pairs, with a fixed seed.
* It holds for the judge and the prompt that it was measured with. Another prompt is another judge.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import polars as pl

from agentmill.pipelines.evaluation import BOOTSTRAP_SEED, CONFIDENCE, RESAMPLES, Interval, wilson
from agentmill.pipelines.recipes.summary import counted, interval, percent
from agentmill.schemas.records.verdict import Verdict
from agentmill.schemas.tables import Counts, Table, read_columns

METHOD = "Wilson; kappa: percentile bootstrap over pairs"
"""What a calibration says of its intervals; one that says otherwise is made anew."""

NO_PAIRS = "there is no pair"


class Identity(NamedTuple):
    """Who gave a verdict: ``Verdict.judge``, and the digest of the prompt, where the evidence has one."""

    judge: str
    prompt: str | None


class JudgedBy(msgspec.Struct, frozen=True):
    """How many pairs a judge decided with a prompt."""

    judge: str
    prompt: str | None
    pairs: int


class Estimate(msgspec.Struct, frozen=True, omit_defaults=True):
    """A measure in its 95 % interval. ``note`` says in words why one of them is ``None``, or what they do not show."""

    value: float | None
    ci95: Interval | None
    note: str = ""


class Confusion(msgspec.Struct, frozen=True):
    """Pairs by what the reference says (first row: passed) and what the judge says (first column: passed)."""

    true_positive: int = 0
    false_negative: int = 0
    false_positive: int = 0
    true_negative: int = 0

    @property
    def n(self) -> int:
        """All pairs."""
        return sum(self.cells)

    @property
    def cells(self) -> tuple[int, int, int, int]:
        """The four counts, row by row."""
        return self.true_positive, self.false_negative, self.false_positive, self.true_negative


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """What ``audit_judge`` found: the verdict ``name`` of a judge against ``reference_name``.

    ``counts`` are of the judge's verdicts: ``read = used + dropped``, and ``used = n`` pairs. ``unjudged`` counts
    trajectories that have a reference and no verdict of the judge. ``inputs`` are digests of tables by role.
    """

    name: str
    reference_name: str
    n: int
    agreement: Estimate
    kappa: Estimate
    confusion: Confusion
    false_positive_rate: Estimate
    false_negative_rate: Estimate
    judged_by: list[JudgedBy]
    counts: Counts
    reasons: dict[str, int]
    unjudged: int
    notes: list[str]
    config: dict[str, str | list[str] | None]
    inputs: dict[str, list[str]]
    method: str = METHOD

    @property
    def identities(self) -> frozenset[Identity]:
        """Who decided its pairs."""
        return frozenset(Identity(each.judge, each.prompt) for each in self.judged_by)

    @property
    def lines(self) -> list[str]:
        """What the summary of a run shows."""
        return [f"{self.name}: {measured_text(self)}", *self.notes]


def confusion_of(pairs: Iterable[tuple[bool, bool]]) -> Confusion:
    """Count (reference, judge) pairs."""
    counts = Counter(pairs)
    order = ((True, True), (True, False), (False, True), (False, False))
    return Confusion(*(counts[each] for each in order))


def rate(part: int, whole: int, empty: str) -> Estimate:
    """``part`` of ``whole`` with its Wilson interval; ``empty`` is the note where there is nothing to divide by."""
    return Estimate(part / whole, wilson(part, whole)) if whole else Estimate(None, None, empty)


def agreement(table: Confusion) -> Estimate:
    """The share of pairs in which judge and reference agree."""
    return rate(table.true_positive + table.true_negative, table.n, NO_PAIRS)


def false_positive_rate(table: Confusion) -> Estimate:
    """Of what the reference failed, the share that the judge passed."""
    return rate(table.false_positive, table.false_positive + table.true_negative, "the reference failed no trajectory")


def false_negative_rate(table: Confusion) -> Estimate:
    """Of what the reference passed, the share that the judge failed."""
    return rate(table.false_negative, table.false_negative + table.true_positive, "the reference passed no trajectory")


def kappa(table: Confusion) -> Estimate:
    """Cohen's kappa; ``None`` where it is not defined, since both give one and the same decision to all pairs."""
    positive, _, _, negative = table.cells
    if table.n in (positive, negative):
        every = f"both {'pass' if positive else 'fail'} every trajectory, so kappa is not defined"
        return Estimate(None, None, every if table.n else NO_PAIRS)
    # Imported here: it takes a second, and the command line would wait for it.
    from sklearn.metrics import cohen_kappa_score

    reference, judge = (True, True, False, False), (True, False, True, False)
    value = float(cohen_kappa_score(reference, judge, sample_weight=table.cells))
    ends = kappa_interval(table)
    return Estimate(value, ends, one_sided(table) or ("" if ends else "no resample of the pairs has another kappa"))


def one_sided(table: Confusion) -> str:
    """Why kappa says nothing: the reference or the judge decides all pairs in one way. Empty where neither does."""
    both, missed, wrong, _ = table.cells
    passed = {"reference": both + missed, "judge": both + wrong}
    for who, n in passed.items():
        if n in (0, table.n):
            return f"the {who} {'passes' if n else 'fails'} every trajectory, so kappa is 0 whatever the agreement"
    return ""


def kappa_interval(table: Confusion) -> Interval | None:
    """Percentile interval over resamples of the pairs; ``None`` where all have the same kappa.

    Resamples without a kappa are left out: all of their pairs agree on one decision.
    """
    draws = np.random.default_rng(BOOTSTRAP_SEED).multinomial(table.n, np.array(table.cells) / table.n, RESAMPLES)
    both, missed, wrong, neither = draws.T
    # Kappa of a 2x2 table in closed form: calling scikit-learn for every resample takes seconds.
    scale = (both + missed) * (missed + neither) + (both + wrong) * (wrong + neither)
    kappas = 2 * (both * neither - missed * wrong)[scale > 0] / scale[scale > 0]
    if np.ptp(kappas) == 0:
        return None
    alpha = 1 - CONFIDENCE
    low, high = np.quantile(kappas, [alpha / 2, 1 - alpha / 2])
    return float(low), float(high)


def judges_in(tables: Iterable[Table], trajectories: Set[str] | None = None) -> dict[str, Counter[Identity]]:
    """Who gave the scored verdicts on whole trajectories, by the name of the verdict, with counts of trajectories.

    With ``trajectories``, only verdicts on these count. Raises ``UserError`` for a shard that cannot be read.
    """
    found: dict[str, Counter[Identity]] = defaultdict(Counter)
    columns = ["trajectory_id", "name", "item", "status", "judge", "evidence"]
    key = ["trajectory_id", "name", "judge", "prompt"]
    frames = [pl.DataFrame(schema=dict.fromkeys(key, pl.String))]
    for path in (path for table in tables for path in table.shards()):
        frame = pl.DataFrame(pl.from_arrow(read_columns(path, Verdict, columns)))
        frame = frame.filter(pl.col("item").is_null(), pl.col("status") == "scored")
        if trajectories is not None:
            frame = frame.filter(pl.col("trajectory_id").is_in(list(trajectories)))
        frames.append(frame.with_columns(prompt=pl.col("evidence").str.json_path_match("$.prompt")).select(key))
    # A verdict that is in two tables is one.
    together = pl.concat(frames).unique()
    for name, judge, prompt, n in together.group_by("name", "judge", "prompt").len().iter_rows():
        found[name][Identity(judge, prompt)] += n
    return dict(found)


def judged_by(judges: Mapping[Identity, int]) -> list[JudgedBy]:
    """The same as a list in a fixed order."""
    ordered = sorted(judges.items(), key=lambda entry: (entry[0].judge, entry[0].prompt or ""))
    return [JudgedBy(judge, prompt, pairs) for (judge, prompt), pairs in ordered]


State = Literal["calibrated", "uncalibrated"]


def calibration_of(name: str, judges: Set[Identity], calibration: Calibration) -> tuple[State, str]:
    """Whether ``calibration`` holds for the verdict ``name`` of these ``judges``; if it does not, why, in words.

    It holds if all of them decided pairs of it, each with its prompt. Of a part (``NAME/PART``) only the calibration of
    this part holds.
    """
    part, measured = name.partition("/")[2], calibration.name.partition("/")[2]
    strange = judges - calibration.identities
    known = {each.judge for each in calibration.identities}
    if part != measured:
        return "uncalibrated", f"{calibration.name} was calibrated, not {name}"
    if not strange:
        return "calibrated", ""
    others = sorted({each.judge for each in strange} - known)
    if others:
        return "uncalibrated", f"{', '.join(others)} was not calibrated"
    return "uncalibrated", "its prompt is not the one that was calibrated"


def calibration_text(name: str, judges: Iterable[Identity], calibrations: Sequence[Calibration]) -> str | None:
    """What cards and reports show with a verdict: agreement and kappa, or "uncalibrated: WHY".

    ``None`` for verdicts that no prompt asked for. Of several calibrations that hold, the one of most pairs is shown.
    """
    asked = {each for each in judges if each.prompt is not None}
    if not asked:
        return None
    if not calibrations:
        return "uncalibrated: no calibration in this run"
    holding = [each for each in calibrations if calibration_of(name, asked, each)[0] == "calibrated"]
    if holding:
        return measured_text(max(holding, key=lambda each: each.n))
    own = {each.judge for each in asked}
    nearest = max(calibrations, key=lambda each: not own.isdisjoint(known.judge for known in each.identities))
    state, why = calibration_of(name, asked, nearest)
    return f"{state}: {why}"


def measured_text(calibration: Calibration) -> str:
    """Agreement and kappa with their intervals, and what they rest on."""
    pairs = f"{counted(calibration.n, 'pair')} with {calibration.reference_name}"
    return f"agreement {percent_text(calibration.agreement)}, kappa {kappa_text(calibration.kappa)}, {pairs}"


def percent_text(estimate: Estimate) -> str:
    """``"90.0 % [78.6, 95.7]"``, or ``"-"``."""
    return percent(estimate.value) + (f" {interval(estimate.ci95)}" if estimate.ci95 else "")


def kappa_text(estimate: Estimate) -> str:
    """``"0.80 [0.58, 0.96]"``, or ``"-"``; without an interval where there is none."""
    ends = "" if estimate.ci95 is None else f" [{estimate.ci95[0]:.2f}, {estimate.ci95[1]:.2f}]"
    return "-" if estimate.value is None else f"{estimate.value:.2f}{ends}"
