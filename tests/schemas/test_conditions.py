"""Conditions: what they accept of rows, and which of them make no sense."""

from __future__ import annotations

from typing import Any

import pytest

from agentmill.pipelines.quality import quality
from agentmill.schemas.conditions import Condition, exceeds, reaches
from agentmill.schemas.config import validate
from agentmill.schemas.records.trajectory import Usage
from agentmill.schemas.records.verdict import Label, Value
from agentmill.schemas.views.annotations import Annotations
from tests.builders import trajectory, verdict
from tests.errors import user_error

ROW = trajectory("t1", usage=Usage(completion_tokens=40), extra={"source": {"stars": 4}, "seen": True})
SAID = Annotations(
    verdicts={
        (None, "check_outcome"): verdict("t1"),
        (None, "check_rules"): verdict("t1", passed=False, name="check_rules", score=0.4),
        (2, "check_rules"): verdict("t1", name="check_rules", score=1.0, item=2),
        (None, "sum"): verdict("t1", name="sum", score=0.1 + 0.7),
        (None, "mean"): verdict("t1", name="mean", score=0.1 + 0.2),
    },
    labels={(None, "language"): Label(trajectory_id="t1", name="language", value="en", labeller="l")},
    quality=quality(ROW, None, lambda text: "en"),
    values={(2, "mc"): Value(trajectory_id="t1", name="mc", value=0.6, estimator="e", n=5, item=2)},
)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ({"verdict": "check_outcome", "passed": True}, True),
        ({"verdict": "check_outcome", "passed": False}, False),
        ({"verdict": "check_rules", "at_least": 0.4}, True),
        ({"verdict": "check_rules", "at_least": 0.2, "at_most": 0.3}, False),
        ({"verdict": "check_rules", "passed": False, "at_most": 0.5}, True),
        ({"verdict": "check_rules", "passed": True, "at_most": 0.5}, False),
        ({"verdict": "judge", "passed": False}, False),
        ({"verdict": "judge", "at_most": 1}, False),
        ({"verdict": "sum", "at_least": 0.8}, True),
        ({"verdict": "sum", "at_least": 0.81}, False),
        ({"verdict": "mean", "at_most": 0.3}, True),
        ({"verdict": "mean", "at_most": 0.29}, False),
        ({"label": "language", "equals": "en"}, True),
        ({"label": "language", "one_of": ["de", "fr"]}, False),
        ({"label": "topic", "equals": "en"}, False),
        ({"quality": "errors", "at_most": 1}, True),
        ({"quality": "errors", "equals": 0}, False),
        ({"quality": "ending", "one_of": ["observation"]}, True),
        ({"quality": "tokens", "at_least": 0}, False),
        ({"field": "outcome.truncated", "equals": False}, True),
        ({"field": "outcome.status", "one_of": ["failure", "unknown"]}, False),
        ({"field": "usage.completion_tokens", "at_most": 40}, True),
        ({"field": "usage.prompt_tokens", "at_most": 40}, False),
        ({"field": "extra.source.stars", "one_of": [4, 5]}, True),
        ({"field": "extra.seen", "one_of": [1, 0]}, False),
        ({"field": "extra.seen", "one_of": [True]}, True),
        ({"field": "extra.nothing.at.all", "equals": None}, True),
        ({"field": "extra.nothing", "at_least": 0}, False),
        ({"field": "source.dataset", "equals": "toy"}, False),
        ({"field": "generation.sampling.top_p", "at_least": 0}, False),
    ],
)
def test_holds(condition: dict[str, Any], holds: bool) -> None:
    assert Condition.model_validate(condition).holds(ROW, SAID) is holds


def test_a_condition_may_be_asked_of_one_item() -> None:
    rules = Condition.model_validate({"verdict": "check_rules", "passed": True})
    assert [rules.holds(ROW, SAID, item) for item in (None, 1, 2)] == [False, False, True]
    hopeful = Condition.model_validate({"value": "mc", "at_least": 0.5})
    assert [hopeful.holds(ROW, SAID, item) for item in (None, 1, 2)] == [False, False, True]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"passed": True}, ("rule-broken", "verdict", "label", "value", "field")),
        ({"verdict": "a", "label": "b", "equals": 1}, ("rule-broken", "verdict", "label")),
        ({"verdict": "a"}, ("rule-broken", "passed")),
        ({"field": "split", "passed": True}, ("rule-broken", "passed", "verdict")),
        ({"verdict": "a", "pased": True}, ("unknown-key", "verdict", "pased")),
        ({"field": "misfits", "equals": 1}, ("rule-broken", "Trajectory", "misfits")),
        ({"field": "outcom.status", "equals": "success"}, ("rule-broken", "outcome")),
        ({"field": "outcome.sttus", "equals": "success"}, ("rule-broken", "Trajectory", "sttus", "status")),
        ({"field": "source.dataset.name", "equals": "toy"}, ("rule-broken", "source.dataset")),
        ({"field": "outcome", "equals": "success"}, ("rule-broken", "outcome.status")),
        ({"field": "tools", "equals": "x"}, ("rule-broken", "field", "tools")),
        ({"field": "content.0.turn", "equals": 1}, ("rule-broken", "field", "content.0.turn")),
        ({"field": "outcome.status", "equals": "sucess"}, ("rule-broken", "sucess", "success")),
        ({"field": "outcome.truncated", "equals": 0}, ("rule-broken", "0")),
        ({"field": "outcome.truncated", "at_least": 1}, ("rule-broken", "at_least")),
        ({"field": "split", "at_most": 0}, ("rule-broken", "at_most")),
        ({"field": "attempt", "equals": "1"}, ("rule-broken", "'1'")),
        ({"field": "attempt", "equals": None}, ("rule-broken", "field", "attempt")),
        ({"field": "extra.x", "one_of": ["1", 1]}, ("rule-broken", "one_of")),
        ({"field": "extra.x", "one_of": []}, ("rule-broken", "one_of")),
        ({"field": "extra.x", "at_least": 2, "at_most": 1}, ("rule-broken", "2", "1")),
        ({"label": "solved", "equals": True}, ("rule-broken", "true")),
        ({"label": "stars", "at_least": 3}, ("rule-broken", "at_least")),
        ({"label": "stars", "one_of": ["3", 4]}, ("rule-broken", "4")),
        ({"verdict": "judge", "equals": True}, ("rule-broken", "passed: true")),
        ({"value": "mc", "equals": "0.5"}, ("rule-broken", "0.5")),
        ({"verdict": "check_rules", "passed": None}, ("rule-broken", "passed: null")),
        ({"verdict": "check_rules", "at_least": None}, ("rule-broken", "at_least: null")),
        ({"field": "split", "one_of": None}, ("rule-broken", "one_of: null")),
    ],
)
def test_senseless_conditions(condition: dict[str, Any], expected: tuple[str, ...]) -> None:
    with user_error(*expected):
        validate(Condition, condition, "step")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"quality": "calls_misfits", "at_most": 0}, ("rule-broken", "calls_misfits", "calls_misfit")),
        ({"quality": "errors", "equals": "none"}, ("rule-broken", "never equals")),
        ({"quality": "ending", "equals": "talk"}, ("rule-broken", "never 'talk'")),
        ({"quality": "code_languages", "equals": "python"}, ("rule-broken", "is a list")),
        ({"quality": "errors", "passed": True}, ("rule-broken", "`passed` is asked of a `verdict`")),
    ],
)
def test_counts_that_are_not_there_are_refused(given: dict[str, Any], message: tuple[str, ...]) -> None:
    with user_error(*message):
        validate(Condition, given, "condition")


def test_what_was_not_counted_fulfils_nothing() -> None:
    assert not Condition.model_validate({"quality": "errors", "at_least": 0}).holds(ROW, Annotations())


def test_rounding_decides_nothing() -> None:
    assert 0.1 + 0.7 < 0.8
    assert reaches(0.1 + 0.7, 0.8)
    assert 0.1 + 0.2 > 0.3
    assert not exceeds(0.1 + 0.2, 0.3)


def test_a_difference_decides() -> None:
    assert not reaches(0.7999, 0.8)
    assert exceeds(0.3001, 0.3)
    assert not exceeds(2, 2)
    assert not reaches(1, 2)
