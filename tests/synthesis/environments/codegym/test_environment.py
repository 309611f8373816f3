"""Coding problems as worlds: what an agent can call and see, what it cannot, and how answers are judged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import ApiAction, MessageAction
from agentmill.synthesis.environments import blocks
from agentmill.synthesis.environments.codegym.environment import CodegymEnvironment
from agentmill.synthesis.environments.codegym.examples import COUNT, GAUGE, GAUGE_SPEC, ORDER, PILES, PILES_SPEC
from agentmill.synthesis.environments.codegym.problem import ProblemError, read_problem, write_problem
from agentmill.synthesis.environments.codegym.structure import problem_structure, task_structure
from agentmill.synthesis.environments.codegym.workshop import Counter, Failure
from agentmill.synthesis.environments.environment import EnvError
from tests.synthesis.environments.codegym.problems import changed, rewritten

_NESTED: JsonObject = {}
for _ in range(200):
    _NESTED = {"items": _NESTED}
_DEEP: list[Any] = []
for _ in range(3_000):
    _DEEP = [_DEEP]


@pytest.fixture
def gauge() -> Iterator[CodegymEnvironment]:
    yield from lived(GAUGE_SPEC, COUNT)


@pytest.fixture
def piles() -> Iterator[CodegymEnvironment]:
    yield from lived(PILES_SPEC, ORDER)


def lived(spec: EnvironmentSpec, task: Task) -> Iterator[CodegymEnvironment]:
    environment = CodegymEnvironment(spec)
    environment.reset(task, 0)
    yield environment
    environment.close()


def call(name: str, **arguments: Any) -> ApiAction:
    return ApiAction(function=name, kwargs=arguments)


def seen(environment: CodegymEnvironment, action: ApiAction | MessageAction) -> str:
    return str(getattr(environment.step(action).observation, "content", ""))


def test_tools_look_at_the_input(gauge: CodegymEnvironment) -> None:
    assert seen(gauge, call("weigh", jar=2)) == "44"
    assert seen(gauge, MessageAction(content="weigh(jar=5)")) == "87"
    assert seen(gauge, call("weigh", jar=2.0)) == "44"
    assert [tool.name for tool in gauge.tools] == ["weigh", "count_lids", "submit"]


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (call("weigh", jar=6), "There is no jar 6."),
        (call("weigh", jar="2"), "'2' is not of type 'integer'"),
        (call("weigh"), "'jar' is a required property"),
        (call("weigh", jar=1, state={}), "Additional properties are not allowed"),
        (call("outcome", state={}), "There is no tool 'outcome'"),
        (call("_act", state={}), "There is no tool '_act'"),
        (call("solve"), "There is no tool 'solve'"),
        (call("weigh", jar="\ud800"), "cannot be written as JSON"),
        (call("weigh", jar=10**5000), "cannot be written as JSON"),
        (call("weigh", jar=float("nan")), "cannot be written as JSON"),
        (call("submit", answer=_DEEP), "cannot be written as JSON"),
        (call("submit", answer=10**5000), "cannot be written as JSON"),
        (MessageAction(content=f"submit(answer={'9' * 5000})"), ""),
        (MessageAction(content="submit(answer='\\ud800')"), ""),
        (MessageAction(content=f"submit(answer={'[' * 3000}{']' * 3000})"), ""),
    ],
)
def test_what_no_tool_takes_changes_nothing(action: ApiAction, expected: str, gauge: CodegymEnvironment) -> None:
    before = gauge.state_digest(), gauge.snapshot()
    transition = gauge.step(action)
    assert transition.error
    assert expected in str(getattr(transition.observation, "content", ""))
    assert (gauge.state_digest(), gauge.snapshot()) == before


def test_what_is_admissible_is_taken() -> None:
    find = {
        "name": "find",
        "description": "Finds.",
        "parameters": {"word": {"type": "string", "minLength": 2}, "n": {"type": "integer", "exclusiveMinimum": 0}},
    }
    problem = json.loads(GAUGE_SPEC.source)
    problem["tools"].append(find)
    problem["code"] += "\ndef find(state, word, n):\n    return word * n\n"
    problem["answer"] = {"type": "integer", "minimum": 3}
    environment = next(lived(msgspec.structs.replace(GAUGE_SPEC, source=json.dumps(problem)), COUNT))
    admissible = environment.admissible()
    assert "submit" in [action.function for action in admissible]
    for action in admissible:
        before = environment.snapshot()
        assert not environment.step(action).error, action
        environment.restore(before)
    environment.close()


def test_neither_input_nor_solution_is_told(gauge: CodegymEnvironment) -> None:
    told = gauge.rules + COUNT.instruction + str(gauge.tools)
    for secret in ("[12, 31", "solve", "oracle", "87", "draw"):
        assert secret not in told


def test_the_solution_is_not_where_the_tools_run() -> None:
    hunt = "\ndef hunt(state):\n    return sorted(set(globals()) & {'solve', 'oracle', 'draw', 'given'})\n"
    tool = {"name": "hunt", "description": "Looks around."}
    spec = changed(code=GAUGE.code + hunt, tools=[*msgspec.to_builtins(GAUGE.tools), tool])
    for environment in lived(spec, COUNT):
        assert seen(environment, call("hunt")) == "[]"


def test_metered_tools_are_refused_when_the_budget_is_spent(gauge: CodegymEnvironment) -> None:
    assert [gauge.step(call("weigh", jar=jar)).error for jar in (0, 1, 2, 3, 4)] == [False] * 4 + [True]
    assert "as often as is allowed, 4 times" in seen(gauge, call("weigh", jar=0))
    assert not gauge.step(call("count_lids")).error
    assert gauge.expert() is None


@pytest.mark.parametrize(("answer", "passed"), [(5, True), (5.0, True), (4, False), (-5, False)])
def test_an_answer_ends_the_episode(answer: float, passed: bool, gauge: CodegymEnvironment) -> None:
    transition = gauge.step(call("submit", answer=answer))
    assert (transition.terminated, transition.reward, transition.error) == (True, float(passed), False)
    assert gauge.check().passed is passed
    assert gauge.step(call("weigh", jar=1)).error
    assert gauge.step(call("submit", answer=5)).error
    assert gauge.check().passed is passed


@pytest.mark.parametrize("answer", ["5", True, None, [5], {}])
def test_an_answer_of_another_type_may_be_tried_again(answer: Any, gauge: CodegymEnvironment) -> None:
    assert gauge.step(call("submit", answer=answer)).error
    assert not gauge.check().passed
    assert gauge.step(call("submit", answer=5)).reward == 1.0


def test_where_nothing_is_answered_the_outcome_counts(piles: CodegymEnvironment) -> None:
    assert piles.step(call("swap", first=0, second=1)).reward == 0.0
    piles.step(call("swap", first=1, second=2))
    assert not piles.check().passed
    assert piles.step(call("submit")).reward == 1.0
    assert piles.check().passed


def test_saying_at_once_that_all_is_done_is_wrong(piles: CodegymEnvironment) -> None:
    assert piles.step(call("submit")).reward == 0.0
    assert not piles.check().passed


def test_a_state_without_an_outcome_is_judged_wrong() -> None:
    spec = rewritten(PILES, "code", 'return state["crates"]\n', 'return [0][state["crates"] != [20, 40, 70]]\n')
    for environment in lived(spec, msgspec.structs.replace(ORDER, goal={"answer": 0})):
        before = environment.snapshot()
        assert environment.step(call("submit")).reward == 0.0
        assert environment.check().evidence == {"outcome": "IndexError: list index out of range"}
        after = environment.snapshot()
        environment.restore(before)
        assert environment.check().evidence == {"submitted": []}
        environment.restore(after)
        assert "outcome" in environment.check().evidence


def test_processor_time_is_for_a_call_and_not_for_an_episode() -> None:
    """An interpreter has 2 s; the calls need 3 s together."""
    slow = "import time\n    end = time.process_time() + 0.6\n    while time.process_time() < end: pass\n    return 7"
    for environment in lived(rewritten(GAUGE, "code", 'return state["lids"]', slow), COUNT):
        assert [seen(environment, call("count_lids")) for _ in range(5)] == ["7"] * 5


def test_a_session_that_cannot_begin_is_given_back() -> None:
    counter = Counter(read_problem(changed(code=GAUGE.code + "\n1 / 0").source))
    for _ in range(2):
        with pytest.raises(Failure, match="ZeroDivisionError"):
            counter.open()
        assert counter._session is None


def test_nothing_is_left_from_the_episode_before() -> None:
    kept = GAUGE.code.replace('return state["jars"][jar]', "_seen.append(jar)\n    return _seen")
    environment = CodegymEnvironment(changed(code="_seen = []\n" + kept))
    for _ in range(2):
        environment.reset(COUNT, 0)
        assert seen(environment, call("weigh", jar=1)) == "[1]"
    environment.close()


def test_the_expert_goes_on_where_nothing_was_changed_meanwhile(piles: CodegymEnvironment) -> None:
    assert piles.expert() == ORDER.gold[0]  # type: ignore[index]
    piles.step(call("lighter", first=2, second=0))
    assert piles.expert() == ORDER.gold[0]  # type: ignore[index]
    snapshot = piles.snapshot()
    piles.step(call("swap", first=0, second=2))
    assert piles.expert() is None
    piles.restore(snapshot)
    while (advice := piles.expert()) is not None:
        piles.step(advice)
    assert piles.check().passed


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("state.clear()\n    raise Refused('no')", "no"),
        ("while True:\n        pass", "processor time"),
        ("return {1, 2}", "not JSON serializable"),
        ("import os\n    os._exit(0)", "ended itself"),
        ("return 'x' * 600_000", "at most"),
        ("state['jars'] = {1}", "not JSON serializable"),
    ],
)
def test_tools_that_fail_harm_nothing(body: str, expected: str) -> None:
    spec = rewritten(GAUGE, "code", 'return state["lids"]', body)
    for environment in lived(spec, COUNT):
        before = environment.snapshot()
        transition = environment.step(call("count_lids"))
        assert transition.error
        assert expected in str(getattr(transition.observation, "content", ""))
        assert environment.snapshot() == before
        assert seen(environment, call("weigh", jar=0)) == "12"


def test_long_results_are_cut() -> None:
    spec = rewritten(GAUGE, "code", 'return state["lids"]', "return 'x' * 9_000")
    for environment in lived(spec, COUNT):
        assert len(seen(environment, call("count_lids"))) < 4_100


@pytest.mark.parametrize(
    ("spec", "task", "expected"),
    [
        (msgspec.structs.replace(GAUGE_SPEC, source="{}"), COUNT, "this is no problem"),
        (changed(code=GAUGE.code + "\n1 / 0"), COUNT, "ZeroDivisionError"),
        (GAUGE_SPEC, msgspec.structs.replace(COUNT, goal={}), "must hold 'answer'"),
        (GAUGE_SPEC, msgspec.structs.replace(COUNT, initial_state={}), "`instance`"),
    ],
)
def test_worlds_that_cannot_begin_say_why(spec: EnvironmentSpec, task: Task, expected: str) -> None:
    with pytest.raises(EnvError, match=expected):
        CodegymEnvironment(spec).reset(task, 0)


def test_a_snapshot_of_something_else_is_refused(gauge: CodegymEnvironment) -> None:
    with pytest.raises(EnvError, match="no snapshot"):
        gauge.restore(b"[]")


def test_its_episodes_are_lived_in_threads() -> None:
    assert blocks(GAUGE_SPEC)


@pytest.mark.parametrize(
    ("fields", "reason", "expected"),
    [
        ({"code": "def weigh(state, jar:"}, "syntax", "code is no Python"),
        ({"code": f"{GAUGE.code}\ndeep = 1{'+1' * 1_500}"}, "syntax", "code is nested more than 200 deep"),
        ({"solution": "def solution(instance):\n    return 1"}, "syntax", r"solution must define solve\(instance\)"),
        ({"oracle": "def oracle(call):\n    return 1"}, "syntax", r"oracle must define oracle\(call, given\)"),
        ({"instances": "x = 1"}, "syntax", r"instances must define draw\(chance, size\)"),
        ({"code": "def weigh(state, pot):\n    return 1"}, "tools", r"code must define weigh\(state, jar\)"),
        ({"answer": None}, "tools", r"code must define outcome\(state\)"),
        ({"answer": {"type": "whole"}}, "tools", "the schema of submit is none"),
        ({"answer": {"$ref": "http://127.0.0.1:1/schema"}}, "tools", "the schema of submit holds '\\$ref'"),
        ({"answer": {"type": "array", "items": {"$ref": "#"}}}, "tools", r"holds '\$ref'; use additionalProperties"),
        ({"answer": {"properties": {"a": {"pattern": "^(a+)+$"}}}}, "tools", "holds 'pattern'"),
        ({"answer": {"additionalProperties": {"not": {}}}}, "tools", "holds 'not'"),
        ({"answer": _NESTED}, "tools", "submit is nested more than 24 deep"),
        ({"oracle": f"import sys\n{GAUGE.oracle}"}, "peeking_oracle", "must not use sys; it may import bisect"),
        ({"oracle": f"from os.path import join\n{GAUGE.oracle}"}, "peeking_oracle", r"must not use os\.path"),
        ({"oracle": f"from .os import path\n{GAUGE.oracle}"}, "peeking_oracle", "must not use"),
        ({"oracle": f"{GAUGE.oracle}    call.__closure__"}, "peeking_oracle", "must not use __closure__"),
        ({"oracle": f"{GAUGE.oracle}    call.gi_frame"}, "peeking_oracle", "must not use gi_frame"),
        ({"oracle": f"{GAUGE.oracle}    __import__('sys')"}, "peeking_oracle", "must not use __import__"),
        ({"metered": ("count",)}, "tools", "metered names no tool: count"),
        ({"tools": GAUGE.tools * 2}, "tools", "different names"),
        ({"tools": ()}, "tools", "1 to 16 tools"),
    ],
)
def test_problems_that_cannot_be_read_say_why(fields: JsonObject, reason: str, expected: str) -> None:
    with pytest.raises(ProblemError, match=expected) as caught:
        read_problem(changed(**fields).source)
    assert caught.value.reason == reason


def test_the_same_problem_in_other_words_has_the_same_structure() -> None:
    text = write_problem(PILES)
    for old, new in (("crates", "barrels"), ("lighter", "smaller"), ("swap", "exchange"), ("least", "best")):
        text = text.replace(old, new)
    other = msgspec.structs.replace(read_problem(text), about="A cellar.", tools=read_problem(text).tools[::-1])
    assert other != PILES
    assert problem_structure(other) == problem_structure(PILES)


@pytest.mark.parametrize(
    ("part", "old", "new"),
    [
        ("code", '["crates"][first] <', '["crates"][first] >'),
        ("code", "crates[first], crates[second] = crates[second]", "crates[second], crates[first] = crates[second]"),
        ("solution", "sorted(instance", "max(instance"),
        ("solution", 'sorted(instance["crates"])', 'sorted(instance["crates"], reverse=True)'),
    ],
)
def test_another_problem_has_another_structure(part: str, old: str, new: str) -> None:
    other = read_problem(rewritten(PILES, part, old, new).source)
    assert problem_structure(other) != problem_structure(PILES)


@pytest.mark.parametrize(("old", "new"), [("return 4", "return 5"), ("case 3", "case 6"), ("Type", "Value")])
def test_cases_and_what_is_caught_belong_to_the_structure(old: str, new: str) -> None:
    code = "\ndef f(state):\n    try:\n        match state:\n            case 3:\n                return 4\n"
    code += "    except TypeError:\n        return 1\n"
    one, two = (read_problem(changed(code=GAUGE.code + each).source) for each in (code, code.replace(old, new)))
    assert problem_structure(one) != problem_structure(two)


def structure(environment: str = "p", at: str = "a", ways: Any = (("a", "b", 1),), guess: str = "a") -> str:
    start: JsonObject = {"instance": {"at": at, "ways": [list(way) for way in ways]}, "given": {}}
    return task_structure(environment, start, [call("guess", word=guess)])


def test_tasks_are_the_same_up_to_the_renaming_of_texts() -> None:
    assert structure() == structure(at="x", ways=(("x", "y", 1),), guess="x")
    assert structure() != structure(at="b")
    assert structure() != structure(ways=(("a", "b", 2),))
    assert structure() != structure(environment="q")
    assert structure() != structure(guess="b")
    assert structure(guess="c") != structure(guess="d")
