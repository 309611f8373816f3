"""Checks of interpreter worlds that were written with functions and tasks: does all of it do what is said of it.

``broken`` for every world; then ``schema``, ``source`` (the Python runs), ``nondeterministic`` (a second session gives
the same), ``lying_function`` (an example comes to another value, or to none), ``always_passes`` (a check that needs no
work), and of each task ``null_accepted``, ``gold_rejected`` and ``nondeterministic``. All code runs in the sandbox.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterator
from typing import Any

from schemas.ids import digest
from schemas.task import AdmissionCheck, EnvironmentSpec, Task
from synthesis.environments.environment import WorldError
from synthesis.environments.interpreter.environment import LIMITS, begin
from synthesis.environments.interpreter.goal import Goal, goal_of, same
from synthesis.generators.interpreter_tasks.written import Written, is_written, written_of
from synthesis.generators.trial import Solution, try_environment, try_task
from synthesis.sandbox import Result, pool

LEAST_TASKS = 3
TOLD = 300
"""Characters of an error that its author is told."""

_KEPT = frozenset({*keyword.kwlist, *dir(builtins)})
_WORD = re.compile(r"[^\W\d]\w*")


def environment_checks(spec: EnvironmentSpec) -> Iterator[AdmissionCheck]:
    """The checks of a world, in order; what follows a failed one must not be asked for."""
    yield from try_environment(spec)
    if not is_written(spec):
        return
    try:
        written = written_of(spec)
        tasks = [written.task(number, spec) for number in range(len(written.tasks))]
        goals = [goal_of(task) for task in tasks]
    except (ValueError, WorldError) as error:
        yield _judged("schema", str(error))
        return
    yield _judged("schema", _incomplete(written))
    first, second = _tried(spec, written), _tried(spec, written)
    yield _judged("source", "" if first[0].ok else _short(first[0]))
    yield _judged("nondeterministic", _difference(written, first[1:], second[1:]))
    yield _judged("lying_function", next(_lies(written, first[1:]), ""))
    trivial = [(number, why) for number, goal in enumerate(goals) if (why := needs_no_work(goal, tasks[number]))]
    yield _judged("always_passes", "; ".join(f"task {number + 1}: {why}" for number, why in trivial))
    for number, task in enumerate(tasks, start=1):
        yield from _task_checks(number, task, spec)


def needs_no_work(goal: Goal, task: Task) -> str:
    """Why the goal can be met by who knows nothing, empty if it cannot."""
    if not goal.calls:
        answer = goal.answer[0]
        if answer is None or isinstance(answer, bool) or answer in ("", [], {}):
            return f"the answer {answer!r} is what one would guess"
        told = isinstance(answer, str) and re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", task.instruction, re.I)
        return f"the instruction tells the answer {answer!r}" if told else ""
    for name in {call.function for call in goal.calls}:
        calls = [call for call in goal.calls if call.function == name]
        if len({digest(call.value) for call in calls}) == 1:
            return f"a function {name} that always returns {calls[0].value!r} passes; call it for different values"
        if all(len(call.arguments) == 1 and same(call.value, *call.arguments.values()) for call in calls):
            return f"a function {name} that returns its argument passes"
    return ""


def source_structure(source: str) -> str:
    """Equal for Python that differs in names, texts and numbers only. By its tokens: foreign code is not compiled."""
    names: dict[str, str] = {}
    text = re.sub(r"#.*|\"[^\"\n]*\"|'[^'\n]*'|\b\d+\b", "0", source)
    renamed = _WORD.sub(lambda word: word[0] if word[0] in _KEPT else names.setdefault(word[0], f"n{len(names)}"), text)
    return digest("interpreter", renamed.split())


def _tried(spec: EnvironmentSpec, written: Written) -> list[Result]:
    """What the source gives, and each example after it, in a session of its own; shorter if that died."""
    with pool(LIMITS).session() as session:
        started = begin(session, spec.source, written.data)
        calls = [(function.name, example.arguments) for function in written.functions for example in function.examples]
        return [started, *(session.call(*call) for call in calls if started.ok and session.alive)]


def _incomplete(written: Written) -> str:
    if not written.functions or not all(function.examples for function in written.functions):
        return "expected functions, each with examples"
    if len(written.tasks) < LEAST_TASKS or not all(draft.solution for draft in written.tasks):
        return f"expected at least {LEAST_TASKS} tasks, each with a solution"
    return ""


def _difference(written: Written, first: list[Result], second: list[Result]) -> str:
    for (call, _), one, other in zip(_examples(written), first, second, strict=False):
        if (one.reason, one.value, one.output) != (other.reason, other.value, other.output):
            return f"{call} gave {one.value!r} in one session, and {other.value!r} in another one"
    return ""


def _lies(written: Written, results: list[Result]) -> Iterator[str]:
    for (call, value), result in zip(_examples(written), results, strict=False):
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
        yield AdmissionCheck(name=check.name, passed=check.passed, detail=f"task {number}: {check.detail}"[: 2 * TOLD])


def _short(result: Result) -> str:
    return str(result.error).strip()[-TOLD:]


def _judged(name: str, fault: str) -> AdmissionCheck:
    return AdmissionCheck(name=name, passed=not fault, detail=fault)
