"""Known answers of the measures of a judge, and for which verdicts a calibration holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from agentmill.pipelines.calibration import (
    Calibration,
    Confusion,
    Estimate,
    Identity,
    JudgedBy,
    agreement,
    calibration_of,
    calibration_text,
    confusion_of,
    false_negative_rate,
    false_positive_rate,
    judged_by,
    judges_in,
    kappa,
    kappa_interval,
    kappa_text,
    percent_text,
)
from agentmill.schemas.records.verdict import Verdict
from agentmill.schemas.tables import Counts
from tests.builders import verdict
from tests.pipelines.engine.stages import write_table

GRANTS = Confusion(20, 5, 10, 15)
"""Fifty proposals, two readers: the example of the article "Cohen's kappa" in Wikipedia."""

QWEN = Identity("judge:Qwen/Qwen2.5-7B@0123456789ab", "aa11")


def calibrated(*judges: Identity, table: Confusion = GRANTS, **fields: Any) -> Calibration:
    """The calibration of ``judges``."""
    values: dict[str, Any] = {"name": "judge", "reference_name": "check_outcome", **fields}
    return Calibration(
        n=table.n,
        agreement=agreement(table),
        kappa=kappa(table),
        confusion=table,
        false_positive_rate=false_positive_rate(table),
        false_negative_rate=false_negative_rate(table),
        judged_by=judged_by(dict.fromkeys(judges, 1)),
        counts=Counts(read=table.n, used=table.n, dropped=0, written=0),
        reasons={},
        unjudged=0,
        notes=[],
        config={},
        inputs={},
        **values,
    )


@pytest.mark.parametrize(
    ("cells", "share", "expected"),
    [
        ((20, 5, 10, 15), 0.7, 0.4),  # 0.7 observed, 0.5 by chance
        ((45, 15, 25, 15), 0.6, 0.06 / 0.46),  # 0.54 by chance
        ((25, 35, 5, 35), 0.6, 0.14 / 0.54),  # 0.46 by chance
        ((10, 0, 0, 10), 1.0, 1.0),
        ((0, 10, 10, 0), 0.0, -1.0),
    ],
)
def test_agreement_and_kappa_of_known_tables(cells: tuple[int, ...], share: float, expected: float) -> None:
    table = Confusion(*cells)
    assert agreement(table).value == pytest.approx(share)
    assert kappa(table).value == pytest.approx(expected)


def test_intervals_of_a_known_table() -> None:
    # Wilson for 35 of 50, computed by hand: centre 0.68573, half 0.12324.
    assert agreement(GRANTS).ci95 == pytest.approx((0.56249, 0.80897), abs=1e-4)
    # Asymptotic standard error of kappa (Fleiss, Cohen and Everitt 1969) for this table: 0.1265.
    assert kappa(GRANTS).ci95 == pytest.approx((0.4 - 1.96 * 0.1265, 0.4 + 1.96 * 0.1265), abs=0.03)
    assert kappa(GRANTS) == kappa(GRANTS), "the draws have a fixed seed"


def test_error_rates() -> None:
    assert false_positive_rate(GRANTS).value == pytest.approx(10 / 25)
    assert false_negative_rate(GRANTS).value == pytest.approx(5 / 25)
    assert false_positive_rate(Confusion(3, 1, 0, 0)) == Estimate(None, None, "the reference failed no trajectory")
    assert false_negative_rate(Confusion(0, 0, 3, 1)) == Estimate(None, None, "the reference passed no trajectory")


def test_pairs_are_counted_with_the_reference_in_the_rows() -> None:
    pairs = [(True, True), (True, False), (True, False), (False, True), (False, False), (False, False), (False, False)]
    assert confusion_of(pairs) == Confusion(true_positive=1, false_negative=2, false_positive=1, true_negative=3)


@pytest.mark.parametrize(("cells", "word"), [((9, 0, 0, 0), "pass"), ((0, 0, 0, 9), "fail")])
def test_kappa_of_one_class_is_null_with_a_note(cells: tuple[int, ...], word: str) -> None:
    found = kappa(Confusion(*cells))
    assert (found.value, found.ci95) == (None, None)
    assert f"both {word} every trajectory" in found.note
    assert b"NaN" not in msgspec.json.encode(found)


@pytest.mark.parametrize(
    ("cells", "note"),
    [
        ((9, 0, 1, 0), "the judge passes every trajectory"),
        ((9, 1, 0, 0), "the reference passes every trajectory"),
        ((0, 0, 1, 9), "the reference fails every trajectory"),
        ((0, 9, 0, 0), "the reference passes every trajectory"),
    ],
)
def test_kappa_is_0_where_one_side_has_one_class(cells: tuple[int, ...], note: str) -> None:
    found = kappa(Confusion(*cells))
    assert (found.value, found.ci95) == (0.0, None)
    assert note in found.note


def test_no_pair_has_no_measure() -> None:
    assert agreement(Confusion()) == kappa(Confusion()) == Estimate(None, None, "there is no pair")


def test_perfect_agreement_has_no_interval_of_kappa() -> None:
    assert kappa(Confusion(4, 0, 0, 3)) == Estimate(1.0, None, "no resample of the pairs has another kappa")


def test_the_closed_form_of_the_bootstrap_is_that_of_scikit_learn() -> None:
    ends = []
    generator = np.random.default_rng(3)
    for _ in range(200):
        cells = generator.multinomial(50, np.array(GRANTS.cells) / 50)
        ends.append(cohen_kappa_score((1, 1, 0, 0), (1, 0, 1, 0), sample_weight=cells))
    found = kappa_interval(GRANTS)
    assert found is not None
    assert found == pytest.approx(np.quantile(ends, [0.025, 0.975]), abs=0.08)


def test_judges_of_a_table_by_verdict(tmp_path: Path) -> None:
    prompt = {"evidence": {"prompt": "aa11", "critique": "fine"}, "name": "judge", "judge": QWEN.judge}
    unscored = verdict("d", **prompt, item=None)
    rows = [
        *(verdict(each, **prompt) for each in "abc"),
        verdict("a", **prompt, item=2),
        verdict("a"),
        msgspec.structs.replace(unscored, status="unscored", passed=None, score=None),
    ]
    table = write_table(tmp_path / "judged", [rows[:3], rows[3:]], Verdict)
    again = write_table(tmp_path / "again", [rows[:1]], Verdict)
    known = {"judge": {QWEN: 3}, "check_outcome": {Identity("environment", None): 1}}
    assert judges_in([table]) == judges_in([table, again]) == known
    assert judges_in([table], {"b", "d"}) == {"judge": {QWEN: 1}}
    assert judged_by(known["judge"]) == [JudgedBy(*QWEN, 3)]
    assert judges_in([write_table(tmp_path / "empty", [[]], Verdict)]) == {}


def test_a_calibration_holds_for_its_judge_and_its_prompt_only() -> None:
    changed, other = QWEN._replace(prompt="bb22"), QWEN._replace(judge="judge:B@r")
    found = calibrated(QWEN, other._replace(prompt="bb22"))
    assert calibration_of("judge", {QWEN}, found) == ("calibrated", "")
    assert calibration_of("again", {QWEN}, found)[0] == "calibrated", "by another name it is the same judge"
    assert calibration_of("judge", {QWEN, changed}, found) == (
        "uncalibrated",
        "its prompt is not the one that was calibrated",
    )
    assert calibration_of("judge", {other}, found)[0] == "uncalibrated", "it had this judge, with another prompt"
    strange = Identity("judge:C@r", "aa11")
    assert calibration_of("judge", {strange}, found) == ("uncalibrated", "judge:C@r was not calibrated")
    assert calibration_of("judge/tone", {QWEN}, found) == ("uncalibrated", "judge was calibrated, not judge/tone")


def test_the_text_for_cards_and_reports() -> None:
    small, large = calibrated(QWEN, table=Confusion(4, 1, 1, 4)), calibrated(QWEN)
    found = calibration_text("judge", {QWEN}, [small, large])
    ends = large.kappa.ci95
    assert ends is not None
    assert found == (
        f"agreement 70.0 % [56.2, 80.9], kappa 0.40 [{ends[0]:.2f}, {ends[1]:.2f}], 50 pairs with check_outcome"
    )
    assert calibration_text("judge", {QWEN}, []) == "uncalibrated: no calibration in this run"
    changed = calibration_text("judge", {QWEN._replace(prompt="bb")}, [calibrated(Identity("judge:B@r", "b")), large])
    assert changed == "uncalibrated: its prompt is not the one that was calibrated"
    assert calibration_text("check_outcome", {Identity("environment", None)}, [large]) is None
    assert (percent_text(Estimate(None, None)), kappa_text(Estimate(None, None))) == ("-", "-")
    assert kappa_text(Estimate(1.0, None)) == "1.00"
