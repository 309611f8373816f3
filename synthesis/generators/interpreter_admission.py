"""Checks of interpreter environments that were written with functions and tasks: does all of it do what its texts say.

``broken`` for every environment; then ``schema``, ``source`` (the Python runs), ``nondeterministic`` (a second session
gives the same for the examples in reverse order), ``lying_function`` (an example comes to another value, or to none),
``always_passes`` (a check that needs no work), and of each task ``null_accepted``, ``gold_rejected``,
``nondeterministic`` and ``always_passes`` (with another answer, or without the environment). All code runs in the
sandbox.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import keyword
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from agentmill.schemas.ids import digest
from agentmill.schemas.records.task import AdmissionCheck, EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction
from agentmill.synthesis.environments import make
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.environments.interpreter.environment import LIMITS, TOOL
from agentmill.synthesis.environments.interpreter.goal import Goal, goal_of, same
from agentmill.synthesis.environments.interpreter.source_session import RESERVED, begin
from agentmill.synthesis.generators.interpreter_tasks.written import Function, Written, is_written, written_of
from agentmill.synthesis.generators.trial import Solution, try_environment, try_task
from agentmill.synthesis.sandbox import Result, pool

LEAST_TASKS = 3
LEAST_EXAMPLES = 2
"""Of a function that takes arguments; with different ones."""
CELLS = (2, 8)
"""The least and the most of a solution."""
MAX_DETAIL = 300
"""Characters of an error that its author is shown."""

_WRONG = ApiAction(function=TOOL.name, kwargs={"code": "submit('no answer')"})
_KEPT = frozenset({*keyword.kwlist, *dir(builtins)})
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?!\w|\.\d)")
_WORD = re.compile(r"[^\W\d]\w*")


def environment_checks(spec: EnvironmentSpec) -> Iterator[AdmissionCheck]:
    """The checks of an environment, in order; what follows a failed one must not be asked for."""
    yield from try_environment(spec)
    if not is_written(spec):
        return
    try:
        digest(spec.parameters)  # as sessions need it of what they are called with: not nested too deep
        written = written_of(spec)
        tasks = [written.task(number, spec) for number in range(len(written.tasks))]
        goals = [goal_of(task) for task in tasks]
    except (ValueError, RecursionError, EnvError) as error:
        yield _judged("schema", str(error))
        return
    yield _judged("schema", _incomplete(written))
    (first, forwards), (second, backwards) = _tried(spec, written), _tried(spec, written, backwards=True)
    yield _judged("source", "" if first.ok else _short(first))
    yield _judged("nondeterministic", "" if second.ok else f"the source runs once, and then: {_short(second)}")
    yield _judged("nondeterministic", _difference(written, forwards, backwards))
    yield _judged("lying_function", next(_lies(written, forwards), ""))
    trivial = [(number, why) for number, goal in enumerate(goals) if (why := needs_no_work(goal, tasks[number]))]
    yield _judged("always_passes", "; ".join(f"task {number + 1}: {why}" for number, why in trivial))
    for number, task in enumerate(tasks, start=1):
        yield from _task_checks(number, task, spec)


def needs_no_work(goal: Goal, task: Task) -> str:
    """Why the goal can be met by who knows nothing, empty if it cannot."""
    if not goal.calls:
        answer = goal.answer[0].strip() if isinstance(goal.answer[0], str) else goal.answer[0]
        if answer is None or isinstance(answer, bool) or answer in ("", [], {}):
            return f"the answer {answer!r} is what one would guess"
        return f"the instruction tells the answer {answer!r}" if _tells(task.instruction, answer) else ""
    for name in sorted({call.function for call in goal.calls}):
        calls = [call for call in goal.calls if call.function == name]
        if all(same(call.value, calls[0].value) for call in calls):
            return f"a function {name} that always returns {calls[0].value!r} passes; call it for different values"
        if len({digest(call.arguments) for call in calls}) < len(calls):
            return f"{name} is called twice with the same arguments"
        for argument in calls[0].arguments:
            if all(argument in call.arguments and same(call.value, call.arguments[argument]) for call in calls):
                return f"a function {name} that returns its argument {argument} passes"
    return ""


def _tells(instruction: str, answer: Any) -> bool:
    """Whether an instruction holds an answer: a text as words, a number in any spelling, others as JSON."""
    if isinstance(answer, str):
        return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", instruction, re.I) is not None
    if isinstance(answer, int | float):
        return any(same(float(number), answer) for number in _NUMBER.findall(instruction))
    written = json.dumps(answer, ensure_ascii=False)
    return "".join(written.split()) in "".join(instruction.replace("'", '"').split())


def source_structure(source: str) -> str:
    """Equal for Python that differs in names, texts and numbers only. By its tokens: foreign code is not compiled."""
    names: dict[str, str] = {}
    text = re.sub(r"#.*|\"[^\"\n]*\"|'[^'\n]*'|\b\d+\b", "0", source)
    renamed = _WORD.sub(lambda word: word[0] if word[0] in _KEPT else names.setdefault(word[0], f"n{len(names)}"), text)
    return digest("interpreter", renamed.split())


def _tried(spec: EnvironmentSpec, written: Written, backwards: bool = False) -> tuple[Result, list[Result | None]]:
    """What the source gives, and each example after it, in a session of its own; ``None`` where that had died."""
    calls = [(function.name, example.arguments) for function in written.functions for example in function.examples]
    if backwards:
        calls.reverse()
    with pool(LIMITS).session() as session:
        started = begin(session, spec.source, written.data)
        results = [session.call(*call) if started.ok and session.alive else None for call in calls]
    return started, results[::-1] if backwards else results


def _incomplete(written: Written) -> str:
    if not written.functions or not all(map(_shown, written.functions)):
        return f"expected functions, each with examples: at least {LEAST_EXAMPLES}, or one if it takes no arguments"
    if taken := sorted(RESERVED & {*written.data, *(function.name for function in written.functions)}):
        return f"{taken[0]!r} is the name of something else in every session; rename it"
    least, most = CELLS
    if len(written.tasks) < LEAST_TASKS or not all(least <= len(draft.solution) <= most for draft in written.tasks):
        return f"expected at least {LEAST_TASKS} tasks, each with a solution of {least} to {most} cells"
    if len({draft.instruction.casefold().strip() for draft in written.tasks}) < len(written.tasks):
        return "two tasks have the same instruction"
    return ""


def _shown(function: Function) -> bool:
    calls = {digest(example.arguments) for example in function.examples}
    return len(calls) >= LEAST_EXAMPLES or calls == {digest({})}


def _difference(written: Written, first: list[Result | None], second: list[Result | None]) -> str:
    """Of what both sessions played to see; a death shows by itself."""
    for (call, _), one, other in zip(_examples(written), first, second, strict=True):
        if one is None or other is None:
            continue
        if (one.reason, one.value, one.output) != (other.reason, other.value, other.output):
            return f"{call} gave {one.value!r} in one session, and {other.value!r} in another one after other calls"
    return ""


def _lies(written: Written, results: list[Result | None]) -> Iterator[str]:
    for (call, value), result in zip(_examples(written), results, strict=True):
        if result is None:
            return
        if not result.ok:
            yield f"{call} fails: {_short(result)}"
        elif not same(result.value, value):
            yield f"{call} gives {result.value!r}, but its example says {value!r}"


def _examples(written: Written) -> Iterator[tuple[str, Any]]:
    for function in written.functions:
        for example in function.examples:
            arguments = ", ".join(f"{name}={value!r}" for name, value in example.arguments.items())
            yield f"{function.name}({arguments})", example.value


def _task_checks(number: int, task: Task, spec: EnvironmentSpec) -> Iterator[AdmissionCheck]:
    for check in try_task(task, spec, Solution(task.gold, task.difficulty)):
        yield AdmissionCheck(
            name=check.name, passed=check.passed, detail=f"task {number}: {check.detail}"[: 2 * MAX_DETAIL]
        )
    if "answer" in task.goal:
        yield _judged("always_passes", _spared(number, task, spec))


def _spared(number: int, task: Task, spec: EnvironmentSpec) -> str:
    """What of its solution an answer does not need: the last cell, or the environment."""
    gold = task.gold or []
    try:
        if _passes([*gold[:-1], _WRONG], task, spec):
            return f"task {number}: submitting something else passes too"
        bare = msgspec.structs.replace(task, initial_state={})
        if _passes(gold, bare, msgspec.structs.replace(spec, source="")):
            return f"task {number}: the solution passes without the functions; ask for something that needs them"
    except EnvError as error:
        return f"task {number}: {error}"
    return ""


def _passes(actions: Sequence[AnyAction], task: Task, spec: EnvironmentSpec) -> bool:
    """Whether the task is solved by these actions."""
    with contextlib.closing(make(spec)) as environment:
        environment.reset(task, 0)
        for action in actions:
            environment.step(action)
        return environment.check().passed


def _short(result: Result) -> str:
    return str(result.error).strip()[-MAX_DETAIL:]


def _judged(name: str, fault: str) -> AdmissionCheck:
    return AdmissionCheck(name=name, passed=not fault, detail=fault[: 2 * MAX_DETAIL])
