"""Coding problems written by a model: faulty answers are repaired or given up with the right reason."""

from __future__ import annotations

from typing import Any

import pytest

from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import MessageAction, TextObservation
from agentmill.synthesis.environments.codegym.examples import GAUGE_SPEC, PILES_SPEC
from agentmill.synthesis.generators.admission import admit_environment, rejection
from agentmill.synthesis.generators.codegym_llm.generator import LlmGenerator
from agentmill.synthesis.generators.codegym_tasks.generator import CodegymTaskGenerator
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.policies.policy import PolicySettings
from agentmill.synthesis.policies.scripted import ScriptedPolicy
from tests.synthesis.generators.environments import inspiration
from tests.synthesis.generators.test_codegym_admission import DEFECTS
from tests.synthesis.generators.test_pddl_llm import Listener

GOOD = PILES_SPEC.source
FAULTY = {
    "no text": ("I cannot do that.", "there is no JSON object"),
    "an answer that does not end": (GOOD[:-40], "there is no JSON object in the answer, or it does not end"),
    "the example again": (GAUGE_SPEC.source, "this is the example that you were shown"),
    **{
        name: (spec.source, f"{reason.replace('_', ' ')}: ")
        for name, (reason, spec, _) in DEFECTS.items()
        if name != "endless solution"  # it takes seconds
    },
}


def generator(script: Listener, **options: Any) -> LlmGenerator:
    return LlmGenerator(ScriptedPolicy(PolicySettings(policy="scripted", name="writer"), script), **options)


async def test_a_sound_answer_becomes_a_problem_with_tasks() -> None:
    script = Listener(f"Here it is, {{with care}}:\n```json\n{GOOD}\n```\nEnjoy!")
    spec = await generator(script).propose(inspiration(), 0)
    assert (spec.family, spec.name) == ("codegym", "explain-how-a-lock")
    assert rejection(admit_environment(spec)) is None
    assert spec.structure_digest is not None
    assert spec.lineage is not None
    assert spec.lineage.notes == {"backend": "llm", "model": "writer", "repairs": 0}
    tasks = [task async for task in CodegymTaskGenerator((2, 9)).propose(spec, 3, 0)]
    assert all(isinstance(task, Task) for task in tasks)
    asked = script.asked[0].content[0]
    assert isinstance(asked, TextObservation)
    assert inspiration().text in asked.content
    assert "def weigh(state, jar)" in asked.content


@pytest.mark.parametrize("fault", FAULTY)
async def test_a_faulty_answer_is_told_what_is_wrong_and_repaired(fault: str) -> None:
    text, said = FAULTY[fault]
    script = Listener(text, GOOD)
    spec = await generator(script).propose(inspiration(), 0)
    assert admit_environment(spec).repairs == 1
    told = [item.content for item in script.asked[-1].content if isinstance(item, MessageAction | TextObservation)]
    assert told[1] == text
    assert said in told[2]


@pytest.mark.parametrize("fault", ["no text", "a tool that lies", "an oracle that peeks", "endless calls"])
async def test_what_is_never_repaired_is_given_up_with_its_history(fault: str) -> None:
    text, said = FAULTY[fault]
    with pytest.raises(GenerationError, match="still faulty after 1 repairs") as caught:
        await generator(Listener(text, text), repairs=1).propose(inspiration(), 0)
    assert caught.value.reason == "unrepaired"
    assert said in caught.value.detail
    assert [version["text"] for version in caught.value.history] == [text, text]
