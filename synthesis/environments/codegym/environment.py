"""Coding problems to be solved by calls: the input is hidden, and tools look at it or change it step by step.

After CodeGym (arXiv:2509.17325). ``spec.source`` is the problem (``agentmill.synthesis.environments.codegym.problem``).
``task.initial_state`` holds the hidden ``instance``, what of it is ``given``, and the ``budget`` of metered tools;
``task.goal`` is ``{"answer": JSON}``. ``submit`` ends the episode: what it hands in, or the outcome of what was done,
is compared on the host. Of the problem's code only the tools get into the session that an agent's calls reach; neither
the reference solution nor the answer is ever there. States are values that the host keeps; a snapshot is one of them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from agentmill.schemas.ids import digest
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction, TextObservation, Tool
from agentmill.synthesis.environments.codegym.examples import EXAMPLES
from agentmill.synthesis.environments.codegym.problem import SUBMIT, Problem, ProblemError, read_problem
from agentmill.synthesis.environments.codegym.workshop import Counter, Failure, candidates
from agentmill.synthesis.environments.environment import Check, EnvError, Transition, misfit
from agentmill.synthesis.environments.interpreter.goal import same
from agentmill.synthesis.environments.toolbox.calls import Unfit, Unreadable, read_call, same_call, write_command
from agentmill.synthesis.sandbox import SandboxError

MOST_LETTERS = 4_000
"""Of an observation."""


class Start(Record):
    """``task.initial_state``."""

    instance: JsonObject
    given: JsonObject = {}
    budget: dict[str, int] = {}


class State(Record):
    """A snapshot. ``spent`` counts calls of metered tools, ``submitted`` is what was handed in: nothing or one value.

    ``judged`` is what ``check`` says since then. ``progress`` is how many actions of the gold solution were taken,
    ``strayed`` whether anything else was changed.
    """

    state: JsonObject
    spent: dict[str, int] = {}
    submitted: list[Any] = []
    over: bool = False
    judged: Check | None = None
    progress: int = 0
    strayed: bool = False


class CodegymEnvironment:
    """Coding problems to be solved by calls: the input is hidden, and tools look at it or change it.

    Raises ``EnvError`` for a problem that cannot be used; code that fails is found later.
    """

    blocking = True
    lists_admissible = False
    sandboxed = True

    def __init__(self, spec: EnvironmentSpec) -> None:
        self.spec = spec
        try:
            self.problem = _read(spec.source)
        except ProblemError as error:
            raise EnvError(f"environment {spec.environment_id}: {error}") from None
        self.tools = self.problem.schemas()
        self.rules = _rules(self.problem, self.tools)
        self._named = {tool.name: tool for tool in self.tools}
        self._counter = Counter(self.problem)
        self._task: Task | None = None
        self._start = Start(instance={})
        self._state = State(state={})

    def reset(self, task: Task, seed: int) -> TextObservation:  # noqa: ARG002 - part of the contract
        """The task's input in a fresh interpreter. The seed plays no part."""
        try:
            self._start = msgspec.convert(task.initial_state, Start)
            if "answer" not in task.goal:
                raise EnvError(f"task {task.task_id}: the goal must hold 'answer'")
            self._counter.open()
        except (msgspec.ValidationError, Failure, SandboxError) as error:
            raise EnvError(f"task {task.task_id}: {error}") from None
        self._task = task
        self._state = State(state=self._start.instance)
        budget = [f"{tool} at most {most} times" for tool, most in self._start.budget.items()]
        reply = f" You can call {', '.join(budget)}." if budget else ""
        return TextObservation(content=f"The task has begun. Call a tool.{reply}", source="environment")

    def step(self, action: AnyAction) -> Transition:
        """One call, as such or as text."""
        task = self._current_task()
        try:
            if self._state.over:
                raise Unfit("The episode is over, and nothing more can be done.")
            call = self._fitting(read_call(action))
            reply = self._submit(call) if call.function == SUBMIT else self._act(call)
        except (Unfit, Unreadable) as error:
            return Transition(observation=TextObservation(content=str(error), source="environment"), error=True)
        gold = task.gold or []
        if self._state.progress < len(gold) and same_call(gold[self._state.progress], call):
            self._state = msgspec.structs.replace(self._state, progress=self._state.progress + 1)
        over = self._state.over
        observation = TextObservation(content=reply, source="environment")
        return Transition(observation=observation, reward=self.check().score if over else 0.0, terminated=over)

    def state_digest(self) -> str:
        """Digest of the hidden state, of the calls spent and of what was handed in."""
        self._current_task()
        return digest(self._state.state, self._state.spent, self._state.submitted, self._state.over)

    def snapshot(self) -> bytes:
        """The state as JSON."""
        self._current_task()
        return msgspec.json.encode(self._state, order="deterministic")

    def restore(self, snapshot: bytes) -> None:
        """Raises ``EnvError`` for what is no snapshot."""
        try:
            self._state = msgspec.json.decode(snapshot, type=State)
        except msgspec.DecodeError as error:
            raise EnvError(f"this is no snapshot of a coding problem: {error}") from None

    def check(self) -> Check:
        """``score`` is 1 once the right answer was handed in, or once all was done right and that was said; else 0."""
        self._current_task()
        return self._state.judged or Check(passed=False, score=0.0, evidence={"submitted": []})

    def admissible(self) -> list[ApiAction]:
        """Legal calls: of each tool a few, with small numbers and with names that are known; and handing in."""
        if self._state.over:
            return []
        names = [
            each for value in self._start.given.values() for each in (value if isinstance(value, list) else [value])
        ]
        calls = [call for tool in self.tools for call in candidates(tool, names) if self._left(call.function)]
        tried = [call for call in calls if call.function != SUBMIT]
        try:
            refused = self._counter.refused(self._state.state, [(call.function, call.kwargs) for call in tried])
        except SandboxError as error:
            raise EnvError(str(error)) from None
        legal = [call for call, no in zip(tried, refused, strict=True) if not no]
        return legal + [call for call in calls if call.function == SUBMIT]

    def command(self, action: ApiAction) -> str:
        """The call as text. Raises ``ValueError`` for a tool that does not exist."""
        if action.function not in self._named:
            raise ValueError(f"there is no tool {action.function!r}")
        return write_command(action.function, action.kwargs)

    def expert(self) -> ApiAction | None:
        """The next call of the gold solution, where it was followed or nothing else was changed."""
        gold = [each for each in self._current_task().gold or [] if isinstance(each, ApiAction)][self._state.progress :]
        left = {name: most - self._state.spent.get(name, 0) for name, most in self._start.budget.items()}
        short = any(sum(each.function == name for each in gold) > most for name, most in left.items())
        return None if self._state.over or self._state.strayed or short or not gold else gold[0]

    def close(self) -> None:
        """Give the session back."""
        self._counter.close()

    @staticmethod
    def examples() -> list[tuple[EnvironmentSpec, Task]]:
        """A problem with an answer, and one where what was done counts."""
        return EXAMPLES

    def _current_task(self) -> Task:
        if self._task is None:
            raise EnvError("the environment was not reset")
        return self._task

    def _fitting(self, call: ApiAction) -> ApiAction:
        """The call with whole numbers where these are wanted. Raises ``Unfit`` for one that no tool takes."""
        tool = self._named.get(call.function)
        if tool is None:
            raise Unfit(f"There is no tool {call.function!r}; there are {', '.join(self._named)}.")
        try:
            # The digest also refuses NaN and infinities, which msgspec would write as null.
            digest(call.kwargs)
            msgspec.json.encode(call.kwargs)
        except (ValueError, RecursionError, OverflowError):
            raise Unfit("These arguments cannot be written as JSON.") from None
        wrong = misfit(call, tool)
        if wrong is not None:
            raise Unfit(f"{call.function} does not take these arguments: {wrong[:200]}")
        wanted: dict[str, JsonObject] = tool.parameters["properties"]
        whole = {
            # JSON Schema takes 3.0 for an integer, but an index of Python must be an int.
            name: int(value) if isinstance(value, float) and wanted[name].get("type") == "integer" else value
            for name, value in call.kwargs.items()
        }
        return msgspec.structs.replace(call, kwargs=whole)

    def _act(self, call: ApiAction) -> str:
        """What a tool answers. Raises ``Unfit`` where it refuses; nothing has changed then."""
        before = self._state
        if not self._left(call.function):
            raise Unfit(
                f"{call.function} was called as often as is allowed, {self._start.budget[call.function]} times."
            )
        try:
            acted = self._counter.act(before.state, call.function, call.kwargs)
        except Failure as error:
            raise Unfit(f"{call.function} cannot do this: {error}") from None
        except SandboxError as error:
            raise EnvError(str(error)) from None
        if acted.refused is not None or acted.state is None:
            raise Unfit(acted.refused or f"{call.function} cannot do this.")
        spent = dict(before.spent)
        if call.function in self._start.budget:
            spent[call.function] = spent.get(call.function, 0) + 1
        gold = self._current_task().gold or []
        expected = before.progress < len(gold) and same_call(gold[before.progress], call)
        # Looking does no harm: only another state makes the rest of the gold solution wrong.
        strayed = before.strayed or (not expected and acted.state != before.state)
        self._state = msgspec.structs.replace(before, state=acted.state, spent=spent, strayed=strayed)
        return _as_text(acted.result)

    def _submit(self, call: ApiAction) -> str:
        submitted = [call.kwargs["answer"]] if self.problem.answer is not None else []
        judged = self._judged(submitted)
        self._state = msgspec.structs.replace(self._state, submitted=submitted, over=True, judged=judged)
        return "It was handed in, and the episode is over."

    def _left(self, tool: str) -> bool:
        """Whether a tool may be called once more."""
        return tool not in self._start.budget or self._state.spent.get(tool, 0) < self._start.budget[tool]

    def _judged(self, submitted: list[Any]) -> Check:
        """What was handed in, or what was done, besides the answer. A state without an outcome is not the right one."""
        if self.problem.answer is None:
            try:
                submitted = [self._counter.outcome(self._state.state)]
            except Failure as error:
                return Check(passed=False, score=0.0, evidence={"outcome": str(error)})
            except SandboxError as error:
                raise EnvError(str(error)) from None
        right = same(submitted[0], self._current_task().goal["answer"])
        return Check(passed=right, score=float(right), evidence={"submitted": submitted})


@lru_cache(maxsize=256)
def _read(source: str) -> Problem:
    return read_problem(source)


def _rules(problem: Problem, tools: list[Tool]) -> str:
    """The document that an agent gets: how the environment works, and how every call is written."""
    calls = [f"{tool.name}({', '.join(tool.parameters['properties'])}): {tool.description}" for tool in tools]
    how = 'Calls are written as tool_name(argument=3, other="text"), with every argument. The tools:'
    return "\n".join([problem.about, how, *calls])


def _as_text(result: Any) -> str:
    """A result as text: texts as they are, all else as JSON."""
    text = result if isinstance(result, str) else msgspec.json.encode(result).decode()
    return (text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]} [cut]") or "(nothing)"
