"""What the parameters of a step ask for is found wherever it stands."""

from __future__ import annotations

from typing import Any

import pytest

from agentmill.pipelines.operators.registry import OPERATORS
from agentmill.schemas.conditions import AnnotationNeed
from agentmill.schemas.config import validate

ROWS = {"from": "x", "verdicts": "v", "labels": "l", "values": "w"}
ACTING = {"policy": "p", "of": "x", "tasks": "t", "environments": "e"}


@pytest.mark.parametrize(
    ("operator", "parameters", "expected"),
    [
        ("sft", {"steps": [{"label": "a", "equals": "b"}]}, ("steps: {label: a}", "label", "a")),
        ("sft", {"copied": [{"value": "mc", "at_least": 1}]}, ("copied: {value: mc}", "value", "mc")),
        ("sft", {"weight": "value:mc"}, ("weight: value:mc", "value", "mc")),
        ("sft", {"where": "success"}, ("where: success", "verdict", "check_outcome")),
        ("sft", {"where": "failure", "verdict": "judge"}, ("where: failure", "verdict", "judge")),
        (
            "sft",
            {"prefix": {"success": "s", "failure": "f", "verdict": "judge"}},
            ("prefix.verdict: judge", "verdict", "judge"),
        ),
        ("step_pairs", {"prefer": {"label": "a", "equals": "b"}}, ("prefer: {label: a}", "label", "a")),
        ("trajectory_pairs", {"score": "passed:judge"}, ("score: passed:judge", "verdict", "judge")),
        ("unpaired", {"score": "verdict:judge"}, ("score: verdict:judge", "verdict", "judge")),
        ("search_trace", {"score": "verdict:judge"}, ("score: verdict:judge", "verdict", "judge")),
        ("spliced", {"error": {"value": "mc", "at_most": 0}}, ("error: {value: mc}", "value", "mc")),
        ("scorer_rows", {"label": "a"}, ("label: a", "label", "a")),
        ("scorer_rows", {"critique": "judge"}, ("critique: judge", "verdict", "judge")),
    ],
)
def test_annotations_that_rows_ask_for(
    operator: str, parameters: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    step = validate(OPERATORS.load(operator), {**ROWS, **parameters}, "step")
    assert list(step.annotation_needs()) == [AnnotationNeed(*expected)]


@pytest.mark.parametrize(
    ("operator", "parameters", "expected"),
    [
        (
            "filter",
            {"of": "x", "where": [{"verdict": "judge", "passed": True}]},
            ("where: {verdict: judge}", "verdict"),
        ),
        ("pick", {"of": "x", "score": "verdict:judge"}, ("score: verdict:judge", "verdict")),
        ("pick", {"of": "x", "by": "vote", "score": "passed:judge"}, ("score: passed:judge", "verdict")),
        (
            "combine",
            {"of": "x", "scores": [{"score": "reward"}, {"score": "value:judge"}]},
            ("scores.score: value:judge", "value"),
        ),
        ("step_value", {"of": "x", "method": "broadcast", "score": "passed:judge"}, ("score: passed:judge", "verdict")),
        ("branch", {**ACTING, "given": "judge"}, ("given: judge", "label")),
        (
            "branch",
            {**ACTING, "turns": "first_error", "error": {"label": "judge", "equals": "bad"}},
            ("error: {label: judge}", "label"),
        ),
    ],
)
def test_annotations_that_other_steps_ask_for(
    operator: str, parameters: dict[str, Any], expected: tuple[str, str]
) -> None:
    step = validate(OPERATORS.load(operator), parameters, "step")
    assert list(step.annotation_needs()) == [AnnotationNeed(*expected, "judge")]


def test_defaults_and_fields_ask_for_nothing() -> None:
    given = {"from": "x", "prefix": {"success": "s", "failure": "f"}, "steps": [{"field": "split", "equals": "train"}]}
    assert not list(validate(OPERATORS.load("sft"), given, "step").annotation_needs())
