"""Interpreter worlds written by a model: faulty answers are repaired or given up with the right reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from schemas.task import Inspiration, Task
from schemas.trajectory import MessageAction, TextObservation
from synthesis.environments.interpreter.goal import goal_of
from synthesis.generators.admission import admit_environment, admit_task, rejection
from synthesis.generators.generator import GenerationError
from synthesis.generators.interpreter_admission import needs_no_work, source_structure
from synthesis.generators.interpreter_llm.generator import LlmGenerator
from synthesis.generators.interpreter_tasks.generator import InterpreterTaskGenerator
from synthesis.policies.scripted import ScriptedPolicy
from synthesis.policies.settings import PolicySettings
from synthesis.prompts import prompt
from tests.synthesis.environments.toolbox.boxes import LIBRARY_TASK
from tests.synthesis.generators.test_llm import Listener
from tests.synthesis.generators.worlds import inspiration

SHELVES: dict[str, Any] = {
    "about": "You count what lies on the shelves of a store.",
    "source": "def shelf(number):\n    return list(_shelves[number]) if 0 <= number < len(_shelves) else []\n",
    "functions": [
        {
            "name": "shelf",
            "description": "shelf(number) lists what lies on a shelf, from shelf 0 on; nothing behind the last one.",
            "examples": [
                {"arguments": {"number": 0}, "value": ["oil", "tea"]},
                {"arguments": {"number": 9}, "value": []},
            ],
        }
    ],
    "data": {"_shelves": [["oil", "tea"], ["rice"], ["tea", "tea", "salt"]]},
    "tasks": [
        {
            "instruction": "Submit how many things lie on all shelves.",
            "solution": [
                "n = found = 0\nwhile shelf(n):\n    found += len(shelf(n))\n    n += 1\nfound",
                "submit(found)",
            ],
            "goal": {"answer": 6},
        },
        {
            "instruction": "Submit what lies on the shelf behind the first one.",
            "solution": ["shelf(1)", "submit(shelf(1)[0])"],
            "goal": {"answer": "rice"},
        },
        {
            "instruction": "Define twice(things): the sorted things that a list holds more than once. Call submit().",
            "solution": [
                "def twice(things):\n    return sorted({each for each in things if things.count(each) > 1})",
                "twice(shelf(2))",
                "submit()",
            ],
            "goal": {
                "calls": [
                    {"function": "twice", "arguments": {"things": ["b", "a", "b"]}, "value": ["b"]},
                    {"function": "twice", "arguments": {"things": ["a"]}, "value": []},
                ]
            },
        },
    ],
}
GOOD = json.dumps(SHELVES)


def changed(change: Callable[[Any], object]) -> str:
    """The answer with something changed in place."""
    answer = json.loads(GOOD)
    change(answer)
    return json.dumps(answer)


def source(text: str) -> str:
    return changed(lambda answer: answer.update(source=text))


CALLS = SHELVES["tasks"][2]["goal"]["calls"]
FAULTY = {
    "no object": ("I would rather not.", "there is no JSON object"),
    "cut off": (GOOD[:-30], "there is no JSON object in the answer, or it does not end"),
    "no source": (changed(lambda answer: answer.pop("source")), "schema: Object missing required field `source`"),
    "unknown key": (changed(lambda a: a["tasks"][0].update(check="True")), "schema: Object contains unknown field"),
    "wrong type": (changed(lambda a: a["functions"][0].update(examples={})), "schema: Expected `array`, got `object`"),
    "no goal": (changed(lambda a: a["tasks"][0].update(goal={})), "the goal must hold either 'answer' or 'calls'"),
    "no examples": (changed(lambda a: a["functions"][0].update(examples=[])), "expected functions, each with examples"),
    "few tasks": (changed(lambda a: a["tasks"].pop()), "schema: expected at least 3 tasks, each with a solution"),
    "syntax": (source("def shelf(number)\n    return 1"), "SyntaxError: expected ':'"),
    "no such module": (source("import numpy\n"), "ModuleNotFoundError: No module named 'numpy'"),
    "not defined": (source("def shelves(number):\n    return []"), "there is no function 'shelf'"),
    "leaves": (
        source("import os\ndef shelf(number):\n    os._exit(3)"),
        "shelf(number=0) fails: the interpreter",
    ),
    "a function that lies": (
        changed(lambda a: a["functions"][0]["examples"][0].update(value=["tea"])),
        "lying function: shelf(number=0) gives ['oil', 'tea'], but its example says ['tea']",
    ),
    "the clock": (
        source("import time\ndef shelf(number):\n    return [time.time_ns()]"),
        "nondeterministic: shelf(number=0) gave [",
    ),
    "a check that a constant passes": (
        changed(lambda a: a["tasks"][2]["goal"].update(calls=CALLS[1:])),
        "always passes: task 3: a function twice that always returns [] passes",
    ),
    "a check that nothing is asked of": (
        changed(lambda a: a["tasks"][0].update(goal={"answer": True})),
        "always passes: task 1: the answer True is what one would guess",
    ),
    "an answer that is told": (
        changed(lambda a: a["tasks"][1].update(instruction="Submit what lies beside the Rice.")),
        "always passes: task 2: the instruction tells the answer 'rice'",
    ),
    "a check that the world passes": (
        changed(
            lambda a: a["tasks"][2]["goal"].update(
                calls=[{"function": "shelf", **each} for each in SHELVES["functions"][0]["examples"]]
            )
        ),
        "null accepted: task 3: doing nothing",
    ),
    "a wrong solution": (
        changed(lambda a: a["tasks"][0].update(goal={"answer": 7})),
        "gold rejected: task 1: not passed after 2 actions: {'submitted': [6]}",
    ),
    "a solution by chance": (
        changed(lambda a: a["tasks"][0]["solution"].insert(0, "import os\nos.urandom(4)")),
        "nondeterministic: task 1",
    ),
    "the example again": (
        prompt("interpreter_example").replace("hive", "barn").replace("yards", "farms"),
        "this is the example that you were shown",
    ),
}


def generator(script: Listener, **options: Any) -> LlmGenerator:
    return LlmGenerator(ScriptedPolicy(PolicySettings(policy="scripted", name="writer"), script), **options)


async def test_a_sound_answer_becomes_a_world_with_tasks() -> None:
    script = Listener(f"Here:\n```json\n{GOOD}\n```")
    spec = await generator(script).propose(inspiration(), 0)
    assert (spec.family, spec.name, spec.structure_digest) == (
        "interpreter",
        "explain-how-a-lock",
        source_structure(SHELVES["source"]),
    )
    assert rejection(admit_environment(spec)) is None
    assert "shelf(number) lists what lies on a shelf" in spec.parameters["rules"]
    asked = script.asked[0].content[0]
    assert isinstance(asked, TextObservation)
    assert inspiration().text in asked.content
    assert prompt("interpreter_example") in asked.content
    made = [each async for each in InterpreterTaskGenerator((2, 8)).propose(spec, 5, 0)]
    tasks = [each for each in made if isinstance(each, Task)]
    assert [rejection(admit_task(task, spec)[0]) for task in tasks] == [None] * 3
    assert [len(task.gold or []) for task in tasks] == [2, 2, 3]
    missing = [each for each in made if isinstance(each, GenerationError)]
    assert [each.reason for each in missing] == ["no_new_task"] * 2
    assert "written with 3 tasks" in missing[0].detail
    long = [each async for each in InterpreterTaskGenerator((3, 8)).propose(spec, 1, 0)]
    assert [each.gold for each in long if isinstance(each, Task)] == [tasks[2].gold]


async def test_the_example_of_the_prompt_is_sound_itself() -> None:
    """But for being the example."""
    script = Listener(prompt("interpreter_example"))
    with pytest.raises(GenerationError, match="still faulty after 0 repairs: - copied"):
        await generator(script, repairs=0).propose(inspiration(), 0)


@pytest.mark.parametrize("fault", FAULTY)
async def test_a_faulty_answer_is_told_what_is_wrong_and_repaired(fault: str) -> None:
    text, said = FAULTY[fault]
    script = Listener(text, GOOD)
    spec = await generator(script).propose(inspiration(), 0)
    assert spec.lineage is not None
    assert spec.lineage.notes == {"backend": "llm", "model": "writer", "repairs": 1}
    told = [item.content for item in script.asked[-1].content if isinstance(item, MessageAction | TextObservation)]
    assert told[1] == text
    assert said in told[2]


async def test_what_is_never_repaired_is_given_up_with_its_history() -> None:
    faults = ["syntax", "a function that lies", "a check that a constant passes", "the clock"]
    script = Listener(*(FAULTY[fault][0] for fault in faults))
    with pytest.raises(GenerationError, match="still faulty after 3 repairs: - nondeterministic") as caught:
        await generator(script).propose(inspiration(), 0)
    assert caught.value.reason == "unrepaired"
    assert all(FAULTY[each][1] in of["faults"] for each, of in zip(faults, caught.value.history, strict=True))


async def test_a_world_whose_parameters_were_changed_is_rejected_and_has_no_tasks() -> None:
    spec = await generator(Listener(GOOD)).propose(Inspiration(inspiration_id="i", text="Shelves."), 0)
    broken = msgspec.structs.replace(spec, parameters={**spec.parameters, "tasks": 3})
    failed = rejection(admit_environment(broken))
    assert failed is not None
    assert failed.name == "schema"
    made = [each async for each in InterpreterTaskGenerator().propose(broken, 2, 0)]
    assert [getattr(each, "reason", None) for each in made] == ["broken_environment"]


@pytest.mark.parametrize(
    ("goal", "asks", "why"),
    [
        ({"answer": []}, "", "what one would guess"),
        ({"answer": 0}, "", ""),
        ({"answer": "a"}, "Tell a letter.", "tells the answer"),
        ({"answer": "at"}, "What is that?", ""),
        ({"calls": CALLS}, "", ""),
        ({"calls": [{"function": "f", "arguments": {"x": n}, "value": n} for n in (1, 2)]}, "", "returns its argument"),
        ({"calls": [*CALLS, {"function": "g", "arguments": {}, "value": 1}]}, "", "g that always returns 1"),
    ],
)
def test_checks_that_need_no_work_are_found(goal: dict[str, Any], asks: str, why: str) -> None:
    task = msgspec.structs.replace(LIBRARY_TASK, instruction=asks, goal=goal)
    found = needs_no_work(goal_of(task), task)
    assert (why in found, bool(found)) == (True, bool(why))


def test_structure_does_not_know_names_texts_or_numbers() -> None:
    one = "def f(a):\n    return [len(each) for each in a if each != 'x']  # why"
    assert source_structure(one) == source_structure(one.replace("each", "word").replace("'x'", '"yes"'))
    assert source_structure(one) != source_structure(one.replace("len", "sum"))
    assert source_structure(one) != source_structure(one.replace("!=", "=="))
