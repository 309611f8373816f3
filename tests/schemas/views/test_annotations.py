"""Scores by criterion: progress and success of a verdict are two things."""

from __future__ import annotations

from typing import Literal

import pytest

from agentmill.schemas.config import Config, validate
from agentmill.schemas.records.verdict import Value, Verdict
from agentmill.schemas.views.annotations import Annotations, Criterion, score
from tests.builders import outcome, trajectory, verdict
from tests.errors import user_error


def judged(name: str, status: Literal["scored", "error"], score: float | None = None) -> Verdict:
    """A verdict that does not say whether the trajectory passed."""
    return Verdict(trajectory_id="t1", name=name, status=status, judge="model", score=score)


HALFWAY = Annotations(
    verdicts={
        (None, "check_outcome"): verdict("t1", passed=False, score=0.5),
        (None, "judge"): judged("judge", "scored", 0.7),
        (None, "broken"): judged("broken", "error"),
        (2, "check_outcome"): verdict("t1", passed=True, score=1.0, item=2),
    },
    values={(None, "mc"): Value(trajectory_id="t1", name="mc", value=0.25, estimator="e", n=4)},
)


@pytest.mark.parametrize(
    ("criterion", "item", "expected"),
    [
        ("outcome", None, 0.0),
        ("verdict:check_outcome", None, 0.5),
        ("passed:check_outcome", None, 0.0),
        ("passed:check_outcome", 2, 1.0),
        ("passed:check_outcome", 3, None),
        ("verdict:judge", None, 0.7),
        ("passed:judge", None, None),
        ("passed:broken", None, None),
        ("value:mc", None, 0.25),
        ("value:other", None, None),
    ],
)
def test_score_by_criterion(criterion: str, item: int | None, expected: float | None) -> None:
    assert score(criterion, trajectory(outcome=outcome("failure")), HALFWAY, item) == expected


class Scored(Config):
    score: Criterion = "outcome"


@pytest.mark.parametrize("criterion", ["outcome", "reward", "verdict:a:b", "passed:a", "value:mc"])
def test_criteria_that_are_known(criterion: str) -> None:
    assert validate(Scored, {"score": criterion}, "step").score == criterion


@pytest.mark.parametrize("criterion", ["success", "verdict:", "verdict", "label:x", "outcome:x"])
def test_criteria_that_are_not_known(criterion: str) -> None:
    with user_error("rule-broken", "outcome", "reward", "verdict:NAME"):
        validate(Scored, {"score": criterion}, "step")
