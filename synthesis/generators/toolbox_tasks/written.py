"""Toolbox tasks as a model writes them: a request, the calls that fulfil it, and the values that the user gets to know.

The calls are carried out. What they change is the goal; what they show proves the answers, and the other values of
that column are the answers' rivals.
"""

from __future__ import annotations

from contextlib import closing
from typing import ClassVar

import msgspec

from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Lineage, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction
from agentmill.synthesis.environments.toolbox.changes import changes
from agentmill.synthesis.environments.toolbox.goal import Answer, Goal
from agentmill.synthesis.environments.toolbox.toolbox import FINISH, Tool, Value
from agentmill.synthesis.generators.task_author import Unwritten
from agentmill.synthesis.generators.toolbox_tasks.generator import SPARE_TURNS, difficulty_of, gives_away
from agentmill.synthesis.generators.toolbox_tasks.live_toolbox import Call, LiveToolbox, plain, read_toolbox, shape
from agentmill.synthesis.generators.toolbox_tasks.operation import rivals_of
from agentmill.synthesis.prompts import prompt

TEXT: JsonObject = {"type": "string"}
"""The schema of a text."""

_VALUE: JsonObject = {"type": ["integer", "string"]}


class WrittenArgument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An argument of a call."""

    name: str
    value: int | str


class WrittenCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of the solution."""

    tool: str
    arguments: list[WrittenArgument]


class Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON object of a task."""

    request: str
    calls: list[WrittenCall]
    answers: list[int | str]


def closed(**properties: JsonObject) -> JsonObject:
    """The schema of an object with these properties and no others, as servers with strict schemas want it."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _list(items: JsonObject) -> JsonObject:
    return {"type": "array", "items": items}


class ToolboxTaskForm:
    """Raises ``EnvError`` for a toolbox that cannot be used."""

    instructions: ClassVar[str] = prompt("task_toolbox")
    # Arguments as pairs: strict schemas have no objects with open keys.
    answer_schema: ClassVar[JsonObject] = closed(
        request=TEXT,
        calls=_list(closed(tool=TEXT, arguments=_list(closed(name=TEXT, value=_VALUE)))),
        answers=_list(_VALUE),
    )

    def __init__(self, spec: EnvironmentSpec) -> None:
        self._spec = spec
        read_toolbox(spec).close()

    def shown(self) -> str:
        """Tables, rows and tools, without the SQL, which agents do not see."""
        with closing(read_toolbox(self._spec)) as live:
            tables = {table.name: [column.name for column in table.columns] for table in live.toolbox.tables}
            rows = {name: list(held) for name, held in live.toolbox.rows.items()}
            tools = [
                {
                    "name": tool.name,
                    "description": tool.description,
                    "arguments": {each.name: each.column for each in tool.parameters},
                    "shows": list(tool.columns),
                }
                for tool in live.toolbox.tools
            ]
            about = {"about": live.toolbox.about, "tables": tables, "rows": rows, "tools": tools}
            return msgspec.json.encode(about).decode()

    def task(self, written: JsonObject, task_id: str, lineage: Lineage) -> Task:
        """The task whose goal is what its calls come to."""
        try:
            given = msgspec.convert(written, Written)
        except msgspec.ValidationError as error:
            raise Unwritten(str(error)) from error
        if not given.request.strip() or not given.calls:
            raise Unwritten("the request or the list of calls is empty")
        with closing(read_toolbox(self._spec)) as live:
            calls = [
                execute(live, call.tool, {each.name: each.value for each in call.arguments}) for call in given.calls
            ]
            shown = [_shown(live, calls, value) for value in given.answers]
            given_away = [answer.value for answer, _ in shown if gives_away(given.request, answer)]
            if given_away:
                raise Unwritten(f"the request gives the answer {given_away[0]!r} away")
            state = changes(live.toolbox, live.began_with(), live.contents())
            if not state and not shown:
                raise Unwritten("the calls change nothing, and there is no answer to find out")
            goal = Goal(states=(state,), answers=tuple(answer for answer, _ in shown))
            paths, structure = [path for _, path in shown], live.structure
            n_tools = len(live.toolbox.tools)
        answer = "; ".join(str(value) for value in given.answers)
        finish = ApiAction(function=FINISH, kwargs={"answer": answer})
        gold: list[AnyAction] = [*(call.action for call in calls), finish]
        return Task(
            task_id=task_id,
            environment_id=self._spec.environment_id,
            instruction=given.request.strip(),
            goal=plain(goal),
            gold=gold,
            difficulty=difficulty_of([], len(gold), n_tools),
            skills=sorted({call.tool.name.partition("_")[0] for call in calls}),
            max_turns=2 * len(gold) + SPARE_TURNS,
            structure_digest=_structure(structure, calls, paths),
            lineage=lineage,
        )

    def structure(self, task: Task) -> str | None:
        """As ``TaskForm.structure``: that of its calls and answers, since tasks made by rules have one of their words.

        ``None`` where its calls are refused, or an answer is not in what they show, as a number of rows.
        """
        gold = [each for each in task.gold or [] if isinstance(each, ApiAction) and each.function != FINISH]
        answers = msgspec.convert(task.goal.get("answers", []), list[Answer])
        try:
            with closing(read_toolbox(self._spec)) as live:
                calls = [execute(live, each.function, each.kwargs) for each in gold]
                return _structure(live.structure, calls, [_shown(live, calls, each.value)[1] for each in answers])
        except Unwritten:
            return None


def _structure(toolbox: str, calls: list[Call], paths: list[str]) -> str:
    """The same for tasks with the same tools in the same order and answers of the same columns."""
    return shape(toolbox, "written", [call.tool.name for call in calls], paths)


def execute(live: LiveToolbox, name: str, arguments: JsonObject) -> Call:
    """Raises ``Unwritten`` for a call that is refused."""
    tool: Tool | None = next((each for each in live.toolbox.tools if each.name == name), None)
    if tool is None:
        known = ", ".join(each.name for each in live.toolbox.tools)
        raise Unwritten(f"there is no tool {name!r}; there are {known}")
    call = live.call(tool, arguments)
    if call is None:
        raise Unwritten(f"the call {tool.name}({arguments}) is refused: its arguments or the state do not fit")
    return call


def _shown(live: LiveToolbox, calls: list[Call], value: Value) -> tuple[Answer, str]:
    """The answer with its rivals, and the column that shows it. Raises ``Unwritten`` for one that no call shows."""
    for call in reversed(calls):
        for name, path in call.tool.columns.items():
            if value is not None and any(row[name] == value for row in call.rows):
                return Answer(value, rivals_of(live, path, value) if path else ()), path
    raise Unwritten(f"no call shows the answer {value!r}")
