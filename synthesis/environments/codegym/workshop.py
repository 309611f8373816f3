"""The parts of a problem's code, run in the sandbox: inputs drawn, solved, worked on by calls, and played.

States and results go in and out as JSON, by value, so that nothing is kept in an interpreter from call to call. What a
part does wrong is a ``Failure`` with a reason; only the sandbox itself raises anything else.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec

from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.trajectory import ApiAction, Tool
from agentmill.synthesis.environments.codegym.drivers import ACTING, COPY, DRAWING, PLAYING, RETRACING, SETTING, SOLVING
from agentmill.synthesis.environments.codegym.problem import OUTCOME, Problem
from agentmill.synthesis.environments.environment import misfit_value
from agentmill.synthesis.sandbox import Limits, Pool, Result, SandboxError, Session, pool

LIMITS = Limits(timeout_s=30.0, cpu_s=2, output_bytes=4_096, memory_bytes=192 * 2**20, value_bytes=512 * 2**10)
"""What never ends is recognised by its processor time, which does not depend on what else the machine does."""

MOST_CALLS = 200
"""Calls of an oracle in one run."""


class Failure(Exception):
    """Code of a problem that does not do what it must. ``reason`` is a short code."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Acted(Record):
    """What a call came to: a new state with a result, or a refusal."""

    state: JsonObject | None = None
    result: Any = None
    refused: str | None = None


class Draw(Record):
    """An input, and what of it is shown."""

    instance: JsonObject
    given: JsonObject


class Run(Record):
    """What an oracle did: calls as (tool, arguments, result), its answer, and the outcome where there is one."""

    calls: list[tuple[str, JsonObject, Any]] = []
    answer: Any = None
    outcome: Any = None
    endless: str | None = None


class Retraced(Record):
    """What an oracle did that was given the results of an earlier run: its answer and how many calls it left out."""

    answer: Any = None
    left: int = 0
    strayed: str | None = None


class Followed(Record):
    """What an agent came to that made the calls of an oracle: which answers differed, and the last states."""

    wrong: list[str]
    states: list[JsonObject]


class Workshop:
    """The code of ``problem``. Every part gets a fresh interpreter, so that none can leave anything to another."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._pool: Pool = pool(LIMITS, purpose="workshop")  # a counter may be open meanwhile

    def draw(self, draws: Sequence[tuple[int, int]]) -> list[Draw]:
        """Inputs for pairs of seed and size. Raises ``Failure`` (``bad_instances``)."""
        code = [COPY, self._problem.instances, DRAWING]
        return _read(self._ask("bad_instances", code, "_drawn", {"draws": list(draws)}), "bad_instances", Draw)

    def solve(self, instances: Sequence[JsonObject]) -> list[Any]:
        """The answers. Raises ``Failure`` (``bad_solution``)."""
        answers = self._ask("bad_solution", [self._problem.solution, SOLVING], "_solved", {"instances": instances})
        if not isinstance(answers, list) or len(answers) != len(instances):
            raise Failure("bad_solution", "solve does not return JSON")
        return answers

    def play(self, draws: Sequence[Draw], rounds: int = 1) -> list[list[Run]]:
        """What the oracle does, ``rounds`` times in one interpreter. Raises ``Failure``."""
        arguments = _played_with(draws)
        with self._pool.session() as session:
            _start(session, "bad_oracle", self._playing())
            played = [
                _read(_call(session, "bad_oracle", "_played", arguments), "bad_oracle", Run) for _ in range(rounds)
            ]
        endless = [run.endless for runs in played for run in runs if run.endless is not None]
        if endless:
            raise Failure("endless", endless[0])
        return played

    def exchange(self, draws: Sequence[Draw]) -> list[Any]:
        """What the oracle says, as a list of one, where it is given what belongs to one input and the tools look at the
        next; an empty list where it fails. Raises ``Failure``."""
        found = self._ask("bad_oracle", self._playing(), "_exchanged", _played_with(draws))
        return found if isinstance(found, list) and len(found) == len(draws) else [[] for _ in draws]

    def retrace(self, draws: Sequence[Draw], runs: Sequence[Run]) -> list[Retraced]:
        """What the oracle does where there is no input and there are no tools, but results of earlier runs."""
        arguments = {"givens": [each.given for each in draws], "runs": [run.calls for run in runs]}
        code = [SETTING, COPY, self._problem.oracle, RETRACING]
        return _read(self._ask("peeking_oracle", code, "_retraced", arguments), "peeking_oracle", Retraced)

    def _playing(self) -> list[str]:
        names = f"_TOOLS = {[tool.name for tool in self._problem.tools]!r}\n"
        return [SETTING, COPY, names, self._problem.code, self._problem.oracle, PLAYING]

    def _ask(self, reason: str, code: Sequence[str], function: str, arguments: JsonObject) -> Any:
        with self._pool.session() as session:
            _start(session, reason, code)
            return _call(session, reason, function, arguments)


class Counter:
    """Where an agent's calls are carried out: the tools and nothing else of a problem, in a session that is kept."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._pool: Pool = pool(LIMITS)
        self._session: Session | None = None
        self._fresh = True

    def open(self) -> None:
        """Begin with a fresh interpreter. Raises ``Failure`` (``bad_tools``)."""
        if self._session is None:
            self._session = self._pool.take()
        try:
            self._session.restart()
            _start(self._session, "bad_tools", [SETTING, COPY, self._problem.code, ACTING])
        except (Failure, SandboxError):
            self.close()
            raise
        self._fresh = True

    def act(self, state: JsonObject, tool: str, arguments: JsonObject) -> Acted:
        """Carry out a call that fits its schema. Raises ``Failure`` (``bad_tools``) where the tool itself fails."""
        value = self._ask("_act", {"state": state, "tool": tool, "arguments": arguments})
        try:
            return msgspec.convert(value, Acted)
        except msgspec.ValidationError as error:
            raise Failure("bad_tools", f"{tool} leaves no state: {error}") from None

    def refused(self, state: JsonObject, calls: Sequence[tuple[str, JsonObject]]) -> list[bool]:
        """Which calls would be refused; none is carried out. All are if one of them does not end."""
        try:
            found = self._ask("_refused", {"state": state, "calls": list(calls)})
        except Failure:
            return [True] * len(calls)
        return [bool(each) for each in found]

    def follow(self, draws: Sequence[Draw], runs: Sequence[Run]) -> list[str]:
        """Where an agent that makes the calls of ``runs``, by turns in all inputs, gets another answer than the
        oracle, or brings something else about. Raises ``Failure`` (``bad_tools``)."""
        calls = [run.calls for run in runs]
        value = self._ask("_followed", {"instances": [each.instance for each in draws], "runs": calls})
        try:
            followed = msgspec.convert(value, Followed)
        except msgspec.ValidationError as error:
            raise Failure("bad_tools", f"the tools leave no states: {error}") from None
        if followed.wrong or self._problem.answer is not None:
            return followed.wrong
        ends = zip(runs, followed.states, strict=True)
        return [
            f"the oracle brings about {run.outcome!r}, an agent does not"
            for run, state in ends
            if self.outcome(state) != run.outcome
        ]

    def outcome(self, state: JsonObject) -> Any:
        """What was done. Raises ``Failure`` (``bad_tools``)."""
        return self._ask(OUTCOME, {"state": state})

    def close(self) -> None:
        """Give the session back."""
        if self._session is not None:
            self._pool.give(self._session)
            self._session = None

    def _ask(self, function: str, arguments: JsonObject) -> Any:
        """States are kept outside, so that nothing is lost with an interpreter. One that ends gets a successor, and the
        call another try unless it was the first: the limit of processor time is for all calls together."""
        assert self._session is not None
        first, self._fresh = self._fresh, False
        try:
            return _call(self._session, "bad_tools", function, arguments)
        except Failure:
            if self._session.alive:
                raise
            self.open()
            if first:
                raise
        return self._ask(function, arguments)


def _played_with(draws: Sequence[Draw]) -> JsonObject:
    givens = [each.given for each in draws]
    return {"instances": [each.instance for each in draws], "givens": givens, "most": MOST_CALLS}


def _start(session: Session, reason: str, code: Sequence[str]) -> None:
    _checked(session.run("\n".join(code)), reason)


def _call(session: Session, reason: str, function: str, arguments: JsonObject) -> Any:
    return _checked(session.call(function, arguments), reason).value


def _checked(result: Result, reason: str) -> Result:
    """Raises ``Failure`` for code that raised or did not end."""
    if not result.ok:
        raise Failure("endless" if result.reason in ("timeout", "cpu") else reason, _last_line(result.error))
    return result


def _last_line(error: str | None) -> str:
    """What an exception says, without the way to it."""
    lines = (error or "").strip().splitlines()
    return lines[-1] if lines else "it failed without a word"


def _read(value: Any, reason: str, record: type[Any]) -> list[Any]:
    """A list of records, from lists or objects."""
    if record is Draw and isinstance(value, list):
        value = [{"instance": each[0], "given": each[1]} for each in value if isinstance(each, list) and len(each) == 2]
    try:
        return msgspec.convert(value, list[record])  # type: ignore[valid-type]
    except msgspec.ValidationError as error:
        raise Failure(reason, f"what it gives cannot be read: {error}") from None


_VALUES = 3
_CALLS = 6


def candidates(tool: Tool, known: Sequence[Any]) -> list[ApiAction]:
    """A few calls with values that the schemas of the parameters take; texts are some of ``known``."""
    properties: dict[str, JsonObject] = tool.parameters["properties"]
    choices = [
        [value for value in _values(schema, known) if misfit_value(value, schema) is None][:_VALUES]
        for schema in properties.values()
    ]
    return [
        ApiAction(function=tool.name, kwargs=dict(zip(properties, values, strict=True)))
        for values in itertools.islice(itertools.product(*choices), _CALLS)
    ]


def _values(schema: JsonObject, known: Sequence[Any]) -> list[Any]:
    if "enum" in schema:
        return list(schema["enum"])
    match schema.get("type"):
        case "integer" | "number":
            least = schema["minimum"] if "minimum" in schema else schema.get("exclusiveMinimum", 0)
            return [least, least + 1, least + 2]
        case "boolean":
            return [False, True]
        case "string":
            return [each for each in known if isinstance(each, str)] or [""]
        case "array":
            return [[]]
    return []
