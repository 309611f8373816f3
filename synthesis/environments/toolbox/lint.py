"""What is wrong with a toolbox that can be known before a tool is called."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from agentmill.synthesis.environments.toolbox.database import Database, Refused
from agentmill.synthesis.environments.toolbox.toolbox import (
    BUILT_IN,
    NEW_ID,
    Column,
    Table,
    Tool,
    Toolbox,
    ToolboxError,
)

_IDENTIFIER = re.compile(r"[a-z][a-z0-9_]{0,59}")
_SQL_WORDS = ("order", "group", "table", "select", "from", "where", "index", "values", "set", "to", "in", "is", "on")
_MORE_SQL_WORDS = ("as", "by", "check", "limit", "default", "references", "and", "or", "not", "null", "join", "into")


def lint(toolbox: Toolbox) -> Iterator[tuple[str, list[str]]]:
    """Checks and the defects that each found, in order; what follows one with defects must not be asked for."""
    yield "tables", _tables(toolbox)
    yield "tools", _tools(toolbox)
    try:
        database = Database(toolbox)
    except ToolboxError as error:
        yield "rows", [str(error)]
        return
    yield "rows", [f"table {table.name} has no rows" for table in toolbox.tables if not toolbox.rows.get(table.name)]
    forbidden, faulty = _sql(toolbox, database)
    yield "forbidden_sql", forbidden
    yield "sql", faulty
    yield "result_columns", [defect for tool in toolbox.tools for defect in _columns(tool, database)]
    database.close()
    yield "unused_table", _unused(toolbox)


def is_name(name: str) -> bool:
    """Whether tables, columns, tools and arguments may have that name."""
    return bool(_IDENTIFIER.fullmatch(name)) and name not in (*_SQL_WORDS, *_MORE_SQL_WORDS, NEW_ID)


def _tables(toolbox: Toolbox) -> list[str]:
    defects = [f"two tables are called {name}" for name in _twice(table.name for table in toolbox.tables)]
    empty = [f"table {table.name} has no columns" for table in toolbox.tables if not table.columns]
    if empty:
        return empty
    names = {table.name for table in toolbox.tables}
    defects += [f"there are rows of {name}, which is no table" for name in toolbox.rows if name not in names]
    for table in toolbox.tables:
        defects += _names(f"table {table.name!r}", [table.name])
        defects += _names(f"a column of {table.name}", [column.name for column in table.columns])
        if table.columns[0].type != "integer" or table.columns[0].references:
            defects.append(f"the first column of {table.name} must be its key, an integer of its own")
        for column in table.columns[1:]:
            defects += _column(toolbox, table, column, names)
        width = len(table.columns)
        if any(len(row) != width for row in toolbox.rows.get(table.name, ())):
            defects.append(f"every row of {table.name} must have {width} values, one per column")
    return defects


def _column(toolbox: Toolbox, table: Table, column: Column, names: set[str]) -> list[str]:
    defects = []
    if column.references and (column.references not in names or column.type != "integer"):
        defects.append(f"{table.name}.{column.name} must be an integer and refer to one of the tables")
    if column.references in names and column.name != toolbox.table(column.references).key:
        key = toolbox.table(column.references).key
        if not column.name.endswith(f"_{key}"):
            defects.append(f"{table.name}.{column.name} refers to {column.references}: call it {key}")
    if column.values and column.type != "text":
        defects.append(f"{table.name}.{column.name} has values to choose from, so it must be a text")
    return defects


def _tools(toolbox: Toolbox) -> list[str]:
    defects = [f"two tools are called {name}" for name in _twice(tool.name for tool in toolbox.tools)]
    for tool in toolbox.tools:
        defects += _names(f"tool {tool.name!r}", [tool.name])
        defects += [f"{tool.name} is a tool that every toolbox has; choose another name"] * (tool.name in BUILT_IN)
        defects += _names(f"an argument of {tool.name}", [parameter.name for parameter in tool.parameters])
        paths = [parameter.column for parameter in tool.parameters] + [path for path in tool.columns.values() if path]
        defects += _unknown(tool.name, toolbox.column, paths)
        known = {parameter.name for parameter in tool.parameters}
        texts = [tool.request, *(text for each in tool.requires for text in (each.message, each.hint))]
        placeholders = {name for text in texts for name in re.findall(r"{(\w*)}", text)}
        defects += [
            f"a text of {tool.name} names {{{name}}}, which is no argument" for name in sorted(placeholders - known)
        ]
        if tool.writes and tool.request and not known <= set(re.findall(r"{(\w+)}", tool.request)):
            defects.append(f"the request of {tool.name} must name every argument, so that a user says all of them")
        if not tool.description.strip():
            defects.append(f"tool {tool.name} has no description")
    defects += _unknown("a rule", toolbox.tool, [rule.tool for rule in toolbox.rules])
    return defects


def _sql(toolbox: Toolbox, database: Database) -> tuple[list[str], list[str]]:
    """What may not be done, and what cannot be read."""
    forbidden: list[str] = []
    faulty: list[str] = []
    for tool in toolbox.tools:
        bound = _bound(tool)
        for statement in toolbox.statements(tool):
            reading = statement not in tool.writes
            if reading != statement.lstrip()[:6].upper().startswith("SELECT"):
                faulty.append(f"{tool.name}: {'a query must begin with SELECT' if reading else 'a write with SELECT'}")
                continue
            try:
                database.compile(statement, bound)
            except Refused as error:
                denied = re.search("not authorized|prohibited|access to", str(error))
                (forbidden if denied else faulty).append(f"{tool.name}: {error} (in: {statement[:120]})")
    return forbidden, faulty


def _bound(tool: Tool) -> dict[str, None]:
    """The names that the SQL of a tool may use: its parameters, and the key of the row that it inserts."""
    inserts = any(write.lstrip()[:6].upper() == "INSERT" for write in tool.writes)
    return dict.fromkeys([*(parameter.name for parameter in tool.parameters), *([NEW_ID] if inserts else [])])


def _columns(tool: Tool, database: Database) -> list[str]:
    try:
        names = database.fields(tool.returns, _bound(tool))
    except Refused as error:
        return [f"{tool.name} cannot answer: {error}"]
    if len(set(names)) != len(names):
        return [f"{tool.name} gives two fields the same name: {', '.join(names)}"]
    if set(names) == set(tool.columns):
        return []
    return [f"{tool.name} gives the fields {', '.join(names)}, but `columns` has {', '.join(tool.columns) or 'none'}"]


def _unused(toolbox: Toolbox) -> list[str]:
    used = " ".join(statement for tool in toolbox.tools for statement in toolbox.statements(tool))
    words = set(re.findall(r"\w+", used))
    for table in reversed(toolbox.tables):
        words |= {column.references for column in table.columns} if table.name in words else set()
    return [f"no tool uses table {table.name}" for table in toolbox.tables if table.name not in words]


def _names(what: str, names: list[str]) -> list[str]:
    defects = [
        f"{what}: {name!r} is no name (small letters, digits and _; no word of SQL)"
        for name in names
        if not is_name(name)
    ]
    return defects + [f"{what}: {name!r} is there twice" for name in _twice(names)]


def _unknown(what: str, find: Callable[[str], object], names: Iterable[str]) -> list[str]:
    defects = []
    for name in names:
        try:
            find(name)
        except ToolboxError as error:
            defects.append(f"{what}: {error}")
    return defects


def _twice(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
