"""Tools that are easily mistaken for others, after DiaFORGE, and tools that have nothing to do with
the matter. Only what is written of them tells them apart."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import msgspec

from agentmill.synthesis.environments.toolbox.toolbox import Column, Table, Tool, Toolbox
from agentmill.synthesis.generators.toolbox_procedural.generator import compose
from agentmill.synthesis.generators.toolbox_procedural.vocabulary import THEMES

FILED = Table(
    name="filed_requests",
    noun="filed request",
    columns=(Column(name="filed_request_id", type="integer"), Column(name="about", type="text")),
)
DEPRECATED = "_v1"
TRIES = 40


def preview(_: Toolbox, tool: Tool) -> Tool:
    """Looks whether the call would be possible, and does nothing."""
    return msgspec.structs.replace(
        tool,
        name=f"preview_{tool.name}",
        description=f"Tells whether this would be possible, without doing it: {tool.description}",
        writes=(),
        returns="SELECT 'possible' AS result",
        columns={"result": ""},
        request="",
    )


def deprecated(_: Toolbox, tool: Tool) -> Tool:
    """Does the same, and is not to be used."""
    described = f"Out of use, kept for old systems only; never call it. {tool.description}"
    return msgspec.structs.replace(tool, name=f"{tool.name}{DEPRECATED}", description=described, request="")


def filed(_: Toolbox, tool: Tool) -> Tool:
    """Writes down that somebody else should do it."""
    return msgspec.structs.replace(
        tool,
        name=f"request_{tool.name}",
        description=f"Files a request to the head office, which decides later. The request is: {tool.description}",
        writes=(f"INSERT INTO {FILED.name} (about) VALUES ('{tool.name}')",),
        returns=f"SELECT filed_request_id, about FROM {FILED.name} WHERE filed_request_id = :new_id",
        columns={"filed_request_id": f"{FILED.name}.filed_request_id", "about": f"{FILED.name}.about"},
        request="",
    )


KINDS: tuple[Callable[[Toolbox, Tool], Tool], ...] = (preview, deprecated, filed)


def with_twins(toolbox: Toolbox, n: int, chance: random.Random) -> tuple[Toolbox, dict[str, list[str]]]:
    """``toolbox`` with a twin of ``n`` of its writing tools, or of all it has; and the twins by the tool."""
    writes = [tool for tool in toolbox.tools if tool.writes and tool.request]
    chosen = {tool.name for tool in chance.sample(writes, min(n, len(writes)))}
    tools: list[Tool] = []
    twins: dict[str, list[str]] = {}
    filing = False
    for tool in toolbox.tools:
        tools.append(tool)
        if tool.name in chosen:
            kind = chance.choice(KINDS)
            filing = filing or kind is filed
            twin = kind(toolbox, tool)
            tools.insert(len(tools) - chance.randint(0, 1), twin)
            twins[tool.name] = [twin.name]
    tables = (*toolbox.tables, FILED) if filing else toolbox.tables
    rows = {**toolbox.rows, FILED.name: [(1, "opening of the desk")]} if filing else toolbox.rows
    return msgspec.structs.replace(toolbox, tables=tables, rows=rows, tools=tuple(tools)), twins


def with_distractors(toolbox: Toolbox, n: int, chance: random.Random) -> Toolbox:
    """``toolbox`` with up to ``n`` tools of an invented one that shares no name with it, and the tables of these."""
    taken = {table.name for table in toolbox.tables} | {tool.name for tool in toolbox.tools}
    for _ in range(TRIES):
        other, _ = compose(chance.choice(THEMES), chance)
        tools = _connected(other, n)
        tables = _needed(other, tools)
        if taken & ({table.name for table in tables} | {tool.name for tool in tools}):
            continue
        mixed = [*toolbox.tools, *(msgspec.structs.replace(tool, request="") for tool in tools)]
        chance.shuffle(mixed)
        rows = toolbox.rows | {table.name: other.rows[table.name] for table in tables}
        return msgspec.structs.replace(toolbox, tables=(*toolbox.tables, *tables), rows=rows, tools=tuple(mixed))
    return toolbox


def _connected(toolbox: Toolbox, n: int) -> list[Tool]:
    """The first tools whose keys are shown by one another."""
    shown: set[str] = set()
    chosen: list[Tool] = []
    while len(chosen) < n:
        usable = [tool for tool in toolbox.tools if tool not in chosen and _owners(toolbox, tool) <= shown]
        if not usable:
            break
        chosen.append(usable[-1] if len(chosen) % 2 else usable[0])
        paths = [path for path in chosen[-1].columns.values() if path]
        shown |= {owner.name for path in paths if (owner := toolbox.keyed(path)) is not None}
    return chosen


def _owners(toolbox: Toolbox, tool: Tool) -> set[str]:
    owners = [toolbox.keyed(parameter.column) for parameter in tool.parameters]
    return {owner.name for owner in owners if owner is not None}


def _needed(toolbox: Toolbox, tools: list[Tool]) -> list[Table]:
    """The tables that tools use, and those that these refer to."""
    words = {word for tool in tools for text in toolbox.statements(tool) for word in re.findall(r"\w+", text)}
    words |= {path.partition(".")[0] for tool in tools for path in tool.columns.values()}
    for table in reversed(toolbox.tables):  # a table refers to earlier ones only
        if table.name in words:
            words |= {column.references for column in table.columns}
    return [table for table in toolbox.tables if table.name in words]
