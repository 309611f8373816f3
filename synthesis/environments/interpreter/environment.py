"""Interpreter environments: a Python session that keeps its names is the only tool, after CodeAct (Wang et al., 2024).

``spec.source`` is Python that defines the functions which the environment offers, ``spec.parameters["rules"]`` says
what they do. ``task.initial_state["names"]`` are JSON values by the names under which the source finds them. Source and
data are in a sandbox of their own, so that code of the agent can reach them by calling the functions only, with plain
data; how, says ``source_session``. An answer is handed in by a cell that calls ``submit(answer)``, which ends the
episode.

``task.goal`` is ``{"answer": JSON}``, what must be submitted, or ``{"calls": [{"function", "arguments", "value"}]}``,
what functions that the agent's cells define must return. All code runs in the sandbox. The goal never gets there: the
answer is compared here, and functions are called after the cells were run again in another session, which is thrown
away. A cell that raises may have done something before; one that takes too long is undone by replaying the others, and
if these come to other results then, or after too many such cells, the episode is over with score 0.
"""

from __future__ import annotations

import contextlib
import re
import textwrap

import msgspec

from agentmill.schemas.arrow.check import is_utf8
from agentmill.schemas.ids import digest
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction, CodeAction, MessageAction, TextObservation, Tool
from agentmill.synthesis.environments.environment import Check, EnvError, Transition, refusal
from agentmill.synthesis.environments.interpreter.examples import EXAMPLES
from agentmill.synthesis.environments.interpreter.goal import goal_of, share_met
from agentmill.synthesis.environments.interpreter.source_session import NAMING, begin, names_given, offered
from agentmill.synthesis.sandbox import Limits, Pool, ReplayError, Result, SandboxError, Session, pool

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

MOST_DEATHS = 5
"""Of the session in an episode. Each costs a replay of all cells before it."""

SUBMITTING = f"""
{NAMING}
_submitted = []
def submit(answer=None):
    _submitted[:] = [answer]
def _submission():
    found = _submitted[:]
    _submitted.clear()
    return found
"""

_FENCED = re.compile(
    r"(?P<fence>`{3,})(?:[^\n`]+(?P=fence)|(?P<language>[^\s`]*)[^\n`]*\n"
    r"(?:(?P<code>.*?)^[ \t]*(?P=fence)`*[ \t]*$|(?P<rest>.*?)(?P=fence)))",
    re.DOTALL | re.MULTILINE,
)
"""A block in any language, or one within a line: what is between two blocks is none.

It ends at a line of its own, so that code may hold three backticks; where there is none, at the next fence.
"""
_LANGUAGES = ("", "python", "python3", "py")
_HELP = "Write Python code in a ```python block, or call python(code=...). Hand in the answer by submit(answer)."


class State(Record):
    """A snapshot: the session's calls, what was submitted (nothing or one answer), and whether the session was lost."""

    session: msgspec.Raw
    submitted: list[object]
    lost: bool = False
    deaths: int = 0
    """How often a cell has ended the session: after too many the episode is over."""


class InterpreterEnvironment:
    """A Python session in a sandbox as the only tool; code in it calls the functions of the environment.

    Source that does not run is found by ``reset``, in the sandbox: ``EnvError``.
    """

    blocking = True
    lists_admissible = False
    sandboxed = True
    runs_code = True

    def __init__(self, spec: EnvironmentSpec) -> None:
        self.spec = spec
        self.tools = [TOOL]
        self.rules = f"{spec.parameters.get('rules', '')}\n{_HELP}".strip()
        self._pool: Pool = pool(LIMITS)
        self._source_pool: Pool = pool(LIMITS, purpose="world")
        self._judges: Pool = pool(LIMITS, purpose="judge")
        self._judge_source_pool: Pool = pool(LIMITS, purpose="judged world")
        self._session: Session | None = None
        self._source_session: Session | None = None
        """Where the source and its data are; none for an environment without source."""
        self._task: Task | None = None
        self._submitted: list[object] = []
        self._lost = False
        """Whether the session died and could not be brought back: the episode is over."""
        self._deaths = 0

    def reset(self, task: Task, seed: int) -> TextObservation:  # noqa: ARG002 - part of the contract
        """The instruction's data in a fresh session. The seed plays no part: chance is the same in every session."""
        goal_of(task)
        if self._session is None:
            self._session = self._pool.take()
        if self._source_session is None and self.spec.source:
            self._source_session = self._source_pool.take()
        self._task = task
        self._begin(self._session)
        self._submitted, self._lost, self._deaths = [], False, 0
        given = sorted(names_given(self.spec, task))
        text = f" Names with data: {', '.join(given)}." if given else ""
        return TextObservation(content=f"A Python session is ready.{text}", source="environment")

    def step(self, action: AnyAction) -> Transition:
        """Run a cell: a call of ``python``, a ``CodeAction`` in Python, or a message with fenced code."""
        session = self._current_session()
        code = _code_of(action)
        if isinstance(code, Transition):
            return code
        if not is_utf8(code):
            return refusal("That is no text: it holds half characters, which cannot be written as UTF-8.")
        if self._submitted or self._lost:
            return refusal("The episode is over.")
        # Before the cell runs: a cell that ends the interpreter can only be undone by replaying what came before it.
        before = session.snapshot()
        result = session.run(code)
        if not self._alive(session):
            return self._undone(session, before, str(result.error or "A function of the environment ended"))
        # Asked of the session, as a cell may call submit anywhere, and more than once.
        submission = session.call("_submission")
        if not self._alive(session):
            return self._undone(session, before, "The session broke")
        self._submitted = submission.value[:1] if isinstance(submission.value, list) else []
        done = bool(self._submitted)
        return Transition(
            observation=TextObservation(content=_text_of(result, submission, done), source="environment"),
            reward=self.check().score if done else 0.0,
            terminated=done,
        )

    def state_digest(self) -> str:
        """Digest of the cells so far and of what they gave."""
        # Without deaths: a cell that ends the session is refused, and what is refused changes nothing.
        return digest(self._current_session().snapshot().decode(), self._submitted, self._lost)

    def snapshot(self) -> bytes:
        """JSON: the session's calls with digests of their results, and the submission."""
        state = State(
            session=msgspec.Raw(self._current_session().snapshot()),
            submitted=self._submitted,
            lost=self._lost,
            deaths=self._deaths,
        )
        return msgspec.json.encode(state, order="deterministic")

    def restore(self, snapshot: bytes) -> None:
        """Run the cells of a snapshot again. Raises ``EnvError`` if they come to other results."""
        session = self._current_session()
        try:
            state = msgspec.json.decode(snapshot, type=State)
        except msgspec.DecodeError as error:
            raise EnvError(f"this is no snapshot of a session: {error}") from None
        try:
            session.restore(bytes(state.session), other=self._begun_source)
        except SandboxError as error:
            raise EnvError(str(error)) from None
        self._submitted, self._lost, self._deaths = state.submitted, state.lost, state.deaths

    def check(self) -> Check:
        """``score`` is 1 for the right answer, or the share of the goal's calls that return what they must.

        What cells gave may differ in the judge's session; cells that end it, or take longer than ten calls may, come to
        nothing, as a lost session does; ``evidence["replay"]`` is then what happened.
        """
        session, task = self._current_session(), self._task
        assert task is not None
        goal = goal_of(task)
        if not goal.calls:
            return share_met(goal, self._submitted, [])
        if self._lost:
            return share_met(goal, [], [None] * len(goal.calls))
        broken: JsonObject = {}
        try:
            with self._judges.session() as judge, self._judge_source_session() as source_session:
                try:
                    judge.restore(session.snapshot(), exact=False, other=lambda: self._begun(source_session))
                except ReplayError as error:
                    broken = {"replay": str(error)}
                results = [judge.call(call.function, call.arguments) if judge.alive else None for call in goal.calls]
        except SandboxError as error:
            raise EnvError(str(error)) from None
        check = share_met(goal, self._submitted, results)
        return msgspec.structs.replace(check, evidence={**check.evidence, **broken})

    def admissible(self) -> list[ApiAction]:
        """Nothing: there is no end of programs."""
        return []

    def command(self, action: ApiAction) -> str:
        """The code of a call in a block. Raises ``ValueError`` for another call."""
        code = _code_of(action)
        if isinstance(code, Transition):
            raise ValueError(f"{action.function} is no call of python with code")
        fence = "```"
        while fence in code:
            fence += "`"
        return f"{fence}python\n{code}\n{fence}"

    def expert(self) -> ApiAction | None:
        """The next cell of the task's gold solution, as long as it was followed."""
        assert self._task is not None
        gold = [code for code in map(_code_of, self._task.gold or []) if isinstance(code, str)]
        done = [each["request"].get("code") for each in msgspec.json.decode(self._current_session().snapshot())]
        # The first cell is our own, which defines submit.
        cells = [code for code in done if code is not None][1:]
        if self._submitted or self._lost or cells != gold[: len(cells)] or len(cells) >= len(gold):
            return None
        return ApiAction(function=TOOL.name, kwargs={"code": gold[len(cells)]})

    def close(self) -> None:
        """Give the sessions back."""
        session, self._session = self._session, None
        source_session, self._source_session = self._source_session, None
        try:
            if session is not None:
                self._pool.give(session)
        finally:
            if source_session is not None:
                self._source_pool.give(source_session)

    @staticmethod
    def examples() -> list[tuple[EnvironmentSpec, Task]]:
        """One environment with a task that asks for an answer, and one that asks for a function."""
        return EXAMPLES

    def _current_session(self) -> Session:
        if self._session is None:
            raise EnvError("the environment was not reset")
        return self._session

    def _alive(self, session: Session) -> bool:
        return session.alive and (self._source_session is None or self._source_session.alive)

    def _begin(self, session: Session) -> None:
        """What the environment and the task give to the agent, in a fresh interpreter."""
        assert self._task is not None
        session.restart()
        source_session = self._begun_source()
        if source_session is not None:
            self._started(session.offer(source_session, offered(source_session, self.spec)))
        self._started(session.run(SUBMITTING))
        self._started(session.call("_names", names_given(self.spec, self._task)))

    def _begun_source(self) -> Session | None:
        return self._begun(self._source_session)

    def _begun(self, source_session: Session | None) -> Session | None:
        """``source_session`` with the source and its data, in a fresh interpreter."""
        assert self._task is not None
        if source_session is not None:
            source_session.restart()
            self._started(begin(source_session, self.spec.source, self._task.initial_state.get("names", {})))
        return source_session

    def _started(self, result: Result) -> None:
        if not result.ok:
            raise EnvError(f"environment {self.spec.environment_id} does not start: {result.error}")

    def _judge_source_session(self) -> contextlib.AbstractContextManager[Session | None]:
        return contextlib.nullcontext() if self._source_session is None else self._judge_source_pool.session()

    def _undone(self, session: Session, before: bytes, why: str) -> Transition:
        """After a death: the session as it was before, by replay. Code that cannot be replayed has lost the episode."""
        self._deaths += 1
        try:
            # Each replay takes as long as all cells before it, so code could hold an episode up for hours.
            if self._deaths > MOST_DEATHS:
                raise ReplayError
            session.restore(before, other=self._begun_source)
        except ReplayError:
            self._begin(session)
            self._lost = True
            text = f"{why}. The session could not be brought back, and the episode is over."
            return Transition(observation=TextObservation(content=text, source="environment"), terminated=True)
        except SandboxError as error:
            raise EnvError(str(error)) from None
        return refusal(f"{why}. The session is as it was before this code.")


def _code_of(action: AnyAction) -> str | Transition:
    """The code that an action runs, or the refusal of one that runs none."""
    if isinstance(action, ApiAction):
        code = action.kwargs.get("code")
        if action.function != TOOL.name or not isinstance(code, str) or set(action.kwargs) != {"code"}:
            return refusal(f"There is one function, python(code), and no call {action.function} like this. {_HELP}")
        return code
    if isinstance(action, CodeAction):
        known = action.language.lower() in _LANGUAGES[1:]
        return action.content if known else refusal(f"Code in {action.language} is not run here. {_HELP}")
    found = _FENCED.finditer(action.content.replace("\r\n", "\n")) if isinstance(action, MessageAction) else ()
    blocks = [
        textwrap.dedent(code) if code[:1].isspace() else code  # a block of a list is indented
        for each in found
        if (each["language"] or "").lower() in _LANGUAGES
        and (code := each["rest"] if each["code"] is None else each["code"]) is not None
    ]
    return "\n".join(block.removesuffix("\n") for block in blocks) if blocks else refusal(_HELP)


def _text_of(result: Result, submission: Result, done: bool) -> str:
    parts = [result.output, result.shown, result.error or ""]
    if not submission.ok:
        parts.append("What was submitted is no plain data (numbers, texts, lists, dicts), and does not count.")
    elif done:
        parts.append("The answer was handed in.")
    return "\n".join(part.rstrip("\n") for part in parts if part) or "(nothing was shown)"
