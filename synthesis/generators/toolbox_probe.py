"""What trying a toolbox out shows: tools that never work, do nothing or lie, and whether tasks can be made of it."""

from __future__ import annotations

import random

import msgspec

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.synthesis.environments.toolbox.database import Database, Refused
from agentmill.synthesis.environments.toolbox.toolbox import Parameter, Tool, Toolbox, Value
from agentmill.synthesis.generators.toolbox_tasks.generator import ToolboxTaskGenerator
from agentmill.synthesis.generators.toolbox_tasks.live_toolbox import Call, LiveToolbox
from agentmill.synthesis.generators.toolbox_tasks.operation import OperationSampler

DRAWS = 40
PROBE_TASKS = 4


class Probe:
    """What trying out the tools of an environment shows."""

    def __init__(self, live: LiveToolbox) -> None:
        self._live = live
        self._worked: set[str] = set()
        self._changed: set[str] = set()
        self.lies: dict[str, None] = {}
        self.unordered: dict[str, None] = {}

    def round(self, chance: random.Random) -> None:
        """Every tool, in a random order, with random values until a call works."""
        self._live.reset()
        tools = list(self._live.toolbox.tools)
        chance.shuffle(tools)
        sampler = OperationSampler(self._live, chance, {})
        for tool in tools:
            for _ in range(DRAWS):
                values = {p.name: self._value(tool, p, sampler, chance) for p in tool.parameters}
                before = self._live.contents()
                call = self._live.call(tool, values)
                # A reading tool that shows nothing may work, but proves nothing.
                if call is None or not (call.rows or tool.writes):
                    continue
                self._worked.add(tool.name)
                if self._live.contents() != before:
                    self._changed.add(tool.name)
                self._look(call)
                break
        self._order(chance)

    def unreachable(self) -> list[str]:
        """Tools that no call of worked, or that never showed anything."""
        return [f"no call of {tool.name} worked" for tool in self._live.toolbox.tools if tool.name not in self._worked]

    def idle(self) -> list[str]:
        """Writing tools that never changed anything, and reading ones that a user is to ask for as a change."""
        return [
            f"{tool.name} changes nothing"
            for tool in self._live.toolbox.tools
            if (tool.writes or tool.request) and tool.name not in self._changed
        ]

    def _value(self, tool: Tool, parameter: Parameter, sampler: OperationSampler, chance: random.Random) -> Value:
        """For a reading tool a value that is there, for a writing one any."""
        table, column = self._live.toolbox.column(parameter.column)
        rows = list(self._live.contents()[table.name].values())
        if tool.writes or not rows:
            return sampler.value(parameter)
        return chance.choice(rows)[table.columns.index(column)]

    def _look(self, call: Call) -> None:
        """Compare what a call showed with the rows that it names by their keys."""
        contents = self._live.contents()
        for table in self._live.toolbox.tables:
            shown = {
                path.partition(".")[2]: name
                for name, path in call.tool.columns.items()
                if path.startswith(f"{table.name}.")
            }
            if table.key not in shown:
                continue
            names = [column.name for column in table.columns]
            for row in call.rows:
                real = contents[table.name].get(row[shown[table.key]])  # type: ignore[arg-type]
                wrong = [
                    field for field, name in shown.items() if real is None or real[names.index(field)] != row[name]
                ]
                if wrong:
                    lie = f"{call.tool.name} shows {shown[wrong[0]]} = {row[shown[wrong[0]]]!r}"
                    self.lies[f"{lie}, but {table.name}.{wrong[0]} is {real and real[names.index(wrong[0])]!r}"] = None

    def _order(self, chance: random.Random) -> None:
        """Ask reading tools of a database that gives rows the other way round wherever it may."""
        ahead = Database(self._live.toolbox)
        # SQLite often happens to give rows in order, which no query may rely on.
        behind = Database(self._live.toolbox, backwards=True)
        sampler = OperationSampler(self._live, chance, {})
        for tool in self._live.reads:
            for _ in range(DRAWS // 8):
                values = {p.name: self._value(tool, p, sampler, chance) for p in tool.parameters}
                try:
                    same = ahead.call(tool, values) == behind.call(tool, values)
                except Refused as error:
                    self.unordered[f"{tool.name} fails: {error}"] = None
                    break
                if not same:
                    self.unordered[f"the rows of {tool.name} have no fixed order: add ORDER BY a key"] = None
        ahead.close()
        behind.close()


def disconnected(toolbox: Toolbox) -> list[str]:
    """Tools that take the key of a row that no call, made of what was shown before, ever shows."""
    return [
        f"{name} takes a key of {', '.join(sorted(tables))}, which no tool shows"
        for name, tables in unshown_keys(toolbox).items()
    ]


def unshown_keys(toolbox: Toolbox) -> dict[str, set[str]]:
    """The tables of which ``disconnected`` tools take keys that are never shown, by tool."""
    shown: set[str] = set()
    needs = {
        tool.name: {owner.name for p in tool.parameters if (owner := toolbox.keyed(p.column)) is not None}
        for tool in toolbox.tools
    }
    while True:
        usable = [tool for tool in toolbox.tools if needs[tool.name] <= shown]
        keys = {
            owner.name for tool in usable for path in tool.columns.values() if path and (owner := toolbox.keyed(path))
        }
        if keys <= shown:
            break
        shown |= keys
    return {name: tables - shown for name, tables in needs.items() if tables - shown}


def no_task(spec: EnvironmentSpec) -> list[str]:
    """Why no task can be made."""
    # Wrappers such as faults would only get in the way of the probe.
    plain = msgspec.structs.replace(spec, parameters={})
    reasons = []
    for task in ToolboxTaskGenerator().proposals(plain, PROBE_TASKS, 0):
        if isinstance(task, Task):
            return []
        reasons.append(task.detail)
    return reasons[:1]
