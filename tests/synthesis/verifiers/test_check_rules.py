"""``check_rules``: scores, vetoes, and labels on the steps that break a rule."""

from __future__ import annotations

from typing import Any

import pytest

from agentmill.schemas.config import validate
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.synthesis.verifiers.check_rules import CheckRules
from agentmill.synthesis.verifiers.verifier import Findings, findings
from tests.builders import task, tool_trajectory, trajectory
from tests.errors import user_error

LOOKS = {"id": "looks", "at_least": 2, "of": {"tool": "look"}, "weight": 3.0}
NO_FLOOR = {"id": "no_floor", "never": {"tool": "look", "arguments": {"where": "floor"}}}
NO_BOX = {"id": "no_box", "never": {"tool": "look", "arguments": {"where": "b*"}}}
OPENS = {"id": "opens", "when": {"tool": "open"}, "at_least": 1, "of": {"tool": "close"}}


async def checked(*rules: dict[str, Any], given: Trajectory | None = None, **parameters: Any) -> Findings:
    verifier = CheckRules.model_validate({"rules": list(rules), **parameters})
    record = given or tool_trajectory()
    return findings(verifier, record, await verifier.verify(None, record))


async def test_the_score_is_the_weighted_share_of_rules_that_apply() -> None:
    found = await checked(LOOKS, NO_FLOOR, OPENS)
    whole, looks, no_floor, opens = found.verdicts
    assert (whole.name, whole.score, whole.passed) == ("check_rules", 0.75, False)
    assert whole.evidence == {"kept": ["looks"], "violated": ["no_floor"], "first_item": 2}
    assert (looks.name, looks.score, looks.passed) == ("check_rules/looks", 1.0, True)
    assert (no_floor.passed, no_floor.evidence) == (False, {"violations": 1, "item": 2})
    assert (opens.status, opens.reason, opens.score) == ("unscored", "not_applicable", None)
    [label] = found.labels
    assert (label.name, label.value, label.item) == ("check_rules/no_floor", "violated", 2)
    assert label.reason == "tool look, arguments {'where': 'floor'} occurs"


async def test_a_score_may_pass_and_a_veto_may_not() -> None:
    assert (await checked(LOOKS, NO_FLOOR, pass_at=0.75)).verdicts[0].passed is True
    [whole, *_] = (await checked(LOOKS, {**NO_FLOOR, "veto": True}, pass_at=0.75)).verdicts
    assert (whole.passed, whole.evidence["vetoed"]) == (False, ["no_floor"])
    thirds = [{**NO_FLOOR, "id": f"r{number}", "never": {"tool": "x"}, "weight": 0.1} for number in range(3)]
    assert (await checked(*thirds)).verdicts[0].passed is True, "tenths add up to less than their sum"


async def test_two_rules_may_blame_one_item() -> None:
    found = await checked(NO_FLOOR, NO_BOX, {**NO_FLOOR, "id": "again"})
    assert sorted((label.name, label.item) for label in found.labels) == [
        ("check_rules/again", 2),
        ("check_rules/no_box", 1),
        ("check_rules/no_floor", 2),
    ]
    assert found.verdicts[0].evidence["first_item"] == 1


async def test_where_no_rule_applies_nothing_is_known() -> None:
    [whole, part] = (await checked(OPENS)).verdicts
    assert (whole.status, whole.reason) == (part.status, part.reason) == ("unscored", "not_applicable")


async def test_numbers_of_the_task_are_grounded() -> None:
    record = trajectory(content=[*trajectory().content[1:4], tool_trajectory().content[-1]])
    verifier = CheckRules.model_validate({"rules": [{"id": "seen", "grounded": "numbers"}]})
    last = record.content[-1]
    record.content[-1] = type(last)(content="There are 7.", turn=2)
    known = await verifier.verify(task(instruction="Find 7."), record)
    unknown = await verifier.verify(task(instruction="Find it."), record)
    assert [each[0].passed for each in (known, unknown)] == [True, False]  # type: ignore[union-attr]


def test_ids_have_to_differ() -> None:
    with user_error("rule-broken", "two rules have the id 'looks'"):
        validate(CheckRules, {"rules": [LOOKS, LOOKS]}, "check_rules")


@pytest.mark.parametrize("parameters", [{"rules": []}, {"rules": [LOOKS], "pass_at": 0}])
def test_parameters_out_of_range(parameters: dict[str, Any]) -> None:
    with user_error("invalid-value"):
        validate(CheckRules, parameters, "check_rules")
