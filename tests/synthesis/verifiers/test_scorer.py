"""The scores of a reward model as verdicts: known scores of whole trajectories and of steps, and why some have none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from agentmill.schemas.config import validate
from agentmill.schemas.records.rows import Message
from agentmill.schemas.records.verdict import Verdict
from agentmill.schemas.views.dialogue import Dialogue
from agentmill.synthesis.policies.policy import ContextOverflow, PolicyError
from agentmill.synthesis.policies.reward_model import Shown
from agentmill.synthesis.verifiers.scorer import ScorerVerifier
from tests.builders import agent_message, instruction, seen, trajectory
from tests.errors import user_error
from tests.synthesis.verifiers.known import Judging, Scoring, Script, approving, panel

SCORES = {"a": -1.5, "b": 4.0, "c": 2.0}
WALK = trajectory(
    "t1",
    content=[instruction(), *(each for n, go in enumerate("abc", 1) for each in (agent_message(go, n), seen("ok", n)))],
)


def by_last_action(messages: Sequence[Message]) -> float:
    """The score of the last action."""
    return SCORES[next(str(each.content) for each in reversed(messages) if each.role == "assistant")]


async def found(script: Script = by_last_action, scorer: Scoring | None = None, **parameters: Any) -> list[Verdict]:
    verifier = ScorerVerifier(**parameters)
    return await verifier.judge(None, parameters.pop("of", WALK), panel(scorer or Scoring(script)))


async def test_a_trajectory_has_the_score_of_its_whole_conversation() -> None:
    scorer = Scoring(by_last_action)
    (verdict,) = await found(scorer=scorer)
    assert (verdict.name, verdict.status, verdict.score, verdict.passed, verdict.item) == (
        "scorer",
        "scored",
        2.0,
        None,
        None,
    )
    assert verdict.judge == "scorer:rewards/rm-7b@0123456789ab"
    assert [len(each) for each in scorer.scored] == [8]
    assert verdict.evidence["model"] == "rewards/rm-7b"
    assert verdict.evidence["revision"] == "0123456789abcdef"
    assert verdict.evidence["tokens"] == 8
    assert len(verdict.evidence["rendering"]) == 32
    assert verdict.evidence["usage"] == {"prompt_tokens": 8, "completion_tokens": 0}


@pytest.mark.parametrize(("pass_at", "passed"), [(2.0, True), (2.0 + 1e-12, True), (2.1, False), (-9.0, True)])
async def test_the_score_that_passes_is_given(pass_at: float, passed: bool) -> None:
    assert [each.passed for each in await found(pass_at=pass_at)] == [passed]


@pytest.mark.parametrize(("whole", "score"), [("last", 2.0), ("min", -1.5), ("mean", 1.5)])
async def test_steps_have_scores_that_make_one_of_the_whole(whole: str, score: float) -> None:
    scorer = Scoring(by_last_action)
    verdict, *steps = await found(scorer=scorer, rows="step", whole=whole, pass_at=0.0)
    assert (verdict.item, verdict.score, verdict.passed) == (None, score, score >= 0)
    assert [(step.item, step.score, step.passed) for step in steps] == [
        (1, -1.5, False),
        (3, 4.0, True),
        (5, 2.0, True),
    ]
    assert [each[-1].content for each in scorer.scored] == ["a", "b", "c"]
    assert (verdict.evidence["steps"], verdict.evidence["unscored"]) == (3, 0)
    assert verdict.evidence["usage"]["prompt_tokens"] == sum(len(each) for each in scorer.scored)


async def test_steps_that_a_branch_copied_are_scored_in_the_trajectory_they_come_from() -> None:
    content = [instruction(), agent_message("a", 1, context_operation="copied"), seen("ok", 1), agent_message("b", 2)]
    branch = trajectory("t2", content=content, parent_id="t1", branch_turn=2)
    verdict, *steps = await ScorerVerifier(rows="step").judge(None, branch, panel(Scoring(by_last_action)))
    assert [(step.item, step.score) for step in steps] == [(3, 4.0)]
    assert verdict.score == 4.0


def too_long_from(length: int) -> Script:
    return lambda messages: ContextOverflow("full") if len(messages) >= length else by_last_action(messages)


async def test_what_exceeds_the_context_is_unscored() -> None:
    (verdict,) = await found(too_long_from(8))
    assert (verdict.status, verdict.score, verdict.passed, verdict.reason) == ("unscored", None, None, "too_long")
    assert verdict.evidence["model"] == "rewards/rm-7b"


@pytest.mark.parametrize("whole", ["last", "min", "mean"])
async def test_no_score_of_the_whole_is_guessed_from_some_steps(whole: str) -> None:
    verdict, *steps = await found(too_long_from(7), rows="step", whole=whole)
    assert [(step.score, step.reason) for step in steps] == [(-1.5, None), (4.0, None), (None, "too_long")]
    assert (verdict.status, verdict.reason, verdict.evidence["unscored"]) == ("unscored", "too_long", 1)


async def test_the_last_step_alone_decides_where_it_is_known() -> None:
    def script(messages: Sequence[Message]) -> float | Exception:
        return PolicyError("malformed", "junk") if len(messages) == 3 else by_last_action(messages)

    verdict, *_ = await found(script, rows="step")
    assert (verdict.score, verdict.evidence["unscored"]) == (2.0, 1)
    assert [each.reason for each in await found(script, rows="step", whole="min")] == [
        "malformed",
        "malformed",
        None,
        None,
    ]


@pytest.mark.parametrize("reason", ["malformed", "template"])
async def test_an_answer_that_is_no_score_is_the_reason(reason: str) -> None:
    (verdict,) = await found(lambda _: PolicyError(reason, "junk"))
    assert (verdict.status, verdict.reason) == ("unscored", reason)


async def test_a_server_that_cannot_be_asked_says_nothing_of_the_trajectory() -> None:
    with pytest.raises(PolicyError, match="timeout"):
        await found(lambda _: PolicyError("timeout", "late"))


async def test_a_model_that_writes_is_no_scorer() -> None:
    with pytest.raises(PolicyError, match="no_scorer: the model writes text"):
        await ScorerVerifier().judge(None, WALK, panel(Judging(approving)))


async def test_conversations_are_shown_as_the_model_was_trained() -> None:
    cut = Scoring(by_last_action, Shown(Dialogue(), to_last_turn=True))
    await found(scorer=cut)
    assert [each[-1].content for each in cut.scored] == ["c"]
    other = Scoring(by_last_action, Shown(Dialogue(system_prompts=["Be kind."])))
    await found(scorer=other)
    assert other.scored[0][0].content == "Be kind."
    (verdict,) = await found(scorer=Scoring(by_last_action, Shown(Dialogue(role="planner"))))
    assert (verdict.status, verdict.reason) == ("unscored", "no_role")


async def test_trajectories_without_turns_have_a_reason() -> None:
    empty = trajectory("e", content=[], system_prompt=None)
    for parameters, of, reason in (
        ({}, empty, "no_messages"),
        ({"rows": "step"}, trajectory("i", content=[seen("It is dark.")]), "no_step"),
    ):
        (verdict,) = await ScorerVerifier(**parameters).judge(None, of, panel(Scoring(by_last_action)))
        assert (verdict.status, verdict.reason) == ("unscored", reason)


def test_one_score_cannot_be_joined() -> None:
    with user_error("rule-broken", "`whole` goes with `rows: step`"):
        validate(ScorerVerifier, {"whole": "min"}, "steps.1 (scorer)")
