"""Conditions: what they accept of rows, and which of them make no sense."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.conditions import Condition
from schemas.config import validate
from schemas.errors import UserError
from schemas.trajectory import Usage
from schemas.verdict import Label, Value
from schemas.views.evidence import Evidence
from tests.builders import trajectory, verdict

ROW = trajectory("t1", usage=Usage(completion_tokens=40), extra={"source": {"stars": 4}})
SAID = Evidence(
    verdicts={
        (None, "check_outcome"): verdict("t1"),
        (None, "check_rules"): verdict("t1", passed=False, name="check_rules", score=0.4),
        (2, "check_rules"): verdict("t1", name="check_rules", score=1.0, item=2),
    },
    labels={(None, "language"): Label(trajectory_id="t1", name="language", value="en", labeller="l")},
    values={(2, "mc"): Value(trajectory_id="t1", name="mc", value=0.6, estimator="e", n=5, item=2)},
)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ({"verdict": "check_outcome", "passed": True}, True),
        ({"verdict": "check_outcome", "passed": False}, False),
        ({"verdict": "check_rules", "at_least": 0.4}, True),
        ({"verdict": "check_rules", "at_least": 0.4, "at_most": 0.3}, False),
        ({"verdict": "check_rules", "passed": False, "at_most": 0.5}, True),
        ({"verdict": "check_rules", "passed": True, "at_most": 0.5}, False),
        ({"verdict": "judge", "passed": False}, False),
        ({"verdict": "judge", "at_most": 1}, False),
        ({"label": "language", "equals": "en"}, True),
        ({"label": "language", "one_of": ["de", "fr"]}, False),
        ({"label": "topic", "equals": "en"}, False),
        ({"field": "outcome.truncated", "equals": False}, True),
        ({"field": "outcome.truncated", "equals": 0}, False),
        ({"field": "usage.completion_tokens", "at_most": 40}, True),
        ({"field": "usage.prompt_tokens", "at_most": 40}, False),
        ({"field": "extra.source.stars", "one_of": [4, 5]}, True),
        ({"field": "nothing.at.all", "equals": None}, True),
        ({"field": "nothing", "at_least": 0}, False),
        ({"field": "split", "at_least": 0}, False),
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
    ("condition", "said"),
    [
        ({"passed": True}, "names one of `verdict`, `label`, `value` or `field`"),
        ({"verdict": "a", "label": "b", "equals": 1}, "names one of"),
        ({"verdict": "a"}, "has one of `passed`"),
        ({"field": "split", "passed": True}, "`passed` is asked of a `verdict`"),
        ({"verdict": "a", "pased": True}, "pased"),
    ],
)
def test_senseless_conditions(condition: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        validate(Condition, condition, "step")
