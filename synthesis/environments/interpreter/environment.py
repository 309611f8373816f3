"""Interpreter worlds: a Python session that keeps its names is the only tool, after CodeAct (Wang et al., 2024).

``spec.source`` is Python that is run first (functions that the world offers), ``spec.parameters["rules"]`` says what
it offers. ``task.initial_state["names"]`` are JSON values by the names under which code finds them. An answer is
handed in by a cell that calls ``submit(answer)``, which ends the episode.

``task.goal`` is ``{"answer": JSON}``, what must be submitted, or ``{"calls": [{"function", "arguments", "value"}]}``,
what functions that the agent's cells define must return. All code runs in the sandbox. The goal never gets there: the
answer is compared here, and functions are called after the cells were run again in another session, which is thrown
away. A cell that raises may have done something before; one that takes too long is undone by replaying the others.
"""

from __future__ import annotations

import re

import msgspec

from schemas.ids import digest
from schemas.record import Record
from schemas.task import EnvironmentSpec, Task
from schemas.trajectory import AnyAction, ApiAction, CodeAction, MessageAction, TextObservation, Tool
from synthesis.environments.environment import Check, Transition, WorldError
from synthesis.environments.interpreter.examples import EXAMPLES
from synthesis.environments.interpreter.goal import goal_of, share_met
from synthesis.sandbox import Limits, Pool, Result, SandboxError, Session, pool

TOOL = Tool(
    name="python",
    description="Run Python code in a session that keeps its names. Shows what is printed and the last expression.",
    parameters={
        "type": "object",
        "properties": {"code": {"type": "string", "description": "Python 3, standard library only"}},
        "required": ["code"],
        "additionalProperties": False,
    },
)

LIMITS = Limits(timeout_s=10.0, output_bytes=8_192, memory_bytes=256 * 2**20)

SUBMITTING = """
_submitted = []
def submit(answer=None):
    _submitted[:] = [answer]
def _names(**names):
    globals().update(names)
def _submission():
    return _submitted
"""
_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
_HELP = "Write Python code in a ```python block, or call python(code=...). Hand in the answer by submit(answer)."


class State(Record):
    """A snapshot: the session's calls, and what was submitted (nothing or one answer)."""

    session: msgspec.Raw
    submitted: list[object]


class InterpreterEnvironment:
    """Family ``interpreter``. Raises ``WorldError`` for source that is no Python."""

    blocking = True

    def __init__(self, spec: EnvironmentSpec) -> None:
        self.spec = spec
        try:
            compile(spec.source, "<world>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise WorldError(f"environment {spec.environment_id}: {error}") from None
        self.tools = [TOOL]
        self.rules = f"{spec.parameters.get('rules', '')}\n{_HELP}".strip()
        self._pool: Pool = pool(LIMITS)
        self._session: Session | None = None
        self._task: Task | None = None
        self._submitted: list[object] = []

    def reset(self, task: Task, seed: int) -> TextObservation:  # noqa: ARG002 - part of the contract
        """The instruction's data in a fresh session. The seed plays no part: chance is the same in every session."""
        goal_of(task)
        if self._session is None:
            self._session = self._pool.take()
        self._task = task
        self._begin(self._session)
        self._submitted = []
        given = sorted(name for name in task.initial_state.get("names", {}) if not name.startswith("_"))
        told = f" Names with data: {', '.join(given)}." if given else ""
        return TextObservation(content=f"A Python session is ready.{told}", source="environment")

    def step(self, action: AnyAction) -> Transition:
        """Run a cell: a call of ``python``, a ``CodeAction`` in Python, or a message with fenced code."""
        session = self._live()
        code = _code_of(action)
        if isinstance(code, Transition):
            return code
        if self._submitted:
            return _refused("The answer was handed in already, and the episode is over.")
        before = session.snapshot()
        result = session.run(code)
        if not session.alive:
            self._replay(session, before)
            return _refused(f"{result.error}. The session is as it was before this code.")
        submission = session.call("_submission")
        if not session.alive:
            self._replay(session, before)
            return _refused("The session broke. It is as it was before this code.")
        self._submitted = submission.value[:1] if isinstance(submission.value, list) else []
        done = bool(self._submitted)
        return Transition(
            observation=TextObservation(content=_told(result, submission, done), source="environment"),
            reward=self.check().score if done else 0.0,
            terminated=done,
        )

    def state_digest(self) -> str:
        """Digest of the cells so far and of what they gave."""
        return digest(self._live().snapshot().decode(), self._submitted)

    def snapshot(self) -> bytes:
        """JSON: the session's calls with digests of their results, and the submission."""
        return msgspec.json.encode(
            State(session=msgspec.Raw(self._live().snapshot()), submitted=self._submitted), order="deterministic"
        )

    def restore(self, snapshot: bytes) -> None:
        """Run the cells of a snapshot again. Raises ``WorldError`` if they come to other results."""
        session = self._live()
        try:
            state = msgspec.json.decode(snapshot, type=State)
        except msgspec.DecodeError as error:
            raise WorldError(f"this is no snapshot of a session: {error}") from None
        self._replay(session, bytes(state.session))
        self._submitted = state.submitted

    def check(self) -> Check:
        """``score`` is 1 for the right answer, or the share of the goal's calls that return what they must."""
        session, task = self._live(), self._task
        assert task is not None
        goal = goal_of(task)
        if not goal.calls:
            return share_met(goal, self._submitted, [])
        with self._pool.session() as judge:
            self._replay(judge, session.snapshot())
            results = [judge.call(call.function, call.arguments) if judge.alive else None for call in goal.calls]
        return share_met(goal, self._submitted, results)

    def admissible(self) -> list[ApiAction]:
        """Nothing: there is no end of programs."""
        return []

    def command(self, action: ApiAction) -> str:
        """The code of a call in a block. Raises ``ValueError`` for another call."""
        code = _code_of(action)
        if isinstance(code, Transition):
            raise ValueError(f"{action.function} is no call of python with code")
        return f"```python\n{code}\n```"

    def expert(self) -> ApiAction | None:
        """The next cell of the task's gold solution, as long as it was followed."""
        assert self._task is not None
        gold = [code for code in map(_code_of, self._task.gold or []) if isinstance(code, str)]
        done = [each["request"].get("code") for each in msgspec.json.decode(self._live().snapshot())]
        cells = [code for code in done if code is not None][2:]
        if self._submitted or cells != gold[: len(cells)] or len(cells) >= len(gold):
            return None
        return ApiAction(function=TOOL.name, kwargs={"code": gold[len(cells)]})

    def close(self) -> None:
        """Give the session back."""
        if self._session is not None:
            self._pool.give(self._session)
            self._session = None

    @staticmethod
    def examples() -> list[tuple[EnvironmentSpec, Task]]:
        """One world with a task that asks for an answer, and one that asks for a function."""
        return EXAMPLES

    def _live(self) -> Session:
        if self._session is None:
            raise WorldError("the environment was not reset")
        return self._session

    def _begin(self, session: Session) -> None:
        """The world and the task's data, in a fresh interpreter."""
        assert self._task is not None
        session.restart()
        names = self._task.initial_state.get("names", {})
        for result in (session.run(SUBMITTING), session.run(self.spec.source), session.call("_names", names)):
            if not result.ok:
                raise WorldError(f"environment {self.spec.environment_id} does not start: {result.error}")

    def _replay(self, session: Session, snapshot: bytes) -> None:
        try:
            session.restore(snapshot)
        except SandboxError as error:
            raise WorldError(str(error)) from None


def _code_of(action: AnyAction) -> str | Transition:
    """The code that an action runs, or the refusal of one that runs none."""
    if isinstance(action, ApiAction):
        code = action.kwargs.get("code")
        if action.function != TOOL.name or not isinstance(code, str) or set(action.kwargs) != {"code"}:
            return _refused(f"There is one function, python(code), and no call {action.function} like this. {_HELP}")
        return code
    if isinstance(action, CodeAction):
        known = action.language.lower() in ("python", "python3", "py")
        return action.content if known else _refused(f"Code in {action.language} is not run here. {_HELP}")
    blocks = _FENCED.findall(action.content) if isinstance(action, MessageAction) else []
    return "\n".join(block.removesuffix("\n") for block in blocks) if blocks else _refused(_HELP)


def _told(result: Result, submission: Result, done: bool) -> str:
    parts = [result.output, result.shown, result.error or ""]
    if not submission.ok:
        parts.append("What was submitted is no plain data (numbers, texts, lists, dicts), and does not count.")
    elif done:
        parts.append("The answer was handed in.")
    return "\n".join(part.rstrip("\n") for part in parts if part) or "(nothing was shown)"


def _refused(why: str) -> Transition:
    return Transition(observation=TextObservation(content=why, source="environment"), error=True)
