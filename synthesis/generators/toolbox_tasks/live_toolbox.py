"""One toolbox as the task generator sees it: a live database, what each call would answer, and where it began."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agentmill.schemas.ids import digest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import ApiAction
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.environments.toolbox.calls import Unfit, Unmet, bind
from agentmill.synthesis.environments.toolbox.database import Contents, Refused
from agentmill.synthesis.environments.toolbox.environment import ToolboxEnvironment
from agentmill.synthesis.environments.toolbox.structure import toolbox_structure
from agentmill.synthesis.environments.toolbox.toolbox import Table, Tool, Value

Row = dict[str, Value]


class Call(msgspec.Struct, frozen=True):
    """A call and the rows that it answered with."""

    tool: Tool
    arguments: JsonObject
    rows: list[Row]

    @property
    def action(self) -> ApiAction:
        """The call as an action."""
        return ApiAction(function=self.tool.name, kwargs=self.arguments)

    def shown(self, path: str) -> set[Value]:
        """The values of a column (``"orders.order_id"``) that are shown."""
        names = [name for name, shown in self.tool.columns.items() if shown == path]
        return {row[name] for name in names for row in self.rows}


class LiveToolbox:
    """Raises ``EnvError`` for a toolbox that cannot be used. ``close`` it."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        # Without faults and other wrappers: what a tool does is wanted, and not what happens to a call.
        plain = msgspec.structs.replace(spec, parameters={})
        self.spec = spec
        self._now, self._then = ToolboxEnvironment(plain), ToolboxEnvironment(plain)
        self.toolbox = self._now.toolbox
        self.structure = spec.structure_digest or toolbox_structure(self.toolbox)
        self.reads = [tool for tool in self.toolbox.tools if not tool.writes]
        self.writes = [tool for tool in self.toolbox.tools if tool.writes and tool.request]
        self._nothing = Task(task_id="", environment_id=spec.environment_id, instruction="")
        for environment in (self._now, self._then):
            environment.reset(self._nothing, 0)

    def reset(self) -> None:
        """Back to the rows of the toolbox."""
        self._now.reset(self._nothing, 0)

    def contents(self) -> Contents:
        """The rows now."""
        return self._now.database.contents()

    def began_with(self) -> Contents:
        """The rows at the start."""
        return self._then.database.contents()

    def keys(self, table: Table) -> list[int]:
        """The rows that were there at the start and still are."""
        now = self.contents()[table.name]
        return [key for key in self.began_with()[table.name] if key in now]

    def row(self, table: Table, key: int) -> Row:
        """A row as it is now."""
        values = self.contents()[table.name][key]
        return {column.name: value for column, value in zip(table.columns, values, strict=True)}

    def having(self, table: Table, values: Mapping[str, Value]) -> set[Value]:
        """The keys of all rows that hold ``values`` in those columns now."""
        return {key for key in self.contents()[table.name] if values.items() <= self.row(table, key).items()}

    def call(self, tool: Tool, arguments: Mapping[str, Value], *, at_start: bool = False) -> Call | None:
        """Carry out a call, now or in the state at the start; ``None`` where it is refused or breaks a rule."""
        environment = self._then if at_start else self._now
        try:
            with environment.database.trial() as keep:
                rows = environment.attempt(tool, bind(self.toolbox, tool, arguments))
                allowed = not environment.violations()
                if allowed:
                    keep()
        except (Unfit, Unmet):
            return None
        # A rule that this call breaks must not count against the next one.
        environment.forgive()
        return Call(tool, dict(arguments), rows) if allowed else None

    def allows(self, tool: Tool, arguments: Mapping[str, Value]) -> bool:
        """Whether a call would be carried out now and change something."""
        before = self.contents()
        with self._now.database.trial():
            return self.call(tool, arguments) is not None and self.contents() != before

    def close(self) -> None:
        """Free both databases."""
        self._now.close()
        self._then.close()


def read_toolbox(spec: EnvironmentSpec) -> LiveToolbox:
    """Raises ``EnvError``."""
    try:
        return LiveToolbox(spec)
    except Refused as error:
        raise EnvError(str(error)) from error


def plain(value: msgspec.Struct) -> JsonObject:
    """A struct as the JSON object that a table holds of it."""
    decoded: JsonObject = msgspec.json.decode(msgspec.json.encode(value))
    return decoded


def shape(*parts: object) -> str:
    """The structure digest of a task: what is asked for, by which tools, in a toolbox of which structure."""
    return digest("toolbox task", *parts)
