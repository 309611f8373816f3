"""``unit_tests``: the tests of a task in the real sandbox, on what the agent wrote."""

from __future__ import annotations

from typing import Any

import pytest

from agentmill.schemas.records.trajectory import CodeAction
from agentmill.schemas.records.verdict import Verdict
from agentmill.synthesis.sandbox import Limits, pool
from agentmill.synthesis.verifiers import unit_tests
from agentmill.synthesis.verifiers.unit_tests import UnitTests
from tests.builders import agent_message, called, instruction, seen, task, trajectory

TESTS = ["assert add(1, 2) == 3", "assert add(-1, 1) == 0", "for n in range(3):\n    assert add(n, n) == 2 * n"]
RIGHT = "def add(a, b):\n    return a + b"


async def judged(*code: str, tests: Any = TESTS, **parameters: Any) -> Verdict:
    content = [CodeAction(language="python", content=each, turn=turn) for turn, each in enumerate(code, start=1)]
    record = trajectory(content=[instruction(), *content])
    return await UnitTests.model_validate(parameters).verify(task(goal={"tests": tests}), record)


async def test_the_score_is_the_share_of_tests_passed() -> None:
    right = await judged(RIGHT)
    assert (right.score, right.passed, right.evidence) == (1.0, True, {"tests": 3, "failed": []})
    wrong = await judged("def add(a, b):\n    return 3")
    assert wrong.score == pytest.approx(1 / 3)
    assert wrong.passed is False
    assert [each["test"] for each in wrong.evidence["failed"]] == [1, 2]
    assert "AssertionError" in wrong.evidence["failed"][0]["fault"]
    assert (await judged("def add(a, b):\n    return 3", pass_at=0.3)).passed is True


async def test_the_last_code_counts_or_all_of_it() -> None:
    halves = ("def one(a):\n    return a", "def add(a, b):\n    return one(a) + b")
    assert (await judged(*halves)).passed is False
    assert (await judged(*halves, every=True)).passed is True
    assert (await judged("def add(a, b): return 0", RIGHT)).passed is True


async def test_tests_do_not_see_each_other() -> None:
    counting = "n = 0\ndef add(a, b):\n    global n\n    n += 1\n    return n"
    assert (await judged(counting, tests=["assert add(0, 0) == 1"] * 2)).passed is True


async def test_code_is_found_in_fences_and_calls() -> None:
    verifier = UnitTests()
    given = task(goal={"tests": TESTS})
    message = trajectory(content=[agent_message(f"Here:\n```python\n{RIGHT}\n```\nDone.", 1)])
    assert (await verifier.verify(given, message)).passed is True
    call = trajectory(content=[called("submit", 1, code=RIGHT), seen("", 1), agent_message("Bye.", 2)])
    assert (await UnitTests.model_validate({"code": {"tool": "submit"}}).verify(given, call)).passed is True
    bash = trajectory(content=[CodeAction(language="bash", content="ls", turn=1)])
    silent = await verifier.verify(given, bash)
    assert (silent.status, silent.passed, silent.reason) == ("scored", False, "no_code")
    unknown = await verifier.verify(task(), message)
    assert (unknown.status, unknown.reason) == ("unscored", "no_tests")


CASE = "import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n        self.assertEqual(add(1, 2), 3)"


@pytest.mark.parametrize(
    "test",
    [
        "def test_add():\n    assert add(1, 2) == 3",
        "def test_add():\n    assert add(1, 2) == 3\ntest_add()",
        "class TestAdd:\n    def test_it(self):\n        assert add(1, 2) == 3",
        "def test(f):\n    assert f(1, 2) == 3\ntest(add)",
        "def test_all(n=1):\n    test_one(n)\ndef test_one(n):\n    assert add(n, n) == 2 * n",
        CASE,
        f"{CASE}\nif __name__ == '__main__':\n    unittest.main()",
        "from unittest import TestCase, main\nclass T(TestCase):\n    def test_it(self): assert add(1, 2) == 3\nmain()",
    ],
)
async def test_tests_that_are_only_defined_are_run(test: str) -> None:
    assert (await judged(RIGHT, tests=test)).passed is True
    wrong = await judged("def add(a, b):\n    return 0", tests=test)
    assert (wrong.status, wrong.passed) == ("scored", False)
    assert "AssertionError" in wrong.evidence["failed"][0]["fault"]


async def test_tests_of_the_agent_are_not_run() -> None:
    own = "import unittest\ndef test_mine(): assert 0\nclass Mine(unittest.TestCase):\n    def test_it(self): assert 0"
    assert (await judged(f"{own}\n{RIGHT}", tests=CASE)).passed is True
    assert (await judged(f"isinstance = type = dict = None\n{RIGHT}", tests=CASE)).passed is True


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("def check(candidate):\n    assert candidate(1, 2) == 3", "no_tests"),
        ("import math\n'Tests.'\nCASES = [1]", "no_tests"),
        ("def test_add(tmp_path):\n    assert add(1, 2) == 3", "tests_need_pytest"),
        ("async def test_add():\n    assert add(1, 2) == 3", "tests_need_pytest"),
        ("class TestAdd:\n    def setup_method(self): ...\n    def test_it(self): ...", "tests_need_pytest"),
        ("import pytest\ndef test_add():\n    assert add(1, 2) == pytest.approx(3)", "tests_need_pytest"),
    ],
)
async def test_tests_that_cannot_be_run_decide_nothing(test: str, reason: str) -> None:
    verdict = await judged(RIGHT, tests=test)
    assert (verdict.status, verdict.passed, verdict.reason) == ("unscored", None, reason)


async def test_a_test_may_take_the_time_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Limits] = []
    monkeypatch.setattr(unit_tests, "pool", lambda limits: asked.append(limits) or pool(limits))
    await judged(RIGHT, timeout_s=200.0)
    assert asked[0].cpu_s >= 400


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "raise SystemExit(0)",
        "import os\nos._exit(0)",
        "def add(a, b):\n    raise SystemExit(0)",
        "def add(a, b):\n    import os\n    os._exit(0)",
        "class Any:\n    def __eq__(self, other): raise KeyboardInterrupt\ndef add(a, b): return Any()",
        "import sys\nsys.settrace(lambda *a: (_ for _ in ()).throw(SystemExit(0)))\ndef add(a, b): return 0",
    ],
)
async def test_code_that_ends_its_interpreter_passes_nothing(code: str) -> None:
    verdict = await judged(code, tests=TESTS[:1], timeout_s=2)
    assert (verdict.status, verdict.score, verdict.passed) == ("scored", 0.0, False)
