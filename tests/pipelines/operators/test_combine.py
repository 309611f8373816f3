"""``combine``: one verdict from several scores, by hand-computed values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.operators.combine import Combine, WeightedScore
from agentmill.schemas.conditions import AnnotationNeed
from agentmill.schemas.records.trajectory import Outcome, Trajectory
from agentmill.schemas.records.verdict import Value, Verdict
from agentmill.schemas.tables import Counts
from tests.builders import trajectory, verdict
from tests.errors import user_error
from tests.pipelines.engine.stages import rows_of, write_table
from tests.pipelines.operators.steps import job, run, stage

TABLES = {"of": "runs", "verdicts": ["outcomes", "judged"], "values": "worth"}
SCORES = [
    {"score": "passed:check_outcome", "weight": 2, "veto": True},
    {"score": "verdict:judge"},
    {"score": "value:worth", "from": 0, "to": 2},
    {"score": "reward", "weight": 0.5, "missing": 0.0},
]


def unscored(trajectory_id: str, name: str) -> Verdict:
    """A verdict without a score."""
    return Verdict(trajectory_id=trajectory_id, name=name, status="unscored", judge="m", reason="too_long")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """``all`` has every score, ``vetoed`` failed, ``less`` has no verdict of the judge, ``blind`` and ``none`` none."""
    rewards = {"all": 0.5, "vetoed": 1.0, "less": None, "blind": 1.0, "none": None}
    rows = [trajectory(name, task_id=name, outcome=Outcome(reward=reward)) for name, reward in rewards.items()]
    write_table(tmp_path / "runs", [rows[:2], rows[2:]], Trajectory)
    outcomes = [verdict("all"), verdict("vetoed", passed=False), verdict("less"), unscored("blind", "check_outcome")]
    write_table(tmp_path / "outcomes", [outcomes], Verdict)
    judged = [
        verdict("all", name="judge", score=0.25, passed=False),
        verdict("vetoed", name="judge", score=1.0),
        unscored("less", "judge"),
    ]
    write_table(tmp_path / "judged", [judged], Verdict)
    worth = {"all": 1.5, "vetoed": 3.0, "less": -1.0, "blind": 1.0}
    values = [Value(trajectory_id=name, name="worth", value=value, estimator="m", n=1) for name, value in worth.items()]
    write_table(tmp_path / "worth", [values], Value)
    return tmp_path


def combined(folder: Path, **parameters: Any) -> dict[str, Verdict]:
    """The verdicts of a step by trajectory."""
    run(folder, "combine", "combined", **{**TABLES, "scores": SCORES, **parameters})
    return {row.trajectory_id: row for row in rows_of(folder / "combined")}


def one(folder: Path, *scores: dict[str, Any], **parameters: Any) -> Verdict:
    """The verdict on ``all``, whose scores are passed 1, judge 0.25, worth 1.5 and reward 0.5."""
    named = " ".join(each["score"] for each in scores)
    roles = {"verdicts": "judge" in named or "check_outcome" in named, "values": "value:" in named}
    given = {role: TABLES[role] for role, asked in roles.items() if asked}
    run(folder, "combine", "one", of="runs", scores=list(scores), **given, **parameters)
    return {row.trajectory_id: row for row in rows_of(folder / "one")}["all"]


def test_weighted_mean_of_rescaled_scores(runs: Path) -> None:
    found = combined(runs)
    # (2 * 1 + 1 * 0.25 + 1 * 1.5 / 2 + 0.5 * 0.5) / 4.5
    assert found["all"].score == pytest.approx(3.25 / 4.5)
    assert (found["all"].status, found["all"].passed, found["all"].name) == ("scored", True, "combine")
    assert found["all"].judge == "combine"
    assert found["all"].evidence == {
        "scores": [
            {"score": "passed:check_outcome", "value": 1.0, "counted": 1.0, "weight": 2.0},
            {"score": "verdict:judge", "value": 0.25, "counted": 0.25, "weight": 1.0},
            {"score": "value:worth", "value": 1.5, "counted": 0.75, "weight": 1.0},
            {"score": "reward", "value": 0.5, "counted": 0.5, "weight": 0.5},
        ]
    }


def test_veto_fails_the_whole_and_keeps_the_score(runs: Path) -> None:
    found = combined(runs)["vetoed"]
    # (2 * 0 + 1 * 1 + 1 * 1 + 0.5 * 1) / 4.5, where the value 3 is clipped to 1
    assert found.score == pytest.approx(2.5 / 4.5)
    assert found.passed is False
    assert found.evidence["vetoed"] == ["passed:check_outcome"]
    assert found.evidence["scores"][2] == {
        "score": "value:worth",
        "value": 3.0,
        "counted": 1.0,
        "weight": 1.0,
        "clipped": True,
    }


def test_unknown_score_is_left_out_and_missing_counts(runs: Path) -> None:
    found = combined(runs)["less"]
    # (2 * 1 + 1 * 0 + 0.5 * 0) / 3.5: no verdict of the judge, -1 is clipped to 0, an unknown reward counts as 0
    assert found.score == pytest.approx(2 / 3.5)
    values = [(each["value"], each["counted"]) for each in found.evidence["scores"]]
    assert values == [(1.0, 1.0), (None, None), (-1.0, 0.0), (None, 0.0)]


def test_unscored_where_a_veto_or_everything_is_unknown(runs: Path) -> None:
    found = combined(runs)
    for name, reason in (("blind", "veto_unknown"), ("none", "nothing_known")):
        verdict = found[name]
        assert (verdict.status, verdict.score, verdict.passed, verdict.reason) == ("unscored", None, None, reason)
        assert len(verdict.evidence["scores"]) == 4


def test_metrics_and_notes(runs: Path) -> None:
    step = job(runs, "combine", "combined", **TABLES, scores=SCORES)
    manifest = step.run()
    assert manifest.counts == Counts(read=5, used=5, dropped=0, written=5)
    assert manifest.metrics == {
        "scored": 3,
        "passed": 2,
        "unscored": 2,
        "unscored.nothing_known": 1,
        "unscored.veto_unknown": 1,
        "clipped.value:worth": 2,
    }
    assert step.parameters.notes(manifest) == [
        "warning: of 5 verdicts 2 are unscored (nothing_known 1, veto_unknown 1)",
        "warning: 2 of `value:worth` lie outside of 0 to 2 and count as the nearest end",
    ]


@pytest.mark.parametrize(
    ("method", "score"),
    [("mean", (0.25 + 0.75 + 0.5) / 3), ("min", 0.25), ("max", 0.75), ("product", 0.25 * 0.75 * 0.5)],
)
def test_methods(method: str, score: float, runs: Path) -> None:
    scores = [{"score": "verdict:judge"}, {"score": "value:worth", "from": 0, "to": 2}, {"score": "reward"}]
    found = one(runs, *scores, method=method)
    assert found.score == pytest.approx(score)
    assert found.passed is (score >= 0.5)


@pytest.mark.parametrize(("pass_at", "passed"), [(0.25, True), (0.2501, False)])
def test_pass_at(pass_at: float, passed: bool, runs: Path) -> None:
    assert one(runs, {"score": "verdict:judge"}, pass_at=pass_at).passed is passed


def test_rounding_of_weights_does_not_fail_a_full_score(runs: Path) -> None:
    scores = [
        {"score": "passed:check_outcome", "weight": 0.1},
        {"score": "value:worth", "from": 0, "to": 1, "weight": 0.7},
        {"score": "reward", "from": 0, "to": 0.5, "weight": 0.2},
    ]
    assert one(runs, *scores, pass_at=1.0).passed is True


@pytest.mark.parametrize(("start", "score"), [(2, 0.25), (1, 0.0)])
def test_range_that_runs_down_makes_less_better(start: float, score: float, runs: Path) -> None:
    assert one(runs, {"score": "value:worth", "from": start, "to": 0}).score == pytest.approx(score)


@pytest.mark.parametrize(
    ("veto", "passed"),
    [
        ({"veto": True}, True),
        ({"veto": True, "veto_below": 0.25}, True),
        ({"veto": True, "veto_below": 0.3}, False),
        # The value 0.25 is the lower end of the range, so the score is 0.
        ({"veto": True, "from": 0.25, "to": 1}, False),
    ],
)
def test_veto_below(veto: dict[str, Any], passed: bool, runs: Path) -> None:
    found = one(runs, {"score": "passed:check_outcome", "weight": 9}, {"score": "verdict:judge", **veto})
    assert found.passed is passed
    assert found.evidence.get("vetoed", []) == ([] if passed else ["verdict:judge"])


@pytest.mark.parametrize("method", ["min", "max", "product"])
def test_a_score_of_weight_zero_is_only_a_veto_with_other_methods(method: str, runs: Path) -> None:
    veto = {"score": "value:worth", "from": 0, "to": 2, "weight": 0, "veto": True, "veto_below": 0.8}
    found = one(runs, {"score": "reward"}, veto, method=method, pass_at=0.5)
    assert found.score == 0.5
    assert found.passed is False
    assert found.evidence["vetoed"] == ["value:worth"]


def test_veto_of_weight_zero_is_not_in_the_mean(runs: Path) -> None:
    scores = [{"score": "passed:check_outcome", "weight": 0, "veto": True}, {"score": "verdict:judge"}]
    found = combined(runs, scores=scores, values=None)
    assert (found["all"].score, found["all"].passed) == (0.25, False)
    assert (found["vetoed"].score, found["vetoed"].passed) == (1.0, False)
    assert found["less"].reason == "nothing_known"


@pytest.mark.parametrize(("missing", "passed", "score"), [(0.0, False, 0.5), (1.0, True, 1.0)])
def test_missing_decides_an_unknown_veto(missing: float, passed: bool, score: float, runs: Path) -> None:
    scores = [{"score": "passed:check_outcome", "veto": True, "missing": missing}, {"score": "reward"}]
    found = combined(runs, scores=scores, values=None)
    assert (found["blind"].score, found["blind"].passed) == (score, passed)
    # Nothing is known of this one, and `missing` is no knowledge.
    assert found["none"].reason == "nothing_known"


def test_outcome_needs_no_table(runs: Path) -> None:
    manifest = run(runs, "combine", "plain", of="runs", scores=[{"score": "reward"}], name="paid")
    assert {row.trajectory_id: row.score for row in rows_of(runs / "plain")} == {
        "all": 0.5,
        "vetoed": 1.0,
        "less": None,
        "blind": 1.0,
        "none": None,
    }
    assert manifest.metrics["passed"] == 3
    assert {row.name for row in rows_of(runs / "plain")} == {"paid"}


def test_annotation_needs_are_found_in_the_scores() -> None:
    assert list(stage("combine", **TABLES, scores=SCORES).annotation_needs()) == [
        AnnotationNeed("scores.score: passed:check_outcome", "verdict", "check_outcome"),
        AnnotationNeed("scores.score: verdict:judge", "verdict", "judge"),
        AnnotationNeed("scores.score: value:worth", "value", "worth"),
    ]


def test_score_without_its_table_is_refused() -> None:
    with user_error("needs-another-key", "scores.score: value:worth", "values"):
        stage("combine", of="runs", verdicts="v", scores=SCORES).writes({"of": ["Trajectory"], "verdicts": ["Verdict"]})


def test_table_that_nothing_asks_is_warned_of(runs: Path) -> None:
    step = job(runs, "combine", "combined", **TABLES, scores=SCORES[:2])
    assert [note for note in step.parameters.notes(step.run()) if "`values` is named" in note]


@pytest.mark.parametrize(
    ("scores", "parameters", "words"),
    [
        ([], {}, ("invalid-value", "scores")),
        ([{"score": "judge"}], {}, ("rule-broken", "'judge' is no score")),
        ([{"score": "reward", "from": 1}], {}, ("rule-broken", "`from`", "`to`")),
        ([{"score": "reward", "from": 1, "to": 1}], {}, ("rule-broken", "`from`", "`to`")),
        ([{"score": "reward", "veto_below": 1}], {}, ("rule-broken", "veto_below: 1", "veto: true")),
        ([{"score": "reward", "weight": 0}], {}, ("rule-broken", "reward", "weight 0")),
        ([{"score": "reward", "weight": -1}], {}, ("invalid-value", "weight")),
        ([{"score": "reward", "weight": 0, "veto": True}], {}, ("rule-broken", "weights")),
        ([{"score": "reward"}, {"score": "reward"}], {}, ("rule-broken", "'reward' twice")),
        ([{"score": "reward", "weight": 2}], {"method": "min"}, ("rule-broken", "weight", "method: min")),
        ([{"score": "reward", "wieght": 2}], {}, ("unknown-key", "wieght", "weight")),
    ],
)
def test_bad_parameters_are_refused(
    scores: list[dict[str, Any]], parameters: dict[str, Any], words: tuple[str, ...]
) -> None:
    with user_error(*words) as caught:
        stage("combine", of="runs", scores=scores, **parameters)
    assert len(str(caught.value).splitlines()) <= 2


def test_parameters_are_configurations() -> None:
    step = stage("combine", of="runs", scores=[{"score": "value:worth", "from": 0, "to": 2}], values="w")
    assert isinstance(step, Combine)
    assert step.scores == [WeightedScore.model_validate({"score": "value:worth", "from": 0, "to": 2})]
