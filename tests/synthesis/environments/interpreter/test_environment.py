"""Sessions as worlds: what counts as a cell, how answers are judged, and that the goal stays on the host."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction, CodeAction, MessageAction
from agentmill.synthesis.environments import blocks
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.environments.interpreter.environment import MOST_DEATHS, InterpreterEnvironment
from agentmill.synthesis.environments.interpreter.examples import LEDGER, LONGEST, SUM, WORDS
from agentmill.synthesis.environments.interpreter.goal import same
from agentmill.synthesis.rollouts.step import environment_at_fault
from agentmill.synthesis.sandbox import Limits, Pool, SandboxUnavailable, Session
from agentmill.synthesis.sandbox.backend import Started
from tests.errors import user_error


class Missing:
    """A backend that is not installed."""

    def start(self, control: int, limits: Limits) -> Started:
        raise SandboxUnavailable("install it", ErrorCode.SANDBOX_UNAVAILABLE)


@pytest.fixture
def ledger() -> Iterator[InterpreterEnvironment]:
    environment = InterpreterEnvironment(LEDGER)
    environment.reset(SUM, 0)
    yield environment
    environment.close()


def cell(code: str) -> ApiAction:
    return ApiAction(function="python", kwargs={"code": code})


def seen(environment: InterpreterEnvironment, action: AnyAction) -> str:
    return str(getattr(environment.step(action).observation, "content", ""))


def test_cells_come_as_calls_as_code_and_in_messages(ledger: InterpreterEnvironment) -> None:
    assert seen(ledger, cell("x = 1\nprint('one')\nx + 1")) == "one\n2"
    assert seen(ledger, CodeAction(language="Python", content="x += 1\nx")) == "2"
    assert seen(ledger, MessageAction(content="I add.\n```python\nx += 1\n```\nthen look\n```\nx\n```")) == "3"
    assert seen(ledger, cell("x = 2")) == "(nothing was shown)"


@pytest.mark.parametrize(
    "text",
    [
        'The data:\n```json\n{"a": 1}\n```\nNow:\n```python\n3\n```',
        "Nothing:\n```\n```\nas `x` is.\n```python3\n3\n```",
        "I say ```x``` and\n```Python title=one\r\n3\r\n```",
        "````py\n'```' and 3\n````",
    ],
)
def test_what_is_between_blocks_is_not_run(text: str, ledger: InterpreterEnvironment) -> None:
    assert seen(ledger, MessageAction(content=text)) == "3"


def test_code_may_hold_three_backticks_and_a_block_may_be_indented(ledger: InterpreterEnvironment) -> None:
    assert seen(ledger, MessageAction(content="```python\ns = 'a```b'\nprint(s)\n```")) == "a```b"
    cut = "```python\nmd = '''Title\n```js\nalert(1)\n```\nend'''\nprint(len(md))\n```"
    assert "SyntaxError" in seen(ledger, MessageAction(content=cut)), "it is no program of two parts"
    assert seen(ledger, MessageAction(content="1. I add:\n   ```python\n   y = 1\n   y + 2\n   ```")) == "3"
    assert seen(ledger, MessageAction(content="```python\n3```")) == "3"


def test_what_is_no_plain_data_is_refused_once(ledger: InterpreterEnvironment) -> None:
    assert "no plain data" in seen(ledger, cell("submit({1, 2})"))
    assert seen(ledger, cell("1 + 1")) == "2"
    before = ledger.snapshot()
    assert seen(ledger, cell("2 + 1")) == "3"
    ledger.restore(before)
    assert ledger.step(cell("submit(20)")).reward == 1.0


def test_code_with_fences_can_be_written_as_a_command(ledger: InterpreterEnvironment) -> None:
    code = "text = '''\n```\n'''\nlen(text)"
    assert seen(ledger, MessageAction(content=ledger.command(cell(code)))) == "5"


def test_a_call_and_its_command_do_the_same(ledger: InterpreterEnvironment) -> None:
    other = InterpreterEnvironment(LEDGER)
    other.reset(SUM, 0)
    while (advice := ledger.expert()) is not None:
        assert ledger.step(advice) == other.step(MessageAction(content=other.command(advice)))
        assert ledger.state_digest() == other.state_digest()
    assert ledger.check().passed
    other.close()


def test_an_error_is_seen_and_what_was_done_stays(ledger: InterpreterEnvironment) -> None:
    transition = ledger.step(cell("x = 5\n1 / 0"))
    assert not transition.error
    assert "ZeroDivisionError: division by zero" in transition.observation.content  # type: ignore[union-attr]
    assert seen(ledger, cell("x")) == "5"


def test_a_cell_that_ends_the_interpreter_is_undone(ledger: InterpreterEnvironment) -> None:
    ledger.step(cell("x = [1]"))
    before = ledger.state_digest()
    transition = ledger.step(cell("x.append(2)\nimport os\nos._exit(0)"))
    assert transition.error
    assert "is as it was before" in transition.observation.content  # type: ignore[union-attr]
    assert ledger.state_digest() == before
    assert seen(ledger, cell("x")) == "[1]"


def test_the_right_answer_ends_with_a_reward(ledger: InterpreterEnvironment) -> None:
    transition = ledger.step(
        cell("submit(sum(max(each['amount'], 0) for number in range(3) for each in page(number)))")
    )
    assert (transition.terminated, transition.reward, transition.error) == (True, 1.0, False)
    assert ledger.check().passed
    assert ledger.expert() is None
    assert ledger.step(cell("submit(1)")).error
    assert ledger.check().passed


@pytest.mark.parametrize("answer", ["21", "None", "'20'", "True", "[20]", "float('inf')"])
def test_a_wrong_answer_ends_without(answer: str, ledger: InterpreterEnvironment) -> None:
    transition = ledger.step(cell(f"submit({answer})"))
    assert transition.reward == 0.0
    assert not ledger.check().passed
    assert transition.terminated is (answer != "float('inf')")  # which is no plain data, and may be tried again


def test_the_goal_is_not_in_the_session(ledger: InterpreterEnvironment) -> None:
    hunt = "import gc\n[each for each in gc.get_objects() if isinstance(each, dict) and each.get('answer') == 20]"
    assert seen(ledger, cell(hunt)).startswith("[]")


def test_patching_submit_forges_no_reward(ledger: InterpreterEnvironment) -> None:
    ledger.step(cell("_submission = lambda: ['forged']"))
    assert ledger.check() == msgspec.structs.replace(ledger.check(), passed=False, score=0.0)


def solved(code: str) -> tuple[bool, float]:
    environment = InterpreterEnvironment(WORDS)
    try:
        environment.reset(LONGEST, 0)
        environment.step(cell(code))
        environment.step(cell("submit()"))
        check = environment.check()
        return check.passed, check.score
    finally:
        environment.close()


@pytest.mark.parametrize(
    ("code", "score"),
    [
        ("def longest(text):\n    return max(text.split(), key=len)", 1.0),
        ("def longest(text):\n    return text.split()[-1]", 0.5),
        ("longest = 5", 0.0),
        ("pass", 0.0),
        ("def longest(text):\n    import os\n    os._exit(0)", 0.0),
        ("class Any:\n    def __eq__(self, other):\n        return True\ndef longest(text):\n    return Any()", 0.0),
    ],
)
def test_functions_are_called_with_what_the_agent_has_not_seen(code: str, score: float) -> None:
    assert solved(code) == (score == 1.0, score)


LONGEST_CODE = "def longest(text):\n    return max(text.split(), key=len)\n"


@pytest.mark.parametrize("printed", ["time.time_ns()", "os.urandom(8)", "os.getpid(), id(object())"])
def test_cells_that_never_come_to_the_same_are_graded(printed: str) -> None:
    assert solved(f"import os, time\nprint({printed})\n{LONGEST_CODE}") == (True, 1.0)


def test_cells_that_die_in_the_judges_session_come_to_nothing() -> None:
    """They tell a replay by the clock: the cell was written at most a second ago, and then is older."""
    born = time.time()
    code = f"import os, time\nif time.time() > {born + 3.0}:\n    os._exit(0)\n{LONGEST_CODE}"
    environment = InterpreterEnvironment(WORDS)
    environment.reset(LONGEST, 0)
    assert not environment.step(cell(code)).error
    assert environment.check().passed
    time.sleep(max(0.0, born + 3.1 - time.time()))
    check = environment.check()
    assert (check.passed, check.score) == (False, 0.0)
    assert "did not end well" in check.evidence["replay"]
    environment.close()


@pytest.mark.parametrize(("spec", "task"), [(LEDGER, SUM), (WORDS, LONGEST)])
def test_a_death_that_cannot_be_undone_ends_the_episode(spec: EnvironmentSpec, task: Task) -> None:
    environment = InterpreterEnvironment(spec)
    environment.reset(task, 0)
    environment.step(cell(f"import os, time\nprint(time.time_ns())\n{LONGEST_CODE}"))
    transition = environment.step(cell("os._exit(0)"))
    assert (transition.terminated, transition.reward) == (True, 0.0)
    assert "could not be brought back" in transition.observation.content  # type: ignore[union-attr]
    check, snapshot, digested = environment.check(), environment.snapshot(), environment.state_digest()
    assert (check.passed, check.score) == (False, 0.0)
    assert environment.step(cell(LONGEST_CODE)).error
    assert environment.expert() is None
    environment.reset(task, 0)
    assert environment.state_digest() != digested
    environment.restore(snapshot)
    assert environment.state_digest() == digested
    environment.close()


def test_cells_that_end_the_session_again_and_again_end_the_episode(ledger: InterpreterEnvironment) -> None:
    dying = [ledger.step(cell("import os\nos._exit(0)")) for _ in range(MOST_DEATHS + 1)]
    assert [each.terminated for each in dying] == [False] * MOST_DEATHS + [True]
    assert ledger.check().score == 0.0
    ledger.reset(SUM, 0)
    assert not ledger.step(cell("import os\nos._exit(0)")).terminated


def test_deaths_are_part_of_a_snapshot(ledger: InterpreterEnvironment) -> None:
    fresh = ledger.snapshot()
    kill = cell("import os\nos._exit(3)")
    for _ in range(MOST_DEATHS + 2):
        ledger.restore(fresh)
        assert not ledger.step(kill).terminated
    once = ledger.snapshot()
    other = InterpreterEnvironment(LEDGER)
    other.reset(SUM, 0)
    other.restore(once)
    assert [other.step(kill).terminated for _ in range(MOST_DEATHS)] == [False] * (MOST_DEATHS - 1) + [True]
    other.close()


def test_judging_does_not_touch_the_session() -> None:
    environment = InterpreterEnvironment(WORDS)
    environment.reset(LONGEST, 0)
    environment.step(cell("calls = 0\ndef longest(text):\n    global calls\n    calls += 1\n    return 'one'"))
    before = environment.state_digest()
    assert environment.check().score == 0.5
    assert environment.state_digest() == before
    assert seen(environment, cell("calls")) == "0"
    environment.close()


def test_a_snapshot_of_code_that_depends_on_time_is_refused(ledger: InterpreterEnvironment) -> None:
    ledger.step(cell("import time\ntime.time()"))
    snapshot = ledger.snapshot()
    ledger.step(cell("x = 1"))
    with pytest.raises(EnvError, match="came to another result"):
        ledger.restore(snapshot)


@pytest.mark.parametrize(
    "goal", [{}, {"answer": 1, "calls": [{"function": "f", "arguments": {}, "value": 1}]}, {"calls": [{"function": 1}]}]
)
def test_a_goal_must_say_one_thing(goal: dict[str, Any]) -> None:
    task: Task = msgspec.structs.replace(SUM, goal=goal)
    with pytest.raises(EnvError, match="goal"):
        InterpreterEnvironment(LEDGER).reset(task, 0)


def test_worlds_that_do_not_start_say_why() -> None:
    deep = "(" * 100_000 + ")" * 100_000, "x = " + "-" * 100_000 + "1"
    for source, error in (
        ("def", "invalid syntax"),
        ("1 / 0", "ZeroDivisionError"),
        (deep[0], "does not start"),
        (deep[1], "does not start"),
        ("import os; os._exit(0)", "ended itself with code 0"),
    ):
        with pytest.raises(EnvError, match=error):
            InterpreterEnvironment(msgspec.structs.replace(LEDGER, source=source)).reset(SUM, 0)


def test_where_there_is_no_sandbox_the_run_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "agentmill.synthesis.environments.interpreter.environment.pool",
        lambda limits, purpose="": Pool(Missing(), limits),
    )
    environment = InterpreterEnvironment(LEDGER)
    with user_error("sandbox-unavailable"), environment_at_fault():
        environment.reset(SUM, 0)


def test_what_was_given_back_is_not_given_back_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another environment may have it by then."""
    given: list[Session] = []

    def interrupted(self: Pool, session: Session) -> None:
        given.append(session)
        raise KeyboardInterrupt

    environment = InterpreterEnvironment(LEDGER)
    environment.reset(SUM, 0)
    with monkeypatch.context() as patch:
        patch.setattr(Pool, "give", interrupted)
        with pytest.raises(KeyboardInterrupt):
            environment.close()
        environment.close()
    assert len(given) == 2  # that of the agent and that of the world
    for each in given:
        each.close()


def test_its_episodes_are_lived_in_threads() -> None:
    assert blocks(LEDGER)


@pytest.mark.parametrize(
    ("value", "expected", "equal"),
    [
        (1.0000000001, 1, True),
        (2, 2.0, True),
        (10**400, 1.5, False),
        (1234567000.0, 1234567890, False),
        (1234567890.0, 1234567890, True),
        (float("nan"), 1, False),
        (0, 3.2e-7, False),
        (3.2000001e-7, 3.2e-7, True),
        (1e-9, 0.0, True),
        (0.1 + 0.2, 0.3, True),
        (1, True, False),
        (True, 1, False),
        (" a\n", "a", True),
        ("1", 1, False),
        ([1, {"b": 2.0}], [1, {"b": 2}], True),
        ([1], [1, 2], False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        (None, None, True),
        (0, None, False),
    ],
)
def test_answers_are_compared_as_json(value: object, expected: object, equal: bool) -> None:
    assert same(value, expected) is equal
