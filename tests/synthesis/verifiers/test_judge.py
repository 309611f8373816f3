"""``judge``: one model, a jury, a debate, swapped orders, checks by code, and answers that are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from agentmill.schemas.config import validate
from agentmill.schemas.records.trajectory import ApiAction
from agentmill.schemas.records.verdict import Verdict
from agentmill.synthesis.policies.policy import ContextOverflow, Conversation, PolicyError
from agentmill.synthesis.verifiers.judge import JudgeVerifier
from agentmill.synthesis.verifiers.judging import judge_name
from tests.builders import trajectory
from tests.errors import user_error
from tests.synthesis.verifiers.known import Judging, panel, shown


def answer(verdict: Any, reasons: str = "so") -> str:
    return json.dumps({"reasons": reasons, "verdict": verdict})


def always(verdict: Any, **fields: Any) -> Judging:
    return Judging(lambda asked: answer(verdict), **fields)


async def judged(*judges: Judging, **parameters: Any) -> Verdict:
    verifier = JudgeVerifier.model_validate({"criteria": "The ball is in the box.", **parameters})
    return await verifier.judge(None, trajectory(), panel(*judges))


async def test_one_judge_with_its_reasons_prompt_and_cost() -> None:
    judge = always(True)
    verdict = await judged(judge)
    assert (verdict.status, verdict.score, verdict.passed) == ("scored", 1.0, True)
    assert verdict.judge == "judge:wise/judge-7b@0123456789ab"
    assert verdict.evidence["judges"] == [
        {"judge": "wise/judge-7b@0123456789ab", "score": 1.0, "reasons": "so", "fault": None}
    ]
    assert verdict.evidence["usage"] == {"prompt_tokens": 10, "completion_tokens": 2}
    [asked] = judge.asked
    assert asked.answer_schema is not None
    assert asked.answer_schema["required"] == ["reasons", "verdict"], "reasons come first"
    assert "The ball is in the box." in asked.system_prompt
    assert '{"role":"system","content":"Act by commands."}' in shown(asked)
    assert "put ball into box" in shown(asked)


async def test_the_digest_of_the_prompt_is_of_the_criteria_and_not_of_the_transcript() -> None:
    def digests(**parameters: Any) -> Any:
        return JudgeVerifier.model_validate({"criteria": "a", **parameters})

    async def digest(verifier: JudgeVerifier, trajectory_id: str) -> Any:
        return (await verifier.judge(None, trajectory(trajectory_id), panel(always(5)))).evidence["prompt"]

    assert await digest(digests(), "t1") == await digest(digests(), "t2")
    different = [digests(), digests(criteria="b"), digests(scale="1-5"), digests(checks=1), digests(pass_at=0.6)]
    assert len({await digest(each, "t1") for each in different}) == 5


@pytest.mark.parametrize(
    ("grade", "score", "passed"), [(1, 0.0, False), (2, 0.25, False), (3, 0.5, True), (5, 1.0, True)]
)
async def test_grades_become_scores(grade: int, score: float, passed: bool) -> None:
    verdict = await judged(always(grade), scale="1-5")
    assert (verdict.score, verdict.passed) == (score, passed)


@pytest.mark.parametrize("pass_at", [0.5, 0.6, 1.0])
async def test_a_jury_is_the_mean_of_its_judges(pass_at: float) -> None:
    verdict = await judged(always(True, model="a"), always(True, model="b"), always(False, model="c"), pass_at=pass_at)
    assert verdict.score == pytest.approx(2 / 3)
    assert verdict.passed is (pass_at < 1)
    assert verdict.judge == "jury:a@0123456789ab,b@0123456789ab,c@0123456789ab"
    assert verdict.evidence["usage"] == {"prompt_tokens": 30, "completion_tokens": 6}


JUNK: dict[str, tuple[str, str]] = {
    "words": ("It went well.", "unparsable"),
    "half": ('{"reasons": "so", "verd', "unparsable"),
    "other": ('{"score": 5}', "other_schema"),
    "more": ('{"reasons": "so", "verdict": true, "bonus": 1}', "other_schema"),
    "type": ('{"reasons": "so", "verdict": "yes"}', "other_schema"),
    "draft": ('{"reasons": "draft", "verdict": true} No: {"reasons": "so", "verdict": "false"}', "other_schema"),
    "cut after a draft": ('{"reasons": "draft", "verdict": true} No: {"reasons": "so, and', "unparsable"),
    "nested": ("[" * 5000 + "{}", "other_schema"),
    "empty": ("", "unparsable"),
}


@pytest.mark.parametrize("kind", JUNK)
async def test_an_answer_that_is_none_is_asked_again_and_then_unscored(kind: str) -> None:
    text, reason = JUNK[kind]
    judge = Judging(lambda asked: text)
    verdict = await judged(judge)
    assert (verdict.status, verdict.score, verdict.passed, verdict.reason) == ("unscored", None, None, reason)
    assert len({asked.seed for asked in judge.asked}) == 3
    assert verdict.evidence["usage"]["prompt_tokens"] == 30, "what was spent in vain is counted"


async def test_a_grade_out_of_range_is_no_grade() -> None:
    assert (await judged(always(7), scale="1-5")).reason == "out_of_range"


async def test_fences_and_a_sentence_around_an_answer_do_no_harm() -> None:
    judge = Judging(lambda asked: f"Here it is:\n```json\n{answer(True)}\n```")
    assert (await judged(judge)).passed is True
    assert len(judge.asked) == 1


async def test_of_a_jury_those_count_that_answer() -> None:
    verdict = await judged(always(False, model="a"), Judging(lambda asked: "?", model="b"))
    assert (verdict.score, verdict.passed) == (0.0, False)
    assert [each["fault"] for each in verdict.evidence["judges"]] == [None, "unparsable"]


async def test_a_transcript_that_is_too_long_is_unscored_and_a_server_that_fails_raises() -> None:
    def overflows(asked: Conversation) -> str:
        raise ContextOverflow("4096 tokens")

    def fails(asked: Conversation) -> str:
        raise PolicyError("timeout", "no turn within 300 s")

    assert (await judged(Judging(overflows))).reason == "too_long"
    with pytest.raises(PolicyError, match="timeout"):
        await judged(always(True, model="a"), Judging(fails, model="b"))


async def test_a_judge_whose_server_refuses_the_transcript_has_no_vote_in_a_jury() -> None:
    def refuses(asked: Conversation) -> str:
        raise PolicyError("refused", "HTTP 400: flagged")

    verdict = await judged(always(True, model="a"), Judging(refuses, model="b"))
    assert (verdict.status, verdict.score) == ("scored", 1.0)
    assert [each["fault"] for each in verdict.evidence["judges"]] == [None, "refused"]
    with pytest.raises(PolicyError, match="flagged"):
        await judged(Judging(refuses))


def position(asked: Conversation) -> str:
    """Prefers what the scale names last."""
    text = f"{asked.system_prompt}\n{shown(asked)}"
    return answer("true if they are" in text)


async def test_a_judge_that_goes_by_the_order_contradicts_itself() -> None:
    verdict = await judged(Judging(position), swap=True)
    assert (verdict.status, verdict.reason) == ("unscored", "contradicts_itself")
    assert (await judged(Judging(position))).status == "scored"
    fair = always(True)
    assert (await judged(fair, swap=True)).passed is True
    first, second = fair.asked
    assert "Criteria:" in first.system_prompt
    assert "Criteria:" not in second.system_prompt
    assert shown(second).rstrip().endswith("true if they are.")


async def test_in_a_debate_judges_see_the_reasons_of_the_others_and_may_change() -> None:
    def swayed(asked: Conversation) -> str:
        return answer("the box is closed" in shown(asked), "no idea")

    sure = Judging(lambda asked: answer(True, "the box is closed"), model="a")
    alone = await judged(sure, Judging(swayed, model="b"))
    assert alone.score == 0.5
    assert (await judged(sure, Judging(swayed, model="b"), rounds=1)).score == 1.0


async def test_a_judge_may_run_code_in_the_sandbox_before_it_answers() -> None:
    def careful(asked: Conversation) -> str | ApiAction:
        if asked.tools:
            assert asked.answer_schema is None
            checked = sum(isinstance(item, ApiAction) for item in asked.content)
            codes = ["n = 6 * 7", "print(n)"]
            return ApiAction(function="run_python", kwargs={"code": codes[checked]}) if checked < 2 else "Done."
        return answer("42" in shown(asked))

    judge = Judging(careful)
    assert (await judged(judge, checks=5)).passed is True
    assert len(judge.asked) == 4, "two checks, the end of checking, the answer"
    once = Judging(careful)
    assert (await judged(once, checks=1)).passed is False
    assert len(once.asked) == 2


@pytest.mark.parametrize(
    "call",
    [
        {"function": "rm", "kwargs": {}},
        {"function": "run_python", "kwargs": {"code": 5}},
        {"function": "run_python", "kwargs": {"code": "import os; os._exit(1)"}},
        {"function": "run_python", "kwargs": {"code": "open('/etc/passwd').read()"}},
    ],
)
async def test_a_check_that_fails_is_answered(call: dict[str, Any]) -> None:
    def careless(asked: Conversation) -> str | ApiAction:
        return ApiAction(**call) if asked.tools else answer(True, shown(asked)[-300:])

    verdict = await judged(Judging(careless), checks=2)
    assert verdict.passed is True
    assert "root:" not in verdict.evidence["judges"][0]["reasons"]


def test_a_model_is_called_by_name_and_revision() -> None:
    plain: Callable[..., Any] = always
    judge = plain(True)
    assert judge_name(judge) == "wise/judge-7b@0123456789ab"
    judge.revision = f"{'b' * 16}+{'a' * 16}"
    assert judge_name(judge) == f"wise/judge-7b@{'b' * 12}+{'a' * 12}", "another adapter is another judge"
    judge.revision = None
    assert judge_name(judge) == "wise/judge-7b"


@pytest.mark.parametrize(
    "given", [{"criteria": ""}, {"criteria": "a", "scale": "1-10"}, {"criteria": "a", "rounds": 9}]
)
def test_parameters_out_of_range(given: dict[str, Any]) -> None:
    with user_error("invalid-value"):
        validate(JudgeVerifier, given, "judge")
