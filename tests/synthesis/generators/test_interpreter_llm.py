"""Interpreter worlds written by a model: faulty answers are repaired or given up with the right reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
import pytest

from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import Inspiration, Task
from agentmill.schemas.records.trajectory import MessageAction, TextObservation
from agentmill.synthesis.environments.interpreter.source_session import begin
from agentmill.synthesis.generators.admission import admit_environment, admit_task, rejection
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.generators.interpreter_admission import source_structure
from agentmill.synthesis.generators.interpreter_llm.generator import LlmGenerator
from agentmill.synthesis.generators.interpreter_tasks.generator import InterpreterTaskGenerator
from agentmill.synthesis.policies.policy import PolicySettings
from agentmill.synthesis.policies.scripted import ScriptedPolicy
from agentmill.synthesis.prompts import prompt
from agentmill.synthesis.sandbox import Result, Session
from tests.synthesis.generators.environments import inspiration
from tests.synthesis.generators.test_pddl_llm import Listener

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


ONCE = """
asked = []
def shelf(number):
    asked.append(number)
    return list(_shelves[number]) if len(asked) == 1 else []
"""
CALLS = SHELVES["tasks"][2]["goal"]["calls"]
FAULTY = {
    "no object": ("I would rather not.", "there is no JSON object"),
    "cut off": (GOOD[:-30], "there is no JSON object in the answer, or it does not end"),
    "no number": (GOOD.replace('["rice"]', "NaN"), "it holds what JSON has not (NaN, Infinity, half characters)"),
    "too large a number": (GOOD.replace('["rice"]', "1e999"), "it holds what JSON has not"),
    "half a character": (GOOD.replace('"rice"', '"\\ud800"'), "it holds what JSON has not"),
    "too deep": (GOOD.replace('["rice"]', "[" * 600 + "]" * 600), "schema: "),
    "deeper": (GOOD.replace('["rice"]', "[" * 982 + "]" * 982), "schema: "),
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
    "a function that counts its calls": (
        source(ONCE),
        "nondeterministic: shelf(number=0) gave ['oil', 'tea'] in one session, and [] in another one after other calls",
    ),
    "one example": (changed(lambda a: a["functions"][0]["examples"].pop()), "each with examples: at least 2"),
    "one example twice": (
        changed(lambda a: a["functions"][0].update(examples=a["functions"][0]["examples"][:1] * 2)),
        "each with examples: at least 2",
    ),
    "one task three times": (
        changed(lambda a: a.update(tasks=a["tasks"][:1] * 3)),
        "schema: two tasks have the same instruction",
    ),
    "one cell": (changed(lambda a: a["tasks"][0]["solution"].pop()), "each with a solution of 2 to 8 cells"),
    "no use of the world": (
        changed(
            lambda a: a["tasks"][0].update(
                instruction="Submit seven times six.", solution=["7", "submit(6 * 7)"], goal={"answer": 42}
            )
        ),
        "always passes: task 1: the solution passes without the functions",
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
    "a submit of its own": (
        source(SHELVES["source"] + "def submit(answer=None):\n    _submitted[:] = [6]\n").replace(
            "submit(found)", "submit('whatever')"
        ),
        "gold rejected: task 1: not passed after 2 actions: {'submitted': ['whatever']}",
    ),
    "a session that submits": (
        changed(
            lambda a: a["tasks"][0]["solution"].insert(
                0,
                "class Six(list):\n    def __setitem__(self, place, values):\n        self.append(6)\n"
                "_submitted = Six()",
            )
        ),
        "always passes: task 1: submitting something else passes too",
    ),
    "a name that is taken": (
        changed(lambda a: a["data"].update(_submitted=[6])),
        "schema: '_submitted' is the name of something else",
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
    assert [each.reason for each in missing] == ["too_few_tasks"] * 2
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


async def test_a_source_that_runs_sometimes_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = await generator(Listener(GOOD)).propose(inspiration(), 0)
    starts = count(1)

    def sometimes(session: Session, source: str, names: JsonObject) -> Result:
        return begin(session, source if next(starts) == 1 else "1 / 0", names)

    monkeypatch.setattr("agentmill.synthesis.generators.interpreter_admission.begin", sometimes)
    failed = rejection(admit_environment(spec))
    assert failed is not None
    assert failed.name == "nondeterministic"
    assert "ZeroDivisionError" in failed.detail


async def test_what_an_author_is_told_of_a_fault_is_bounded() -> None:
    lie = changed(lambda a: a["functions"][0]["examples"][0].update(value=["tea"] * 1_000))
    with pytest.raises(GenerationError, match="lying function") as caught:
        await generator(Listener(lie), repairs=0).propose(inspiration(), 0)
    assert len(caught.value.history[0]["faults"]) < 700
