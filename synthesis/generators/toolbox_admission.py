"""Checks of toolboxes and their tasks: does every tool work and tell the truth, does every step of a solution count.

Environments: ``syntax``; ``tables``, ``tools``, ``rows``, ``forbidden_sql``, ``sql``, ``result_columns`` and
``unused_table`` by looking; ``disconnected_tool`` (no tool shows a key that it takes), ``unreachable_tool``,
``noop_tool``, ``lying_tool`` (an answer differs from the rows), ``unordered_rows`` and ``no_probe`` (no task can be
made) by trying. Tasks: ``empty_answer_accepted``, ``ungrounded_argument`` (nobody said a key), ``unneeded_call``,
``guess_accepted``, ``wrong_argument_accepted``, ``twin_accepted``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import closing

import msgspec

from agentmill.schemas.ids import derive_seed
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import AdmissionCheck, EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction
from agentmill.synthesis.environments import make
from agentmill.synthesis.environments.environment import EnvError, Environment
from agentmill.synthesis.environments.toolbox.database import Database
from agentmill.synthesis.environments.toolbox.goal import Answer
from agentmill.synthesis.environments.toolbox.lint import lint
from agentmill.synthesis.environments.toolbox.toolbox import (
    FINISH,
    Parameter,
    Toolbox,
    ToolboxError,
    Value,
    read_toolbox,
)
from agentmill.synthesis.generators.toolbox_probe import Probe, disconnected, no_task
from agentmill.synthesis.generators.toolbox_tasks.live_toolbox import LiveToolbox

MAX_DEFECTS = 3
WRONG_VALUES = 2


def environment_checks(spec: EnvironmentSpec, probes: int) -> Iterator[AdmissionCheck]:
    """The checks of a toolbox, in order; what follows a failed one must not be asked for. ``probes`` rounds of calls
    are tried."""
    try:
        toolbox = read_toolbox(spec.source)
    except ToolboxError as error:
        yield _judged("syntax", [str(error)])
        return
    yield _judged("syntax", [])
    for name, defects in lint(toolbox):
        yield _judged(name, defects)
    yield _judged("disconnected_tool", disconnected(toolbox))
    try:
        with closing(LiveToolbox(spec)) as live:
            probe = Probe(live)
            for number in range(probes):
                probe.round(random.Random(derive_seed("probe", number)))
            yield _judged("unreachable_tool", probe.unreachable())
            yield _judged("noop_tool", probe.idle())
            yield _judged("lying_tool", probe.lies)
            yield _judged("unordered_rows", probe.unordered)
    except EnvError as error:
        yield _judged("rows", [str(error)])
        return
    yield _judged("no_probe", no_task(spec))


def task_checks(task: Task, spec: EnvironmentSpec) -> Iterator[AdmissionCheck]:
    """The checks of a task whose gold solution is accepted already; without a gold solution only the first."""
    environment = make(spec)
    gold = [action for action in task.gold or [] if isinstance(action, ApiAction)]
    try:
        # The instruction as an answer, since it may hold the value that is asked for.
        texts = ["", task.instruction]
        lucky = [text for text in texts if _passes(environment, task, [_finish(text)])]
        yield _judged("empty_answer_accepted", [f"finish({text!r}) at once is enough" for text in lucky])
        yield _judged("ungrounded_argument", _ungrounded(environment, task, gold))
        yield _judged("unneeded_call", _unneeded(environment, task, gold))
        yield _judged("guess_accepted", _guesses_accepted(environment, task, gold))
        yield _judged("wrong_argument_accepted", _wrong_accepted(environment, task, gold))
        yield _judged("twin_accepted", _twins_accepted(environment, task, gold))
    finally:
        environment.close()


def _ungrounded(environment: Environment, task: Task, gold: Sequence[ApiAction]) -> Iterator[str]:
    """Arguments of the solution that neither the user nor an answer before said."""
    toolbox = read_toolbox(environment.spec.source)
    tools = {tool.name: tool for tool in toolbox.tools}
    searched = [task.instruction, *(str(slot["text"]) for slot in slots_of(task))]
    environment.reset(task, 0)
    for action in gold:
        for parameter in tools[action.function].parameters if action.function in tools else ():
            value = str(action.kwargs[parameter.name])
            if not any(contains_value(text, value) for text in searched):
                yield f"{action.function}: nobody said {parameter.name} = {value}"
        searched.append(str(getattr(environment.step(action).observation, "content", "")))


def _unneeded(environment: Environment, task: Task, gold: Sequence[ApiAction]) -> Iterator[str]:
    """Calls that change the state and without which the solution is accepted as well."""
    for number, before in _changing(environment, task, gold):
        if _goes_on(environment, before, gold[number + 1 :]):
            yield f"the solution passes without its call {number + 1}, {gold[number].function}"


def _wrong_accepted(environment: Environment, task: Task, gold: Sequence[ApiAction]) -> Iterator[str]:
    """Changes with one argument replaced by another of its column that are accepted as well."""
    toolbox = read_toolbox(environment.spec.source)
    tools = {tool.name: tool for tool in toolbox.tools}
    database = Database(toolbox)
    for number, before in _changing(environment, task, gold):
        tool = tools.get(gold[number].function)
        for parameter in tool.parameters if tool is not None else ():
            for value in _others(toolbox, database, parameter, gold[number].kwargs[parameter.name]):
                wrong = _with(gold[number], {**gold[number].kwargs, parameter.name: value})
                if _goes_on(environment, before, [wrong, *gold[number + 1 :]]):
                    yield f"the solution passes with {parameter.name} = {value!r} in its call {number + 1}"
    database.close()


def _guesses_accepted(environment: Environment, task: Task, gold: Sequence[ApiAction]) -> Iterator[str]:
    """Answers that hold no knowledge and are accepted at the end of the solution."""
    if not gold or gold[-1].function != FINISH:
        return
    answers = msgspec.convert(task.goal.get("answers", []), list[Answer])
    _passes(environment, task, gold[:-1])
    before = environment.snapshot()
    for text in guesses(answers):
        if _goes_on(environment, before, [_finish(text)]):
            yield f"the solution passes with the answer {text!r}"


def guesses(answers: Sequence[Answer]) -> list[str]:
    """What one could say without a look: nothing, small numbers, the numbers of rules, and for texts each other value
    of the column, and all of them."""
    if not answers:
        return []
    rivals = [answer.others for answer in answers if isinstance(answer.value, str)]
    every = [", ".join(sorted([*answer.others, str(answer.value)])) for answer in answers if answer.others]
    blind = ["no answer", "0", "1, 2, 3", " ".join(map(str, range(13))), "rule 1, rule 2, rule 3"]
    return list(dict.fromkeys([*blind, *(other for others in rivals for other in others), *every]))


def _twins_accepted(environment: Environment, task: Task, gold: Sequence[ApiAction]) -> Iterator[str]:
    """Near-duplicates of a tool that do as well; ``lineage.notes["twins"]`` of the toolbox says which there are."""
    notes = environment.spec.lineage.notes if environment.spec.lineage else {}
    twins: dict[str, list[str]] = notes.get("twins", {})
    for number, before in _changing(environment, task, gold) if twins else ():
        for twin in twins.get(gold[number].function, []):
            other = ApiAction(function=twin, kwargs=gold[number].kwargs)
            if _goes_on(environment, before, [other, *gold[number + 1 :]]):
                yield f"the solution passes with {twin} in the place of {gold[number].function}"


def _changing(environment: Environment, task: Task, gold: Sequence[ApiAction]) -> list[tuple[int, bytes]]:
    """The calls of the solution that write, by their numbers, with a snapshot of what was before."""
    writing = {tool.name for tool in read_toolbox(environment.spec.source).tools if tool.writes}
    environment.reset(task, 0)
    found = []
    for number, action in enumerate(gold):
        before = environment.snapshot() if action.function in writing else b""
        done = not environment.step(action).error
        found += [(number, before)] * (done and action.function in writing)
    return found


def _others(toolbox: Toolbox, database: Database, parameter: Parameter, value: Value) -> list[Value]:
    """Other values that a parameter might have been given."""
    table, column = toolbox.column(parameter.column)
    place = table.columns.index(column)
    held = dict.fromkeys(row[place] for row in database.contents()[table.name].values())
    near: list[Value] = [value + 1] if isinstance(value, int) else []
    listed: list[Value] = [*near, *column.values, *held]
    others: list[Value] = [other for other in dict.fromkeys(listed) if other != value and other is not None]
    return others[:WRONG_VALUES]


def _passes(environment: Environment, task: Task, actions: Sequence[AnyAction]) -> bool:
    environment.reset(task, 0)
    for action in actions:
        environment.step(action)
    return environment.check().passed


def _goes_on(environment: Environment, snapshot: bytes, actions: Sequence[AnyAction]) -> bool:
    """Whether ``actions``, taken from a snapshot, meet the goal."""
    environment.restore(snapshot)
    for action in actions:
        environment.step(action)
    return environment.check().passed


def _with(action: ApiAction, arguments: JsonObject) -> ApiAction:
    return msgspec.structs.replace(action, kwargs=arguments)


def _finish(text: str) -> ApiAction:
    return ApiAction(function=FINISH, kwargs={"answer": text})


def slots_of(task: Task) -> list[JsonObject]:
    """The values that the user of a task gives, as objects with ``label`` and ``text``."""
    request = task.initial_state.get("request", {})
    return [dict(slot) for slot in request.get("slots", {}).values()] if isinstance(request, dict) else []


def contains_value(text: str, value: str) -> bool:
    """Whether ``value`` is in ``text``, and no letter or digit next to it."""
    start = text.find(value)
    while start >= 0:
        around = text[start - 1 : start] + text[start + len(value) : start + len(value) + 1]
        if not any(letter.isalnum() for letter in around):
            return True
        start = text.find(value, start + 1)
    return False


def _judged(name: str, defects: Sequence[str] | dict[str, None] | Iterator[str]) -> AdmissionCheck:
    """Failed with the first few of ``defects``."""
    unique = list(dict.fromkeys(defects))
    return AdmissionCheck(name=name, passed=not unique, detail="; ".join(unique[:MAX_DEFECTS]))
