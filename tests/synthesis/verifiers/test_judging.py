"""Asking judges: seeds, costs, prompts, and what of an answer counts."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from agentmill.schemas.records.trajectory import ApiAction, MessageAction, Usage
from agentmill.synthesis.policies import make_policy
from agentmill.synthesis.policies.policy import Conversation, PolicySettings, Turn
from agentmill.synthesis.sandbox import Pool, backend
from agentmill.synthesis.verifiers import judging
from agentmill.synthesis.verifiers.judge import BinaryAnswer
from agentmill.synthesis.verifiers.judging import (
    Answer,
    Judge,
    Question,
    ask,
    ask_all,
    judge_name,
    object_schema,
    prompt_digest,
    spent,
)
from tests.synthesis.verifiers.known import Judging, panel, shown

QUESTION = Question(episode_id="t1", system_prompt="Judge.", text="…", schema={"type": "object"})
YES = '{"reasons": "so", "verdict": true}'


async def test_the_first_answer_that_fits_counts() -> None:
    answers = iter(["no", YES])
    judge = Judging(lambda asked: next(answers))
    found = await ask(panel(judge).judges[0], QUESTION, BinaryAnswer, 3)
    assert found.value == BinaryAnswer(reasons="so", verdict=True)
    assert (found.fault, found.usage.prompt_tokens) == (None, 20)
    assert judge.asked[0].seed != judge.asked[1].seed
    assert judge.asked[0].answer_schema == {"type": "object"}
    assert "could not be used (unparsable)" in shown(judge.asked[1])
    assert shown(judge.asked[1]).startswith("…\nno\nThat answer"), "the question and the answer stay"


@pytest.mark.parametrize(
    "around", ['The call was look({{"a": 1}}). {}', "<think>{{hm}}</think>{}", "```json\n{}\n```", "{} So {{it}} is."]
)
async def test_braces_around_an_answer_do_no_harm(around: str) -> None:
    found = await ask(panel(Judging(lambda asked: around.format(YES))).judges[0], QUESTION, BinaryAnswer, 0)
    assert found.value == BinaryAnswer(reasons="so", verdict=True)


async def test_an_answer_that_was_cut_off_is_none() -> None:
    class Long(Judging):
        async def act(self, conversation: Conversation) -> Turn:
            return Turn(actions=(await super().act(conversation)).actions, finish_reason="length")

    found = await ask(panel(Long(lambda asked: YES)).judges[0], QUESTION, BinaryAnswer, 0)
    assert (found.value, found.fault) == (None, "cut_off")


async def test_judges_have_seeds_of_their_own_that_are_the_same_again() -> None:
    async def seeds(salt: str) -> list[int]:
        judges = [Judging(lambda asked: YES, model="a"), Judging(lambda asked: YES, model="b")]
        await ask_all(panel(*judges), [QUESTION, QUESTION], BinaryAnswer, salt)
        return [judge.asked[0].seed for judge in judges]

    assert await seeds("x") == await seeds("x")
    assert len({*await seeds("x"), *await seeds("y")}) == 4


async def test_judges_of_one_model_have_different_seeds_and_the_first_keeps_its_own() -> None:
    judges = [Judging(lambda asked: YES, model="a") for _ in range(3)]
    await ask_all(panel(*judges), [QUESTION] * 3, BinaryAnswer, "x")
    alone = Judging(lambda asked: YES, model="a")
    await ask_all(panel(alone), [QUESTION], BinaryAnswer, "x")
    seeds = [judge.asked[0].seed for judge in judges]
    assert len(set(seeds)) == 3
    assert seeds[0] == alone.asked[0].seed


async def test_judges_that_run_code_wait_for_a_sandbox_while_others_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Judging):
        async def act(self, conversation: Conversation) -> Turn:
            await asyncio.sleep(0.01)
            return await super().act(conversation)

    def script(asked: Conversation) -> str | ApiAction:
        return ApiAction(function="run_python", kwargs={"code": "6 * 7"}) if asked.tools else YES

    one = Pool(backend(), most=1, wait_s=10.0)
    monkeypatch.setattr(judging, "pool", lambda purpose: one)
    question = msgspec.structs.replace(QUESTION, checks=2)
    judges = panel(Slow(script, model="a"), Slow(script, model="b"))
    answers = await ask_all(judges, [question, question], BinaryAnswer, "x")
    assert all(answer.value is not None for answer in answers)
    one.close()


async def test_an_expert_that_stands_in_answers_without_running_code() -> None:
    expert = make_policy(PolicySettings(policy="expert", sampling={"mistakes": 0.3}))
    schema = object_schema(reasons={"type": "string"}, verdict={"type": "boolean"})
    question = msgspec.structs.replace(QUESTION, schema=schema, checks=2)
    found = await ask(Judge(judge_name(expert), expert), question, BinaryAnswer, 3)
    assert (found.fault, found.value is not None) == (None, True)


def test_prompts_differ_by_all_but_the_transcript() -> None:
    same = msgspec.structs.replace(QUESTION, episode_id="t2", text="another")
    one = prompt_digest(QUESTION, {"name": "a", "pass_at": 0.5})
    assert prompt_digest(same, {"name": "b", "pass_at": 0.5}) == one
    assert prompt_digest(QUESTION, {"name": "a", "pass_at": 0.6}) != one
    for change in ({"system_prompt": "x"}, {"schema": {}}):
        assert prompt_digest(msgspec.structs.replace(QUESTION, **change), {"name": "a", "pass_at": 0.5}) != one


def test_costs_add_up_and_what_nobody_reports_is_left_out() -> None:
    one = Answer(None, Usage(prompt_tokens=3, seconds=1.0))
    two = Answer(None, Usage(prompt_tokens=4, cost_usd=0.5))
    assert spent([one, two]) == {"prompt_tokens": 7, "cost_usd": 0.5}
    assert spent([]) == {}


async def test_an_answer_may_come_in_several_messages() -> None:
    class Parts(Judging):
        async def act(self, conversation: Conversation) -> Turn:
            return Turn(
                actions=[MessageAction(content='{"reasons": "so",'), MessageAction(content='"verdict": false}')]
            )

    found = await ask(panel(Parts(lambda asked: "")).judges[0], QUESTION, BinaryAnswer, 0)
    assert found.value == BinaryAnswer(reasons="so", verdict=False)
