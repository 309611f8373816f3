"""A toolbox as data: tables, rows, tools that are parameterised SQL, and the rules of a policy.

``EnvironmentSpec.source`` is its JSON. Nothing in it is code but SQL, and that runs in the cell of
``agentmill.synthesis.environments.toolbox.database``. The first column of every table is its key, an integer that the
database gives out in order, so nothing depends on a clock or on chance.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

Value = int | str | None
Rows = dict[str, list[tuple[Value, ...]]]
"""The rows of each table, in the order of its columns."""

FINISH = "finish"
ASK_USER = "ask_user"
DECLINE = "decline"
BUILT_IN = (FINISH, ASK_USER, DECLINE)
NEW_ID = "new_id"
"""The parameter under which the key of the row that a call inserted first is known to what follows in that call."""


class ToolboxError(Exception):
    """The toolbox is broken: what is wrong, for its author."""


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """``label`` are its words in a sentence ("shipping city"); ``references`` names the table whose key it is.

    ``values`` are the only texts allowed, ``examples`` some of many; ``least`` and ``most`` bound what is drawn for a
    number, and ``least`` is kept by the database. A column is never empty unless it is ``optional``. There are no
    fractions: sums of money are whole numbers, so that equal states are equal to the bit.
    """

    name: str
    type: Literal["integer", "text"]
    label: str = ""
    references: str = ""
    values: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None
    unique: bool = False
    optional: bool = False

    @property
    def words(self) -> str:
        """How it is called in a sentence."""
        return self.label or self.name.replace("_", " ")


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A table; ``noun`` is what a row of it is called ("order")."""

    name: str
    noun: str
    columns: tuple[Column, ...]

    @property
    def key(self) -> str:
        """The name of the key."""
        return self.columns[0].name

    def column(self, name: str) -> Column:
        """Raises ``ToolboxError`` for an unknown column."""
        for column in self.columns:
            if column.name == name:
                return column
        raise ToolboxError(f"table {self.name} has no column {name!r}")


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An argument of a tool: a value as ``column`` (``"orders.status"``) holds them. Bounds go before the column's."""

    name: str
    column: str
    description: str = ""
    values: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None


class Requirement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What must hold before a call writes: ``query`` gives a first value that is true.

    Else the call is refused with ``message``, and ``hint`` says what would help. Both may name ``{parameters}``.
    """

    query: str
    message: str
    hint: str = ""


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A tool. ``writes`` are statements, ``returns`` is the query whose rows are the answer, ``columns`` says which
    column each of its fields shows (``""`` for none).

    ``request`` is how a user asks for it ("cancel {order_id}"), where each argument stands for its description.
    """

    name: str
    description: str
    returns: str
    columns: dict[str, str]
    parameters: tuple[Parameter, ...] = ()
    requires: tuple[Requirement, ...] = ()
    writes: tuple[str, ...] = ()
    request: str = ""


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A rule of the policy that the agent must keep itself: ``tool`` may be called where ``query`` gives a true value.

    ``text`` tells it in the policy document; ``query`` may use the parameters of the tool.
    """

    name: str
    tool: str
    query: str
    text: str


class Toolbox(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The whole. ``policy`` is a document that comes before the list of commands."""

    about: str
    tables: tuple[Table, ...]
    rows: Rows
    tools: tuple[Tool, ...]
    rules: tuple[Rule, ...] = ()
    policy: str = ""

    def table(self, name: str) -> Table:
        """Raises ``ToolboxError`` for an unknown table."""
        for table in self.tables:
            if table.name == name:
                return table
        raise ToolboxError(f"there is no table {name!r}")

    def tool(self, name: str) -> Tool:
        """Raises ``ToolboxError`` for an unknown tool."""
        for tool in self.tools:
            if tool.name == name:
                return tool
        raise ToolboxError(f"there is no tool {name!r}")

    def column(self, path: str) -> tuple[Table, Column]:
        """The column that ``"table.column"`` names. Raises ``ToolboxError``."""
        table, _, name = path.partition(".")
        return self.table(table), self.table(table).column(name)

    def keyed(self, path: str) -> Table | None:
        """The table whose key a column holds, as its own or as a reference; ``None`` for other columns."""
        table, column = self.column(path)
        if column.references:
            return self.table(column.references)
        return table if column.name == table.key else None

    def statements(self, tool: Tool) -> Iterator[str]:
        """All SQL of a tool, with that of the rules for it."""
        yield from (requirement.query for requirement in tool.requires)
        yield from (rule.query for rule in self.rules if rule.tool == tool.name)
        yield from tool.writes
        yield tool.returns


def read_toolbox(source: str) -> Toolbox:
    """Raises ``ToolboxError`` for what is no toolbox by its form; ``lint`` looks further."""
    try:
        return msgspec.json.decode(source, type=Toolbox)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise ToolboxError(f"this is no toolbox: {error}") from error


def write_toolbox(toolbox: Toolbox) -> str:
    """The JSON that ``read_toolbox`` reads."""
    return msgspec.json.encode(toolbox).decode()


def quoted(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"
