"""Given tools as tools of a toolbox: queries and statements over the table of their resource.

What a tool does is known from its effect alone: it shows rows where columns have values, makes a row, sets columns of a
row, takes a row away, or sets a status that is named after its verb. Whatever else a tool does cannot be expressed. A
toolbox requires every argument: optional arguments of writing tools are required, those of reading tools are left out,
but for the first that refers to another table where a tool has no other argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from agentmill.synthesis.environments.toolbox.toolbox import Column, Parameter, Requirement, Table, Tool, quoted
from agentmill.synthesis.generators.tool_graph.given_tools import ToolError
from agentmill.synthesis.generators.tool_graph.naming import safe
from agentmill.synthesis.generators.tool_graph.resources import Part, Understood
from agentmill.synthesis.generators.tool_graph.tables import Sheet
from agentmill.synthesis.generators.toolbox_procedural.draft import requires

MOST_DESCRIPTION = 400
"""Characters of a description that are kept."""


class Argument(msgspec.Struct, frozen=True):
    """An argument with the column that holds it; ``in_path`` one of the address, which is no new value."""

    name: str
    column: Column
    in_path: bool
    required: bool


class Made(msgspec.Struct, frozen=True):
    """A tool of a toolbox, with the arguments that it lacks, those that it requires though they were optional, and its
    names that differ from those given."""

    tool: Tool
    left_out: tuple[str, ...] = ()
    now_required: tuple[str, ...] = ()
    renamed: Mapping[str, str] = {}


def make_tool(given: Understood, sheets: Mapping[str, Sheet]) -> Made:
    """The tool in a toolbox with the tables of ``sheets``, by noun. Raises ``ToolError`` if it cannot be expressed."""
    sheet = sheets[given.noun]
    held, left_out = _arguments(given, sheet)
    table = sheet.table
    keys = [each for each in held if each.column.name == table.key]
    values = [each for each in held if each.column.name != table.key]
    builder = _Builder(given, sheet, sheets)
    match given.effect:
        case "read":
            used, tool = builder.read(held)
        case "create":
            used, tool = builder.create([each for each in values if not keys])
        case "change":
            used, tool = builder.change(_one_key(keys, table), values)
        case "remove":
            used, tool = builder.remove(_one_key(keys, table), [each for each in values if each.in_path])
        case _:
            used, tool = builder.step(_one_key(keys, table), values)
    missing = [each.name for each in held if each not in used]
    needed = [each.name for each in held if each.required and each not in used]
    if needed:
        raise ToolError("unknown_argument", f"what its argument {needed[0]} does to {table.name} is not known")
    kept = {*tool.columns, *(each.name for each in used)}
    fields = [part.field.name for part in (*given.arguments, *(given.result or ())) if safe(part.field.name) in kept]
    named = {given.tool.name: tool.name, **{name: safe(name) for name in fields}}
    return Made(
        tool,
        left_out=(*given.tool.left_out, *left_out, *missing),
        now_required=tuple(each.name for each in used if not each.required),
        renamed={old: new for old, new in named.items() if old != new},
    )


def _arguments(given: Understood, sheet: Sheet) -> tuple[list[Argument], list[str]]:
    """The arguments with their columns, and the optional ones that have none. Raises ``ToolError``."""
    held: list[Argument] = []
    left_out: list[str] = []
    for part in given.arguments:
        column = sheet.find(part)
        if column is None or part not in given.kept:
            if part.field.required:
                raise _unfit(part, sheet.table)
            left_out.append(part.field.name)
            continue
        held.append(Argument(safe(part.field.name), column, part.field.in_path, part.field.required))
    for what in ({each.name for each in held}, {each.column.name for each in held}):
        if len(what) < len(held):
            raise ToolError("name_twice", "two of its arguments have one name, or one column")
    return held, left_out


def _unfit(part: Part, table: Table) -> ToolError:
    if not part.is_value:
        return ToolError("nested_argument", f"its argument {part.field.name} is an object, a list or a choice of types")
    return ToolError("unknown_argument", f"no column of {table.name} holds its argument {part.field.name}")


def _one_key(keys: Sequence[Argument], table: Table) -> Argument:
    if not keys:
        raise ToolError("no_key", f"no argument identifies the {table.noun} that it is about")
    return keys[0]


class _Builder:
    """Makes the one tool; each method gives the arguments that it uses, too."""

    def __init__(self, given: Understood, sheet: Sheet, sheets: Mapping[str, Sheet]) -> None:
        self._given = given
        self._sheet = sheet
        self._table = sheet.table
        self._tables = {each.table.name: each.table for each in sheets.values()}
        self._name = safe(given.tool.name)

    def read(self, held: Sequence[Argument]) -> tuple[list[Argument], Tool]:
        used = [each for each in held if each.required]
        if not used:
            used = [each for each in held if each.column.references][:1]
        if self._given.result == ():
            raise ToolError("no_row", "its result is no row of a table")
        where = " AND ".join(f"{each.column.name} = :{each.name}" for each in used) or "1"
        return used, self._tool(used, returns=self._shown(where), needs=self._existing(used))

    def create(self, values: Sequence[Argument]) -> tuple[list[Argument], Tool]:
        used = list(values)
        if not used:
            raise ToolError("no_argument", f"it gives a new {self._table.noun} no value, or the key")
        given = {each.column.name: f":{each.name}" for each in used}
        # A row begins with the first of the values that it is not given, such as its status.
        first = {
            column.name: quoted(column.values[0])
            for column in self._table.columns
            if column.values and column.name not in given
        }
        names, fields = ", ".join([*given, *first]), ", ".join([*given.values(), *first.values()])
        owners = [f"{{{each.name}}}" for each in used if each.column.references]
        details = [f"{each.column.words} {{{each.name}}}" for each in used if not each.column.references]
        owned = f" of {' and '.join(owners)}" if owners else ""
        detailed = f" with {' and '.join(details)}" if details else ""
        return used, self._tool(
            used,
            writes=[f"INSERT INTO {self._table.name} ({names}) VALUES ({fields})"],
            returns=self._shown(f"{self._table.key} = :new_id"),
            needs=self._existing(used),
            request=f"make a new {self._table.noun}{owned}{detailed}",
        )

    def change(self, key: Argument, values: Sequence[Argument]) -> tuple[list[Argument], Tool]:
        scope = [each for each in values if each.in_path]
        new = [each for each in values if not each.in_path]
        if all(len(each.column.values) == 1 for each in new):
            raise ToolError("unknown_effect", f"nothing tells which columns of {self._table.name} it changes")
        differs = " OR ".join(f"({each.column.name} IS NOT :{each.name})" for each in new)
        stays = f"{self._table.noun} {{{key.name}}} is so already"
        wanted = " and ".join(f"the {each.column.words} to {{{each.name}}}" for each in new)
        return [key, *scope, *new], self._tool(
            [key, *scope, *new],
            writes=[self._update(key, [f"{each.column.name} = :{each.name}" for each in new])],
            returns=self._shown(self._at(key)),
            needs=[*self._existing([key, *new]), *self._scoped(key, scope), self._must(key, differs, stays)],
            request=f"set {wanted} for {{{key.name}}}{_scope_words(scope)}",
        )

    def step(self, key: Argument, values: Sequence[Argument]) -> tuple[list[Argument], Tool]:
        column, after = self._status()
        scope = [each for each in values if each.in_path]
        new = [each for each in values if not each.in_path and each.column.name != column.name]
        sets = [f"{column.name} = {quoted(after)}", *(f"{each.column.name} = :{each.name}" for each in new)]
        details = " and ".join(f"{each.column.words} {{{each.name}}}" for each in new)
        verb = self._given.verb.replace("_", " ")
        stays = f"the {column.words} of {self._table.noun} {{{key.name}}} is {after} already"
        return [key, *scope, *new], self._tool(
            [key, *scope, *new],
            writes=[self._update(key, sets)],
            returns=self._shown(self._at(key)),
            needs=[
                *self._existing([key, *new]),
                *self._scoped(key, scope),
                self._must(key, f"{column.name} <> {quoted(after)}", stays),
            ],
            request=f"{verb} {{{key.name}}}{_scope_words(scope)}{f' with {details}' if details else ''}",
        )

    def remove(self, key: Argument, scope: Sequence[Argument]) -> tuple[list[Argument], Tool]:
        children = [
            Requirement(
                query=f"SELECT count(*) = 0 FROM {child.name} WHERE {column.name} = :{key.name}",
                message=f"some of {child.name} refer to {self._table.noun} {{{key.name}}}",
                hint="only what nothing refers to can be removed",
            )
            for child in self._tables.values()
            for column in child.columns
            if column.references == self._table.name
        ]
        count = safe(f"number_of_{self._table.name}")
        return [key, *scope], self._tool(
            [key, *scope],
            writes=[f"DELETE FROM {self._table.name} WHERE {self._at(key)}"],
            returns=f"SELECT count(*) AS {count} FROM {self._table.name}",
            columns={count: ""},
            needs=[*self._existing([key]), *self._scoped(key, scope), *children],
            request=f"remove {{{key.name}}}{_scope_words(scope)}",
        )

    def _tool(
        self,
        used: Sequence[Argument],
        *,
        returns: str,
        needs: Iterable[Requirement] = (),
        writes: Sequence[str] = (),
        columns: dict[str, str] | None = None,
        request: str = "",
    ) -> Tool:
        given = " ".join(self._given.tool.description.split())
        return Tool(
            name=self._name,
            description=given[:MOST_DESCRIPTION] or f"{self._name.replace('_', ' ').capitalize()}.",
            returns=returns,
            columns=self._fields() if columns is None else columns,
            parameters=tuple(self._parameter(each) for each in used),
            requires=tuple(needs),
            writes=tuple(writes),
            request=request,
        )

    def _parameter(self, argument: Argument) -> Parameter:
        column = argument.column
        return Parameter(
            name=argument.name,
            column=f"{self._table.name}.{column.name}",
            description=f"number of the {column.words}" if column.references else "",
        )

    def _fields(self) -> dict[str, str]:
        """The fields of the answer, by the names that the result gives them; all columns where it tells none."""
        shown: dict[str, str] = {}
        for part in self._given.result or ():
            column = self._sheet.find(part)
            if column is not None and part.is_value and column.name not in shown.values():
                shown.setdefault(safe(part.field.name), column.name)
        if self._given.assumed or not shown:
            shown = {column.name: column.name for column in self._table.columns}
        elif self._table.key not in shown.values():
            shown = {self._table.key: self._table.key, **shown}
        return {name: f"{self._table.name}.{column}" for name, column in shown.items()}

    def _shown(self, where: str) -> str:
        fields = [(path.partition(".")[2], name) for name, path in self._fields().items()]
        listed = ", ".join(column if column == name else f"{column} AS {name}" for column, name in fields)
        return f"SELECT {listed} FROM {self._table.name} WHERE {where} ORDER BY {self._table.key}"

    def _at(self, key: Argument) -> str:
        return f"{self._table.key} = :{key.name}"

    def _update(self, key: Argument, sets: Sequence[str]) -> str:
        return f"UPDATE {self._table.name} SET {', '.join(sets)} WHERE {self._at(key)}"

    def _must(self, key: Argument, condition: str, message: str) -> Requirement:
        query = f"SELECT {condition} FROM {self._table.name} WHERE {self._at(key)}"
        return Requirement(query=query, message=message, hint="nothing is left to do here")

    def _scoped(self, key: Argument, scope: Iterable[Argument]) -> list[Requirement]:
        """That the row belongs to what the address names before it."""
        return [
            Requirement(
                query=f"SELECT {each.column.name} = :{each.name} FROM {self._table.name} WHERE {self._at(key)}",
                message=f"{self._table.noun} {{{key.name}}} has another {each.column.words} than {{{each.name}}}",
                hint=f"look the {self._table.noun} up",
            )
            for each in scope
        ]

    def _existing(self, used: Iterable[Argument]) -> list[Requirement]:
        found = []
        for each in used:
            owner = self._table if each.column.name == self._table.key else self._tables.get(each.column.references)
            if owner is not None:
                words = {"noun": owner.noun, "nouns": owner.name.replace("_", " ")}
                found.append(
                    requires("exists", {**words, "table": owner.name, "key": owner.key, "parameter": each.name})
                )
        return found

    def _status(self) -> tuple[Column, str]:
        """The column and the value that a step leads to. Raises ``ToolError`` if none is named after its verb."""
        verb = self._given.verb
        for column in self._table.columns:
            for value in column.values if len(column.values) > 1 else ():
                if _is_form(safe(value), verb):
                    return column, value
        detail = f"no value of {self._table.name} is named after {verb.replace('_', ' ')}, so its effect is not known"
        raise ToolError("unknown_effect", detail)


def _is_form(value: str, verb: str) -> bool:
    """Whether a value is a verb or its past: ``cancel``, ``cancelled``; ``check_in``, ``checked_in``."""
    first, _, more = verb.partition("_")
    past = [first, f"{first}d", f"{first}ed", f"{first}{first[-1]}ed", f"{first.removesuffix('y')}ied"]
    return value in [f"{each}_{more}" if more else each for each in past]


def _scope_words(scope: Iterable[Argument]) -> str:
    return "".join(f" of {{{each.name}}}" for each in scope)
