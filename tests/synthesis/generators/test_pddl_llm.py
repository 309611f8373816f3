"""Worlds written by a model: what it answers is read, faults are fed back, and giving up is told with its history."""

from __future__ import annotations

from typing import Any

import pytest

from agentmill.schemas.records.trajectory import MessageAction, TextObservation
from agentmill.synthesis.generators.admission import admit_environment, rejection
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.generators.pddl_llm.answer import Malformed, read_answer
from agentmill.synthesis.generators.pddl_llm.generator import LlmGenerator
from agentmill.synthesis.generators.pddl_tasks.generator import PddlTaskGenerator
from agentmill.synthesis.policies.policy import Conversation, PolicyError, PolicySettings, Turn
from agentmill.synthesis.policies.scripted import ScriptedPolicy
from agentmill.synthesis.prompts import prompt
from tests.synthesis.generators.environments import inspiration

GOOD = prompt("pddl_world_seed")
NO_BRACKET = GOOD.replace("(not (full)))))", "(not (full)))")
UNDECLARED = GOOD.replace("(parked taxi north)", "(parked lorry north)")
NOOP = GOOD.replace("(and (docked ?from) (not (docked ?to)))", "(and (docked ?from))")
MUTE = GOOD.replace('"full": "the ferry is full"', '"fool": "the ferry is full"')


class Listener:
    """A script that keeps what it was asked."""

    def __init__(self, *answers: str) -> None:
        self.answers = answers
        self.asked: list[Conversation] = []

    def __call__(self, conversation: Conversation) -> Turn:
        self.asked.append(conversation)
        return Turn(actions=[MessageAction(content=self.answers[len(self.asked) - 1])])


def generator(script: Listener, **options: Any) -> LlmGenerator:
    settings = PolicySettings(policy="scripted", name="writer", revision="r1")
    return LlmGenerator(ScriptedPolicy(settings, script), **options)


async def test_a_sound_answer_becomes_a_world_at_once() -> None:
    script = Listener(f"Here you are:\n{GOOD}\nEnjoy (really)!")
    spec = await generator(script).propose(inspiration(), 0)
    assert (spec.name, spec.family) == ("ferry", "pddl")
    assert rejection(admit_environment(spec)) is None
    assert spec.structure_digest is not None
    assert spec.lineage is not None
    assert spec.lineage.notes == {"backend": "llm", "model": "writer", "repairs": 0}
    assert len([task async for task in PddlTaskGenerator().propose(spec, 3, 0)]) == 3
    asked = script.asked[0].content[0]
    assert isinstance(asked, TextObservation)
    assert inspiration().text in asked.content
    assert GOOD in asked.content


async def test_faults_and_all_earlier_versions_are_fed_back_until_repaired() -> None:
    script = Listener(NO_BRACKET, UNDECLARED, NOOP, GOOD)
    spec = await generator(script).propose(inspiration(), 0)
    assert admit_environment(spec).repairs == 3
    told = [item.content for item in script.asked[-1].content[1:] if isinstance(item, MessageAction | TextObservation)]
    assert told[0::2] == [NO_BRACKET, UNDECLARED, NOOP]
    assert "closing bracket(s) are missing" in told[1]
    assert "undeclared object 'lorry'" in told[3]
    assert "sail north north can be done and changes nothing" in told[5]
    assert len({conversation.seed for conversation in script.asked}) == 4


async def test_a_model_that_never_gets_it_right_is_given_up_with_its_history() -> None:
    script = Listener(NO_BRACKET, MUTE, NO_BRACKET, MUTE)
    with pytest.raises(GenerationError, match="still faulty after 3 repairs") as caught:
        await generator(script).propose(inspiration(), 0)
    assert caught.value.reason == "unrepaired"
    assert [version["text"] for version in caught.value.history] == [NO_BRACKET, MUTE, NO_BRACKET, MUTE]
    assert "predicate_text has no text for 'full'" in caught.value.history[1]["faults"]


async def test_repairs_may_be_forbidden_and_a_policy_may_fail() -> None:
    with pytest.raises(GenerationError, match="after 0 repairs"):
        await generator(Listener(NOOP), repairs=0).propose(inspiration(), 0)
    silent = ScriptedPolicy(PolicySettings(policy="scripted"))
    with pytest.raises(PolicyError, match="script_ended"):
        await LlmGenerator(silent).propose(inspiration(), 0)


async def test_identity_is_of_inspiration_seed_and_model() -> None:
    first = await generator(Listener(GOOD)).propose(inspiration(), 0)
    repaired = await generator(Listener(NOOP, GOOD)).propose(inspiration(), 0)
    assert first.environment_id == repaired.environment_id
    assert first.environment_id != (await generator(Listener(GOOD)).propose(inspiration(), 1)).environment_id
    other = LlmGenerator(ScriptedPolicy(PolicySettings(policy="scripted", name="other"), Listener(GOOD)))
    assert first.environment_id != (await other.propose(inspiration(), 0)).environment_id


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ("I cannot do that.", "there is no domain"),
        (GOOD.replace("(problem crossing)", "(task crossing)"), "there is no problem"),
        (GOOD.replace("(domain ferry)\n  (:req", "(domain )\n  (:req"), "the domain has no name"),
        (NO_BRACKET.partition("```json")[0], "the domain does not end"),
        (GOOD.partition("```json")[0], "there is no JSON object"),
        (GOOD.replace('"full": ', '"full" '), "the JSON object cannot be read: Expecting ':' delimiter at its line 6"),
        (GOOD.replace('"rules"', '"rule"'), "has the unknown keys ['rule']"),
    ],
)
def test_answers_without_all_parts_are_malformed(answer: str, fault: str) -> None:
    with pytest.raises(Malformed) as caught:
        read_answer(answer)
    assert fault in str(caught.value)


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 100_000, '"\\ud800"'], ids=["digits", "nested", "surrogate"])
def test_json_that_cannot_be_kept_is_malformed(value: str) -> None:
    with pytest.raises(Malformed, match="the JSON object cannot be read"):
        read_answer(GOOD.replace('"the ferry is full"', value))


def test_brackets_in_comments_and_capital_letters_do_not_mislead() -> None:
    shouted = GOOD.replace("(define (domain ferry)", "(DEFINE (Domain Ferry) ; not closed (")
    answer = read_answer(shouted)
    assert answer.domain_name == "ferry"
    assert answer.domain.endswith("(not (full)))))")
    assert set(answer.texts) == {"predicate_text", "action_text", "rules"}
