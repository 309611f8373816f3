"""``unit_tests``: the tests of a task, run in the sandbox on the code that the agent wrote.

Each test has a session of its own, so that none sees what another did. A test counts as passed only if its session
gives back a word that was made after the agent's code had run. So code that ends its interpreter, or prints that all is
well, passes nothing; code that is written to change how Python runs other code can still deceive, since it runs in the
same process as the test.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from pydantic import Field

from agentmill.schemas.conditions import reaches
from agentmill.schemas.dialects.code_blocks import Fenced
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import Action, AnyItem, CodeAction, MessageAction, Trajectory
from agentmill.schemas.records.verdict import Verdict
from agentmill.synthesis.environments.environment import Environment
from agentmill.synthesis.sandbox import Limits, Pool, Result, pool
from agentmill.synthesis.verifiers import unit_test_runner
from agentmill.synthesis.verifiers.action_pattern import ActionPattern
from agentmill.synthesis.verifiers.rules import answer_at
from agentmill.synthesis.verifiers.verifier import Need, Verifier, listed_at

PYTHON = ("python", "py", "python3")

RUNNER = f"""
import builtins as _builtins
_runner = {{"__name__": "unit_test_runner"}}
_builtins.exec({Path(unit_test_runner.__file__).read_text()!r}, _runner)
_begin_tests, _run_tests = _runner["begin"], _runner["run"]
"""
"""A cell that offers ``begin`` and ``run`` of ``unit_test_runner``."""


class _NotRun(Exception):
    """A test that cannot be run, whatever the code; its text is the reason."""


class UnitTests(Verifier):
    """Whether the Python code that trajectories end with passes the tests of their tasks, each in a sandbox.

    A test is code that raises where something is wrong. What it defines as pytest and ``unittest`` have it is run, too:
    functions ``test…`` without parameters, classes ``Test…`` and those of ``unittest.TestCase``.
    """

    needs: ClassVar[Sequence[Need]] = ("tasks",)

    name: str = "unit_tests"
    tests: str = Field("goal.tests", description="where a task has its tests: Python code, or a list of such")
    code: ActionPattern | None = Field(
        default=None, description="the action with the code, as {tool: submit}; by default the last code of the agent"
    )
    every: bool = Field(False, description="all code of the agent, in order, not only the last")
    timeout_s: float = Field(10.0, gt=0, le=600, description="seconds for the code, and for each test")
    pass_at: float = Field(1.0, gt=0, le=1, description="the share of tests that passes")

    def runs_code(self) -> bool:
        """It does."""
        return True

    async def verify(
        self, task: Task | None, trajectory: Trajectory, environment: Environment | None = None
    ) -> Verdict:
        """The score is the share of tests passed; ``evidence`` has what the others ended with.

        Without code (``no_code``) it fails. Unscored where the task has no tests, or one that tests nothing
        (``no_tests``), and where one needs what only pytest gives (``tests_need_pytest``). Raises ``SandboxError``.
        """
        del environment
        verdict = self.verdict(trajectory, "sandbox")
        tests = [each for each in listed_at(task, self.tests) if isinstance(each, str) and each.strip()]
        if not tests:
            return msgspec.structs.replace(verdict, reason="no_tests")
        code = self._cells(trajectory.content)
        if not code:
            return msgspec.structs.replace(verdict, status="scored", score=0.0, passed=False, reason="no_code")
        # The code, the test and the functions that it defines take their time one after the other.
        sandboxes = pool(Limits(timeout_s=self.timeout_s, cpu_s=max(60, math.ceil(3 * self.timeout_s))))
        try:
            faults = [self._fault(sandboxes, code, test) for test in tests]
        except _NotRun as error:
            return msgspec.structs.replace(verdict, reason=str(error))
        failed = [{"test": number, "fault": fault} for number, fault in enumerate(faults) if fault is not None]
        score = 1 - len(failed) / len(tests)
        evidence: JsonObject = {"tests": len(tests), "failed": failed}
        passed = reaches(score, self.pass_at)
        return msgspec.structs.replace(verdict, status="scored", score=score, passed=passed, evidence=evidence)

    def _fault(self, sandboxes: Pool, code: Sequence[str], test: str) -> str | None:
        """How a test fails; ``None`` if it passes. Raises ``_NotRun``."""
        with sandboxes.session() as session:
            for cell in code:
                done = session.run(cell)
                if not session.alive:
                    return f"the code: {done.reason}"
            session.run(RUNNER)
            begun = session.call("_begin_tests", {"text": test})
            if begun.value:
                raise _NotRun(str(begun.value))
            done = session.run(test)
            if not done.ok:
                return _ending(done)
            # Only now: code that has run before cannot give back what it never saw.
            word = secrets.token_hex(16)
            done = session.call("_run_tests", {"text": test, "word": word})
            if not done.ok or not isinstance(done.value, list) or done.value[:1] != [word]:
                return _ending(done)
            if any(done.value[1:]):
                raise _NotRun(str(done.value[1]))
            return None

    def _cells(self, content: Sequence[AnyItem]) -> list[str]:
        if self.code is not None:
            found = [answer_at(content, place) for place in self.code.places(content)]
        else:
            found = [code for item in content if isinstance(item, Action) for code in _python(item)]
        return found if self.every else found[-1:]


def _ending(result: Result) -> str:
    """The last line of what a call in a session ended with."""
    return (result.error or str(result.reason or "it gave back another word")).strip().splitlines()[-1][:500]


def _python(item: Any) -> list[str]:
    """The Python code of an action: a code action, or the fenced blocks of a message."""
    if isinstance(item, CodeAction):
        return [item.content] if item.language in PYTHON else []
    if not isinstance(item, MessageAction) or item.role not in (None, "actor"):
        return []
    parsed = Fenced(languages=list(PYTHON)).read(item.content)
    return [each.content for each in parsed.actions if isinstance(each, CodeAction)] if parsed is not None else []
