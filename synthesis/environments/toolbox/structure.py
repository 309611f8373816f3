"""Digests of toolboxes that are equal up to renaming and reordering; rows and wording do not count."""

from __future__ import annotations

import re

from agentmill.synthesis.environments.pddl.structure import Structure
from agentmill.synthesis.environments.toolbox.database import FUNCTIONS
from agentmill.synthesis.environments.toolbox.toolbox import NEW_ID, Tool, Toolbox

SQL_TOKEN = re.compile(r"'(?:[^']|'')*'|\d+|:?\w+|[^\s\w]")
"""A piece of SQL: a text, a number, a parameter with its colon, a name or a keyword, a sign."""
_WORD = re.compile(r"[^\W\d]\w*")
_DEFAULT_COUNT = "some"
_KEYWORDS = (
    "select insert update delete into values set from where and or not null is in as on join left right full inner "
    "outer cross natural using order by group having limit offset asc desc distinct all union except intersect case "
    "when then else end like glob between exists escape collate nocase cast integer text replace abort fail ignore "
    "default returning conflict do nothing nulls first last over partition"
)
SQL_WORDS = frozenset(_KEYWORDS.split())
"""The keywords of statements that a tool may hold, in small letters."""


def toolbox_structure(toolbox: Toolbox) -> str:
    """Digest of tables, columns with their kinds and references, and of the tools with their SQL.

    In SQL, names of tables, columns, parameters, fields and aliases and texts are nodes, what stands between them is
    the label.
    """
    structure = Structure()
    for table in toolbox.tables:
        structure.node(("table", table.name), "table")
    columns = set()
    for table in toolbox.tables:
        for column in table.columns:
            columns.add(column.name)
            node = ("column", table.name, column.name)
            kind = "key" if column.name == table.key else column.type
            choice = len(column.values) or _DEFAULT_COUNT
            structure.node(node, f"column {kind} {choice} {column.unique} {column.optional} {column.least is None}")
            structure.fact("column of", node, ("table", table.name))
            structure.fact("named", node, _named(structure, ("name", column.name)))
            if column.references:
                structure.fact("refers to", node, ("table", column.references))
    tables = {table.name for table in toolbox.tables}
    for tool in toolbox.tools:
        _tool(structure, toolbox, tool, tables, columns)
    return structure.digest()


def _tool(structure: Structure, toolbox: Toolbox, tool: Tool, tables: set[str], columns: set[str]) -> None:
    here = ("tool", tool.name)
    structure.node(here, "tool")
    for parameter in tool.parameters:
        table, column = toolbox.column(parameter.column)
        structure.node((*here, parameter.name), "parameter")
        structure.fact("parameter", (*here, parameter.name), here, ("column", table.name, column.name))
    parts = [*(("requires", each.query) for each in tool.requires), *(("writes", each) for each in tool.writes)]
    parts += [("rule", rule.query) for rule in toolbox.rules if rule.tool == tool.name]
    for kind, statement in [*parts, ("returns", tool.returns)]:
        _statement(structure, here, kind, statement, tables, columns)


def _statement(
    structure: Structure, here: tuple[str, str], kind: str, statement: str, tables: set[str], columns: set[str]
) -> None:
    shape, nodes = [], []
    for token in SQL_TOKEN.findall(statement):
        name = token.removeprefix(":")
        node: tuple[str, ...]
        if token.startswith(":"):
            node = (*here, name)
            _named(structure, node, "new key" if name == NEW_ID else "parameter")
        elif token in tables:
            node = ("table", token)
        elif token in columns:
            node = ("name", token)
        elif token.startswith("'"):
            node = _named(structure, ("text", token), "text")
        elif _WORD.fullmatch(token) and token.lower() not in SQL_WORDS | FUNCTIONS:
            node = _named(structure, (*here, "alias", token.lower()), "alias")
        else:
            shape.append(token.upper())
            continue
        shape.append("?")
        nodes.append(node)
    structure.fact(f"{kind} {' '.join(shape)}", here, *nodes)


def _named(structure: Structure, node: tuple[str, ...], label: str = "name") -> tuple[str, ...]:
    structure.node(node, label)
    return node
