"""Toolboxes written by a model: faulty answers are repaired or given up with the right reason."""

from __future__ import annotations

from typing import Any

import pytest

from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import MessageAction, TextObservation
from agentmill.synthesis.environments.toolbox.toolbox import write_toolbox
from agentmill.synthesis.generators.admission import admit_environment, rejection
from agentmill.synthesis.generators.author import read_object
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.generators.toolbox_llm.generator import LlmGenerator
from agentmill.synthesis.generators.toolbox_tasks.generator import ToolboxTaskGenerator
from agentmill.synthesis.policies.policy import PolicySettings
from agentmill.synthesis.policies.scripted import ScriptedPolicy
from tests.synthesis.environments.toolbox.boxes import LIBRARY_SPEC, and_tool, with_tool
from tests.synthesis.generators.environments import inspiration
from tests.synthesis.generators.test_pddl_llm import Listener
from tests.synthesis.generators.test_toolbox_admission import DEFECTS, reading

MEMBERS = "SELECT member_id, name FROM members ORDER BY member_id"
GOOD = write_toolbox(and_tool(reading(MEMBERS, member_id="members.member_id", name="members.name")))
COPIED = LIBRARY_SPEC.source.replace("member", "reader").replace("loan", "lease")
BROKEN_JSON = GOOD[:-40]
SETS_A_LIE = DEFECTS["lying_tool"].source
FAULTY = {
    "no text": ("I cannot do that.", "there is no JSON object"),
    "syntax": (BROKEN_JSON, "there is no JSON object in the answer, or it does not end"),
    "wrong schema": (DEFECTS["syntax"].source, "syntax: this is no toolbox"),
    "unknown column": (DEFECTS["sql"].source, "sql: take_back: no such column: copys"),
    "a tool that lies": (SETS_A_LIE, "lying tool: take_back shows status = 'returned', but loans.status is 'open'"),
    "a change that is none": (DEFECTS["noop_tool"].source, "noop tool: take_back changes nothing"),
    "chance": (DEFECTS["forbidden_sql"].source, "forbidden sql: take_back: not authorized to use function: random"),
    "the clock": (
        write_toolbox(with_tool("take_back", writes=("UPDATE loans SET status = current_timestamp",))),
        "forbidden sql: take_back: not authorized to use function: current_timestamp",
    ),
    "the example again": (COPIED, "this is the example that you were shown, only its names differ"),
    "rows in no order": (DEFECTS["unordered_rows"].source, "unordered rows: the rows of more have no fixed order"),
}


def generator(script: Listener, **options: Any) -> LlmGenerator:
    return LlmGenerator(ScriptedPolicy(PolicySettings(policy="scripted", name="writer"), script), **options)


async def test_a_sound_answer_becomes_a_toolbox_with_tasks() -> None:
    script = Listener(f"Here it is, {{with care}}:\n```json\n{GOOD}\n```\nEnjoy!")
    spec = await generator(script).propose(inspiration(), 0)
    assert (spec.family, spec.name) == ("toolbox", "explain-how-a-lock")
    assert rejection(admit_environment(spec)) is None
    assert spec.structure_digest is not None
    assert spec.lineage is not None
    assert spec.lineage.notes == {"backend": "llm", "model": "writer", "repairs": 0}
    tasks = [task async for task in ToolboxTaskGenerator((2, 4)).propose(spec, 3, 0)]
    assert all(isinstance(task, Task) for task in tasks)
    asked = script.asked[0].content[0]
    assert isinstance(asked, TextObservation)
    assert inspiration().text in asked.content
    assert '"lend_book"' in asked.content


@pytest.mark.parametrize("fault", FAULTY)
async def test_a_faulty_answer_is_told_what_is_wrong_and_repaired(fault: str) -> None:
    text, said = FAULTY[fault]
    script = Listener(text, GOOD)
    spec = await generator(script).propose(inspiration(), 0)
    assert admit_environment(spec).repairs == 1
    told = [item.content for item in script.asked[-1].content if isinstance(item, MessageAction | TextObservation)]
    assert told[1] == text
    assert said in told[2]


@pytest.mark.parametrize("fault", FAULTY)
async def test_what_is_never_repaired_is_given_up_with_its_history(fault: str) -> None:
    text, said = FAULTY[fault]
    with pytest.raises(GenerationError, match="still faulty after 1 repairs") as caught:
        await generator(Listener(text, text), repairs=1).propose(inspiration(), 0)
    assert caught.value.reason == "unrepaired"
    assert said in caught.value.detail
    assert [version["text"] for version in caught.value.history] == [text, text]


def test_the_object_is_found_wherever_it_stands() -> None:
    assert read_object(f"{{}} or {{nothing}}, but {GOOD} {{") == read_object(GOOD) is not None
    assert read_object("no { object } here") is None
    assert read_object('{ "n": ' + "9" * 5_000 + "}") is None
