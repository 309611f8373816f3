"""``unit_tests``: the tests of a task, run in the sandbox on the code that the agent wrote.

Each test has a session of its own, so that none sees what another did. What runs in a session can say what it likes of
itself, so a test counts as passed only if it gives back a word that the agent's code has not seen.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
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
from agentmill.synthesis.sandbox import Limits, Pool, pool
from agentmill.synthesis.verifiers.action_pattern import ActionPattern
from agentmill.synthesis.verifiers.rules import answer_at
from agentmill.synthesis.verifiers.verifier import Need, Verifier, listed_at

PYTHON = ("python", "py", "python3")


class UnitTests(Verifier):
    """Whether the Python code that trajectories end with passes the tests of their tasks, each in a sandbox."""

    needs: ClassVar[Sequence[Need]] = ("tasks",)

    name: str = "unit_tests"
    tests: str = Field("goal.tests", description="where a task has its tests: Python code, or a list of such")
    code: ActionPattern | None = Field(
        default=None, description="the action with the code, as {tool: submit}; by default the last code of the agent"
    )
    every: bool = Field(False, description="all code of the agent, in order, not only the last")
    timeout_s: float = Field(10.0, gt=0, le=600, description="seconds per test")
    pass_at: float = Field(1.0, gt=0, le=1, description="the share of tests that passes")

    def runs_code(self) -> bool:
        """It does."""
        return True

    async def verify(
        self, task: Task | None, trajectory: Trajectory, environment: Environment | None = None
    ) -> Verdict:
        """The score is the share of tests passed; ``evidence`` has what the others ended with.

        Unscored (``no_tests``) where the task has none; without code (``no_code``) it fails. Raises ``SandboxError``.
        """
        del environment
        verdict = self.verdict(trajectory, "sandbox")
        tests = [each for each in listed_at(task, self.tests) if isinstance(each, str) and each.strip()]
        if not tests:
            return msgspec.structs.replace(verdict, reason="no_tests")
        code = self._cells(trajectory.content)
        if not code:
            return msgspec.structs.replace(verdict, status="scored", score=0.0, passed=False, reason="no_code")
        sandboxes = pool(Limits(timeout_s=self.timeout_s))
        faults = [self._fault(sandboxes, code, test) for test in tests]
        failed = [{"test": number, "fault": fault} for number, fault in enumerate(faults) if fault is not None]
        score = 1 - len(failed) / len(tests)
        evidence: JsonObject = {"tests": len(tests), "failed": failed}
        passed = reaches(score, self.pass_at)
        return msgspec.structs.replace(verdict, status="scored", score=score, passed=passed, evidence=evidence)

    def _fault(self, sandboxes: Pool, code: Sequence[str], test: str) -> str | None:
        """How a test fails; ``None`` if it passes."""
        with sandboxes.session() as session:
            for cell in code:
                done = session.run(cell)
                if not session.alive:
                    return f"the code: {done.reason}"
            # Only now: code that has run before cannot give back what it never saw.
            word = secrets.token_hex(16)
            done = session.run(f"{test}\n{word!r}")
            if done.ok and done.value == word:
                return None
            return (done.error or str(done.reason or "it gave back another word")).strip().splitlines()[-1][:500]

    def _cells(self, content: Sequence[AnyItem]) -> list[str]:
        if self.code is not None:
            found = [answer_at(content, place) for place in self.code.places(content)]
        else:
            found = [code for item in content if isinstance(item, Action) for code in _python(item)]
        return found if self.every else found[-1:]


def _python(item: Any) -> list[str]:
    """The Python code of an action: a code action, or the fenced blocks of a message."""
    if isinstance(item, CodeAction):
        return [item.content] if item.language in PYTHON else []
    if not isinstance(item, MessageAction) or item.role not in (None, "actor"):
        return []
    parsed = Fenced(languages=list(PYTHON)).read(item.content)
    return [each.content for each in parsed.actions if isinstance(each, CodeAction)] if parsed is not None else []
