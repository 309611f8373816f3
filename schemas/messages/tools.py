"""The tools of a record: OpenAI function schemas, bare ones, or JSON text of either."""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from agentmill.schemas.chat import to_functions
from agentmill.schemas.format import Losses
from agentmill.schemas.messages.surface_text import Spelling, dumped, spelled, spelling_of
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Tool

_SCHEMAS = ("parameters", "input_schema", "inputSchema")
"""Names of a tool's JSON Schema: OpenAI's, Anthropic's, MCP's."""


def read_tool(declaration: Any) -> Tool | None:
    """The tool, or ``None`` where ``declaration`` names none. A tool without a schema has the empty one."""
    if not isinstance(declaration, dict):
        return None
    function = declaration.get("function", declaration)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return None
    description, strict = function.get("description"), function.get("strict")
    schema: JsonObject = next((function[name] for name in _SCHEMAS if isinstance(function.get(name), dict)), {})
    return Tool(
        name=function["name"],
        parameters=schema,
        description=description if isinstance(description, str) else None,
        strict=strict if isinstance(strict, bool) else None,
    )


UNREAD = "tools.unread"
"""What counts declarations that name no function."""

Note = JsonObject
"""How tools are spelled: ``spelling`` (text or not), ``flat`` (bare functions), or all of it as it was ``given``."""


def read_tools(given: Any, spelling: Spelling) -> tuple[list[Tool], Note, Losses]:
    """The tools in ``given``, a note if they are not spelled in the plain way (as ``spelling``), and what was dropped.

    Where one is no function, or nested too deeply, all are noted as they are, and it is counted as dropped. Where a
    table has filled schemas with nulls (every tool has the parameters of all others, null), the nulls are dropped:
    they make the schemas false.
    """
    if given is None:
        return [], {}, Losses()
    if given in ("", "null"):
        return [], {"given": given}, Losses()
    try:
        tools, note, losses = _read_text(given, spelling) if isinstance(given, str) else _read(given, given, spelling)
    except RecursionError:
        return [], {"given": given}, Losses({UNREAD: 1})
    # Copies: what is cached is shared by all records with these tools.
    return list(tools), note, Losses(losses)


def write_tools(tools: list[Tool], note: Note, spelling: Spelling) -> Any:
    """Tools as ``read_tools`` found them; ``None`` if there are none."""
    if "given" in note:
        return note["given"]
    if not tools and not note:
        return None
    functions = to_functions(tools)
    value = [function["function"] for function in functions] if note.get("flat") else functions
    return spelled(value, note.get("spelling", spelling))


@functools.lru_cache(maxsize=1024)
def _read_text(given: str, spelling: Spelling) -> tuple[list[Tool], Note, Losses]:
    """Cached: records of one dataset mostly share their tools."""
    try:
        return _read(given, msgspec.json.decode(given), spelling)
    except (msgspec.DecodeError, RecursionError):
        return [], {"given": given}, Losses({UNREAD: 1})


def _read(given: Any, value: Any, spelling: Spelling) -> tuple[list[Tool], Note, Losses]:
    losses = Losses()
    if isinstance(value, list) and _is_filled(value):
        losses["tools.null"] = _nulls(value)
        value = _without_nulls(value)
        given = value if not isinstance(given, str) else dumped(value, "compact")
    found = [read_tool(each) for each in value] if isinstance(value, list) else [None]
    tools = [tool for tool in found if tool is not None]
    if len(tools) < len(found):
        losses[UNREAD] = len(found) - len(tools)
        return tools, {"given": given}, losses
    note: Note = {"flat": True} if any("function" not in each for each in value) else {}
    way = spelling_of(given, value)
    if way != spelling or not tools:
        note["spelling"] = way
    # Tools may have fields that ours lack; then they are kept whole, and written as they were.
    if way is None or write_tools(tools, note, spelling) != given:
        note = {"given": given}
    return tools, note, losses


def _is_filled(value: Any) -> bool:
    """Whether a null is in ``value`` where JSON Schema allows none: for the schema of a property, or a keyword."""
    if isinstance(value, list):
        return any(map(_is_filled, value))
    if not isinstance(value, dict):
        return False
    properties = value.get("properties")
    if isinstance(properties, dict) and None in properties.values():
        return True
    # Under these keywords null is a value like any other.
    return any(_is_filled(inner) for name, inner in value.items() if name not in ("default", "enum", "const"))


def _nulls(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_nulls, value))
    if isinstance(value, dict):
        return sum(1 if inner is None else _nulls(inner) for inner in value.values())
    return 0


def _without_nulls(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return value
