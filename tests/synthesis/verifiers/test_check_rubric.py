"""``check_rubric``: requirements by models, by rules, and by both."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentmill.schemas.config import validate
from agentmill.schemas.records.verdict import Verdict
from agentmill.synthesis.policies.policy import Conversation
from agentmill.synthesis.verifiers.check_rubric import CheckRubric
from agentmill.synthesis.verifiers.verifier import findings
from tests.builders import trajectory
from tests.errors import user_error
from tests.synthesis.verifiers.known import Judging, panel

POLITE = {"id": "polite", "text": "It is polite."}
SHORT = {"id": "short-enough", "text": "It is short.", "weight": 3.0}
NO_FLY = {"id": "no_fly", "rule": {"never": {"message": "fly"}}}
PUTS = {"id": "puts", "text": "It puts the ball.", "rule": {"at_least": 1, "of": {"message": "put"}}}


def saying(**met: Any) -> Judging:
    """Says of each requirement, by its key, whether it is met."""
    return Judging(lambda asked: json.dumps({f"r_{key}": {"reason": "so", "met": value} for key, value in met.items()}))


async def checked(rubric: list[dict[str, Any]], *judges: Judging, **parameters: Any) -> list[Verdict]:
    verifier = CheckRubric.model_validate({"rubric": rubric, **parameters})
    given = trajectory()
    return findings(verifier, given, await verifier.judge(None, given, panel(*judges))).verdicts


async def test_models_and_rules_together() -> None:
    judge = saying(polite=True, short_dash_enough=False)
    whole, polite, short, fly = await checked([POLITE, SHORT, NO_FLY], judge)
    assert (whole.score, whole.passed) == (0.2, False)
    assert whole.evidence["kept"] == ["polite"]
    assert whole.evidence["violated"] == ["short-enough", "no_fly"]
    assert (polite.passed, short.passed, fly.passed) == (True, False, False)
    assert polite.name == "check_rubric/polite"
    assert polite.evidence["judges"] == [{"judge": "wise/judge-7b@0123456789ab", "met": True, "reason": "so"}]
    assert (polite.judge, fly.judge) == ("judge:wise/judge-7b@0123456789ab", "rules")
    [asked] = judge.asked
    assert asked.answer_schema is not None
    assert asked.answer_schema["required"] == ["r_polite", "r_short_dash_enough"]


async def test_rules_alone_ask_nobody() -> None:
    whole, fly = await checked([NO_FLY])
    assert (whole.judge, whole.passed, fly.passed) == ("rules", False, False)
    assert "prompt" not in whole.evidence


@pytest.mark.parametrize(("said", "passed"), [(True, True), (False, False), (None, None)])
async def test_both_checks_of_a_hybrid_have_to_hold(said: bool | None, passed: bool | None) -> None:
    _, puts = await checked([PUTS], saying(puts=said))
    assert puts.passed is passed
    assert puts.reason == (None if said is not None else "cannot_tell")
    flying = {**PUTS, "rule": {"never": {"message": "put"}}}
    _, broken = await checked([flying], saying(puts=said))
    assert broken.passed is False, "one no is enough"


async def test_a_jury_decides_by_majority_and_an_even_one_not_at_all() -> None:
    yes, no, mute = saying(polite=True), saying(polite=False), saying(polite=None)
    assert (await checked([POLITE], yes, yes, no))[1].passed is True
    assert (await checked([POLITE], yes, mute, no, no))[1].passed is False
    even = (await checked([POLITE], yes, no))[1]
    assert (even.status, even.reason) == ("unscored", "even")
    assert (await checked([POLITE], yes, mute))[1].passed is True


async def test_in_reverse_order_a_judge_may_contradict_itself() -> None:
    def first_only(asked: Conversation) -> str:
        first, *_ = asked.answer_schema["required"]  # type: ignore[index]
        names = ("r_polite", "r_short_dash_enough")
        return json.dumps({name: {"reason": "so", "met": name == first} for name in names})

    whole, polite, short = await checked([POLITE, SHORT], Judging(first_only), swap=True)
    assert {polite.reason, short.reason} == {"contradicts_itself"}
    assert (whole.status, whole.reason) == ("unscored", "not_applicable")
    assert (await checked([POLITE, SHORT], Judging(first_only)))[1].passed is True


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no", "unparsable"),
        ('{"r_polite": {"reason": "so"', "unparsable"),
        ('{"r_polite": {"reason": "so", "met": "yes"}}', "other_schema"),
        ('{"r_rude": {"reason": "so", "met": true}}', "other_schema"),
        ('{"r_polite": {"reason": "so", "met": true}, "r_more": {"reason": "", "met": true}}', "other_schema"),
    ],
)
async def test_an_answer_that_does_not_fit_leaves_the_requirement_unscored(text: str, reason: str) -> None:
    whole, polite, fly = await checked([POLITE, NO_FLY], Judging(lambda asked: text))
    assert (polite.status, polite.reason) == ("unscored", reason)
    assert (whole.score, fly.passed) == (0.0, False), "what is computed counts all the same"


@pytest.mark.parametrize(
    ("requirement", "judge", "passed", "reason"),
    [
        (POLITE, Judging(lambda asked: "no"), None, "unparsable"),
        ({**POLITE, "veto": True}, Judging(lambda asked: "no"), None, "unparsable"),
        ({**POLITE, "veto": True}, saying(polite=None), None, "cannot_tell"),
        (POLITE, saying(polite=None), True, None),
    ],
)
async def test_what_was_not_judged_passes_nothing(
    requirement: dict[str, Any], judge: Judging, passed: bool | None, reason: str | None
) -> None:
    legal = {"id": "walks", "rule": {"never": {"message": "swim"}}}
    whole = (await checked([requirement, legal], judge))[0]
    assert (whole.passed, whole.reason) == (passed, reason)
    vetoed = (await checked([requirement, {**NO_FLY, "veto": True}], judge))[0]
    assert vetoed.passed is False, "it fails whatever the judge would have answered"


@pytest.mark.parametrize(
    ("rubric", "message"),
    [
        ([], ("invalid-value",)),
        ([{"id": "a"}], ("rule-broken", "neither `text` nor `rule`")),
        ([POLITE, POLITE], ("rule-broken", "two requirements have the id 'polite'")),
        ([{"id": "a-b", "text": "c"}, {"id": "a_dash_b", "text": "d"}], ("rule-broken", "the id 'a-b'")),
        ([{"id": "a", "txt": "b"}], ("unknown-key", "'txt'", "text")),
        ([{"id": "a", "rule": {"nevr": {}}}], ("unknown-key", "'nevr'", "never")),
        ([{"id": "a b", "text": "c"}], ("invalid-value",)),
        ([{**NO_FLY, "rule": {**NO_FLY["rule"], "veto": True}}], ("rule-broken", "`veto` of requirement")),
        ([{**NO_FLY, "rule": {**NO_FLY["rule"], "weight": 2}}], ("rule-broken", "`weight` of requirement")),
    ],
)
def test_rubrics_that_make_no_sense_are_refused(rubric: list[Any], message: tuple[str, ...]) -> None:
    with user_error(*message):
        validate(CheckRubric, {"rubric": rubric}, "check_rubric")
