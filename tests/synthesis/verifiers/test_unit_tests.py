"""``unit_tests``: the tests of a task in the real sandbox, on what the agent wrote."""

from __future__ import annotations

from typing import Any

import pytest

from agentmill.schemas.records.trajectory import CodeAction
from agentmill.schemas.records.verdict import Verdict
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
