"""What admission finds in coding problems and their tasks: each fault by its own name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentmill.schemas.records.task import EnvironmentSpec
from agentmill.schemas.records.trajectory import ApiAction
from agentmill.synthesis.environments.codegym.examples import COUNT, GAUGE, GAUGE_SPEC, ORDER, PILES, PILES_SPEC
from agentmill.synthesis.environments.codegym.problem import ProblemTool
from agentmill.synthesis.generators.admission import (
    admit_environment,
    admit_task,
    environment_digest,
    rejection,
    task_digest,
)
from tests.synthesis.environments.codegym.problems import changed, rewritten

_LIDS = 'return state["lids"]'
_KEEPS = "global lids\n    lids = globals().get('lids', 0) + 1\n    return lids"
_BOTH = 'def oracle(call, given):\n    call("weigh", jar=0)\n    lids = call("count_lids")\n    return '
_ANSWER = 'return given["jars"] - low + call("count_lids")'
_PEEKS = 'import sys\n    call("count_lids")\n    lids = sys._getframe(1).f_locals["state"]["lids"]\n    '
_COUNT = 'sum(jar >= {0}["level"] for jar in {0}["jars"])'
_HINTS = '_hints[:] = [state["lids"]]\n    return state["jars"][jar]'
_CATCHES = 'try:\n        call("weigh", jar=-1)\n    except Refused:\n        pass\n'
DEFECTS: dict[str, tuple[str, EnvironmentSpec, str]] = {
    "no problem": ("syntax", msgspec.structs.replace(GAUGE_SPEC, source='{"about": 1}'), "this is no problem"),
    "no Python": ("syntax", changed(solution="def solve(instance) return 1"), "solution is no Python"),
    "no function": ("tools", rewritten(GAUGE, "code", "def count_lids", "def lids"), "must define count_lids(state)"),
    "no schema": ("tools", changed(answer={"type": "whole"}), "the schema of submit is none"),
    "failing draw": ("bad_instances", rewritten(GAUGE, "instances", "3 * size", "size / 0"), "ZeroDivisionError"),
    "no JSON": ("bad_instances", rewritten(GAUGE, "instances", "chance.choice(jars)", "{1}"), "not JSON serializable"),
    "unknown name": ("bad_question", changed(question="How many of $pots?"), "'pots' is not given"),
    "given and not told": ("bad_question", changed(question="How many of $jars?"), "does not tell $level"),
    "given all": (
        "bad_question",
        rewritten(GAUGE, "instances", 'return {"jars": len', 'return {**instance, "jars": len'),
        "does not tell $lids",
    ),
    "failing solution": ("bad_solution", rewritten(GAUGE, "solution", '"level"', '"height"'), "KeyError: 'height'"),
    "answer of another type": ("answer_type", changed(answer={"type": "string"}), "which is no {'type': 'string'}"),
    "a yes or no": (
        "answer_type",
        changed(
            answer={"enum": [True, False]},
            solution='def solve(instance):\n    return instance["lids"] > 1',
            oracle=f"{_BOTH}lids > 1",
        ),
        "can be guessed",
    ),
    "tools that need an oracle": (
        "bad_tools",
        changed(code="_TOOLS\n" + GAUGE.code),
        "NameError",
    ),
    "unknown tool": ("bad_oracle", rewritten(GAUGE, "oracle", '"weigh"', '"lift"'), "there is no tool 'lift'"),
    "failing tool": ("bad_oracle", rewritten(GAUGE, "code", _LIDS, "return 1 // 0"), "ZeroDivisionError"),
    "endless calls": ("endless", rewritten(GAUGE, "oracle", "middle + 1", "middle"), "not end after 200 calls"),
    "endless solution": (
        "endless",
        rewritten(GAUGE, "solution", "return", "while True: 1\n    return"),
        "processor time",
    ),
    "chance": (
        "nondeterministic",
        rewritten(GAUGE, "code", _LIDS, "import random\n    return random.random()"),
        "a second time",
    ),
    "something kept": ("nondeterministic", rewritten(GAUGE, "code", _LIDS, _KEEPS), "a second time"),
    "the clock": (
        "nondeterministic",
        rewritten(GAUGE, "instances", "chance.randint(1, 3)", "__import__('time').time_ns() % 99"),
        "other inputs are drawn",
    ),
    "a tool that lies": (
        "wrong_answer",
        rewritten(GAUGE, "code", '["jars"][jar]', '["jars"][jar] + 3'),
        "the solution",
    ),
    "a wrong solution": ("wrong_answer", rewritten(GAUGE, "solution", ">=", ">"), "by calls the oracle comes to"),
    "an oracle with tools of its own": (
        "unplayable",
        changed(
            code=GAUGE.code.replace(_LIDS, "return 0"), oracle=f"{GAUGE.oracle}\ndef count_lids(state):\n    {_LIDS}\n"
        ),
        "count_lids({}): ",
    ),
    "keys that are no texts": (
        "unplayable",
        changed(
            code=GAUGE.code.replace('return state["jars"]', 'state[jar] = 1\n    return state["jars"]').replace(
                _LIDS, "return sum(isinstance(key, int) for key in state)"
            ),
            solution=GAUGE.solution.replace('instance["lids"]', "0"),
            oracle=GAUGE.oracle.replace('+ call("count_lids")', '+ 0 * call("count_lids")'),
        ),
        "count_lids({}): ",
    ),
    "something kept from call to call": (
        "unplayable",
        changed(
            code="_hints = [0]\n"
            + GAUGE.code.replace('return state["jars"][jar]', _HINTS).replace(_LIDS, "return _hints[0]")
        ),
        "count_lids({}): ",
    ),
    "a state that is no JSON": (
        "unplayable",
        rewritten(GAUGE, "code", _LIDS, f"state['seen'] = set()\n    {_LIDS}"),
        "count_lids({}): ",
    ),
    "refusals that only the oracle survives": (
        "unplayable",
        rewritten(GAUGE, "oracle", "    low, high", f"    {_CATCHES}    low, high"),
        "weigh({'jar': -1}): None",
    ),
    "no call": (
        "idle_oracle",
        changed(
            solution='def solve(instance):\n    return len(instance["jars"]) * instance["level"]',
            oracle='def oracle(call, given):\n    return given["jars"] * given["level"]',
        ),
        "calls no tool in 24 of 24",
    ),
    "a tool too many": (
        "unused_tool",
        changed(tools=(*GAUGE.tools, ProblemTool("f", "Says 1.")), code=f"{GAUGE.code}\ndef f(state):\n    return 1"),
        "never calls f",
    ),
    "an oracle that peeks": (
        "peeking_oracle",
        rewritten(GAUGE, "oracle", _ANSWER, f'{_PEEKS}return given["jars"] - low + lids'),
        "oracle must not use sys",
    ),
    "an oracle that knows who calls it": (
        "peeking_oracle",
        rewritten(GAUGE, "oracle", _ANSWER, f'{_ANSWER} if "_TOOLS" in globals() else 0'),
        "from the results of its calls alone it does not do the same: 0",
    ),
    "an answer that never changes": (
        "constant_answer",
        changed(solution="def solve(instance):\n    return 3", oracle=f"{_BOTH}3"),
        "the answer is 3 in 24 of 24",
    ),
    "an answer that is told": (
        "told_answer",
        changed(solution='def solve(instance):\n    return instance["level"]', oracle=f'{_BOTH}given["level"]'),
        "given as level in 24 of 24",
    ),
    "an answer that follows from what is told": (
        "told_answer",
        changed(
            solution='def solve(instance):\n    return len(instance["jars"]) * instance["level"]',
            oracle=f'{_BOTH}given["jars"] * given["level"]',
        ),
        "says the same where its tools look at another input",
    ),
    "a tool that tells the answer": (
        "telling_tool",
        changed(
            code=GAUGE.code.replace(_LIDS, f"return {_COUNT.format('state')}"),
            solution=f"def solve(instance):\n    return {_COUNT.format('instance')}",
            oracle=f"{_BOTH}lids",
        ),
        "count_lids({}) says the answer at once",
    ),
    "a checker that always passes": (
        "always_passes",
        changed(
            PILES,
            code=PILES.code.replace('return state["crates"]\n', "return True\n"),
            solution="def solve(instance):\n    return True",
        ),
        "right before anything is done",
    ),
    "a call that agents cannot make": (
        "unfit_call",
        rewritten(GAUGE, "oracle", "jar=middle", "jar=middle or False"),
        "False is not of type 'integer'",
    ),
}


@pytest.mark.parametrize("spec", [GAUGE_SPEC, PILES_SPEC])
def test_sound_problems_are_admitted(spec: EnvironmentSpec) -> None:
    assert rejection(admit_environment(spec)) is None


def test_a_parameter_may_be_called_tool() -> None:
    text = msgspec.json.encode(GAUGE).decode().replace("(state, jar)", "(state, tool)").replace("jar=", "tool=")
    text = text.replace('"jar":', '"tool":').replace("not 0 <= jar", "not 0 <= tool").replace("[jar]", "[tool]")
    spec = msgspec.structs.replace(GAUGE_SPEC, source=text.replace("no jar {jar}", "no jar {tool}"))
    assert rejection(admit_environment(spec)) is None


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_found_by_its_name(defect: str) -> None:
    reason, spec, said = DEFECTS[defect]
    found = rejection(admit_environment(spec))
    assert found is not None
    assert found.name == reason
    assert said in found.detail


def test_reports_are_the_same_every_time() -> None:
    assert admit_environment(GAUGE_SPEC) == admit_environment(GAUGE_SPEC)


@pytest.mark.parametrize(("task", "spec"), [(COUNT, GAUGE_SPEC), (ORDER, PILES_SPEC)])
def test_sound_tasks_are_admitted(task: Any, spec: EnvironmentSpec) -> None:
    report, gold, _ = admit_task(task, spec)
    assert rejection(report) is None
    assert gold == task.gold


@pytest.mark.parametrize(
    ("task", "spec", "changes", "reason"),
    [
        (COUNT, GAUGE_SPEC, {"goal": {"answer": 4}}, "gold_rejected"),
        (COUNT, GAUGE_SPEC, {"gold": COUNT.gold[:-1]}, "gold_rejected"),  # type: ignore[index]
        (COUNT, GAUGE_SPEC, {"initial_state": {**COUNT.initial_state, "budget": {"weigh": 2}}}, "gold_rejected"),
        (COUNT, GAUGE_SPEC, {"initial_state": {}}, "broken"),
        (
            COUNT,
            GAUGE_SPEC,
            {"goal": {"answer": 6}, "gold": [ApiAction(function="submit", kwargs={"answer": 6})]},
            "wrong_gold",
        ),
        (
            COUNT,
            GAUGE_SPEC,
            {"initial_state": {**COUNT.initial_state, "given": {"jars": 6, "level": 50, "hint": 5}}},
            "empty_answer_accepted",
        ),
        (
            ORDER,
            PILES_SPEC,
            {
                "initial_state": {"instance": {"crates": [20, 40, 70]}, "given": {"crates": 3}},
                "gold": [ApiAction(function="submit", kwargs={})],
            },
            "empty_answer_accepted",
        ),
    ],
)
def test_a_task_that_is_not_sound_is_rejected(task: Any, spec: Any, changes: dict[str, Any], reason: str) -> None:
    report, gold, _ = admit_task(msgspec.structs.replace(task, **changes), spec)
    found = rejection(report)
    assert found is not None
    assert found.name == reason
    assert gold is None


def test_a_call_without_which_the_solution_passes_is_found() -> None:
    """The first crate alone counts, so that the last swap is in vain."""
    spec = changed(
        PILES,
        code=PILES.code.replace('return state["crates"]\n', 'return state["crates"][0]\n'),
        solution='def solve(instance):\n    return min(instance["crates"])',
    )
    found = rejection(admit_task(msgspec.structs.replace(ORDER, goal={"answer": 20}), spec)[0])
    assert found is not None
    assert (found.name, found.detail) == ("unneeded_call", "the solution passes without its call 5")


def test_digests_are_made_where_they_are_missing() -> None:
    assert environment_digest(GAUGE_SPEC) not in (None, environment_digest(PILES_SPEC))
    assert environment_digest(msgspec.structs.replace(GAUGE_SPEC, source="{}")) is None
    assert environment_digest(changed(code=f"{GAUGE.code}\ndeep = 1{'+1' * 1_500}\n")) is None
    assert task_digest(COUNT, GAUGE_SPEC) not in (None, task_digest(ORDER, PILES_SPEC))
