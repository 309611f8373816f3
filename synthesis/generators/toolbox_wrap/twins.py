"""Tools that are easily mistaken for others, after DiaFORGE, and tools that have nothing to do with
the matter. Only what is written of them tells them apart."""

from __future__ import annotations

import random
import re
from functools import cache
from string import Template

import msgspec

from agentmill.synthesis.environments.toolbox.toolbox import Column, Table, Tool, Toolbox
from agentmill.synthesis.generators.data_files import convert, read_table
from agentmill.synthesis.generators.toolbox_procedural.generator import compose
from agentmill.synthesis.generators.toolbox_procedural.vocabulary import themes

FILED = Table(
    name="filed_requests",
    noun="filed request",
    columns=(Column(name="filed_request_id", type="integer"), Column(name="about", type="text")),
)
TRIES = 40


class Twin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a twin differs from its tool; without ``returns`` it does and answers the same."""

    name: str
    description: str
    writes: tuple[str, ...] = ()
    returns: str = ""
    columns: dict[str, str] = {}

    def of(self, tool: Tool) -> Tool:
        """The twin of a tool; no user asks for it."""
        words = {"tool": tool.name, "description": tool.description}
        twin = msgspec.structs.replace(
            tool,
            name=Template(self.name).substitute(words),
            description=Template(self.description).substitute(words),
            request="",
        )
        if not self.returns:
            return twin
        writes = tuple(Template(statement).substitute(words) for statement in self.writes)
        return msgspec.structs.replace(twin, writes=writes, returns=self.returns, columns=self.columns)


@cache
def twin_kinds() -> dict[str, Twin]:
    """One that only looks whether a call is possible, one that is out of use, one that asks somebody else."""
    return convert(read_table(__package__, "twins.yaml"), dict[str, Twin], f"{__package__}/data/twins.yaml")


def is_retired(name: str) -> bool:
    """Whether a tool of that name is a twin that is out of use."""
    return name.endswith(twin_kinds()["deprecated"].name.removeprefix("${tool}"))


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
            kind = chance.choice(list(twin_kinds()))
            filing = filing or kind == "filed"
            twin = twin_kinds()[kind].of(tool)
            # Before or behind its tool, so that the place does not give the right one away.
            tools.insert(len(tools) - chance.randint(0, 1), twin)
            twins[tool.name] = [twin.name]
    tables = (*toolbox.tables, FILED) if filing else toolbox.tables
    rows = {**toolbox.rows, FILED.name: [(1, "opening of the desk")]} if filing else toolbox.rows
    return msgspec.structs.replace(toolbox, tables=tables, rows=rows, tools=tuple(tools)), twins


def with_distractors(toolbox: Toolbox, n: int, chance: random.Random) -> Toolbox:
    """``toolbox`` with up to ``n`` tools of an invented one that shares no name with it, and the tables of these."""
    taken = {table.name for table in toolbox.tables} | {tool.name for tool in toolbox.tools}
    for _ in range(TRIES):
        other, _ = compose(chance.choice(themes()), chance)
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
