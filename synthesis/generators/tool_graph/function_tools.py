"""Lists of function tools: of OpenAI's style, of MCP's ``tools/list``, or plain JSON Schemas with a title."""

from __future__ import annotations

from typing import Any

from agentmill.synthesis.generators.tool_graph.given_tools import Field, GivenTool, Specification, ToolError, Unusable
from agentmill.synthesis.generators.tool_graph.json_schema import SchemaReader

_ARGUMENTS = ("parameters", "inputSchema", "input_schema", "arguments")
_RESULTS = ("outputSchema", "output_schema", "returns", "response")


def function_list(document: Any) -> list[Any] | None:
    """The tools in a document; ``None`` where it is no list of tools, and no tool."""
    if isinstance(document, list):
        return document
    if not isinstance(document, dict):
        return None
    for key in ("tools", "functions"):
        if isinstance(document.get(key), list):
            return list(document[key])
    if isinstance(document.get("result"), dict):  # the whole response to ``tools/list``
        return function_list(document["result"])
    return [document] if _is_tool(document) else None


def _is_tool(entry: dict[str, Any]) -> bool:
    named = isinstance(entry.get("name"), str) and any(key in entry for key in (*_ARGUMENTS, "description"))
    titled = isinstance(entry.get("title"), str) and "properties" in entry
    return named or titled or isinstance(entry.get("function"), dict)


def read_functions(entries: list[Any], source: str, about: str = "") -> Specification:
    """The tools of a list; those that cannot be read are ``unusable``."""
    tools: list[GivenTool] = []
    unusable: list[Unusable] = []
    for number, entry in enumerate(entries, 1):
        name = _name_of(entry)
        tool_id = f"{source}/{name or number}"
        try:
            if not isinstance(entry, dict) or name is None:
                raise ToolError("malformed", f"entry {number} is no tool: it has no name")
            tools.append(_tool(entry, name, tool_id))
        except ToolError as error:
            unusable.append(Unusable(tool_id, error.reason, error.detail))
    return Specification(about, tuple(tools), tuple(unusable))


def _inner(entry: Any) -> dict[str, Any]:
    inner = entry.get("function", entry) if isinstance(entry, dict) else {}
    return inner if isinstance(inner, dict) else {}


def _name_of(entry: Any) -> str | None:
    inner = _inner(entry)
    name = inner.get("name", inner.get("title") if "properties" in inner else None)
    return name if isinstance(name, str) and name.strip() else None


def _tool(entry: dict[str, Any], name: str, tool_id: str) -> GivenTool:
    inner = _inner(entry)
    schema = next((inner[key] for key in _ARGUMENTS if key in inner), inner if "properties" in inner else {})
    result = next((inner[key] for key in _RESULTS if inner.get(key) is not None), None)
    return GivenTool(
        tool_id=tool_id,
        name=name,
        description=str(inner.get("description") or ""),
        arguments=tuple(_fields(schema)),
        result=None if result is None else _row(result),
    )


def _row(schema: Any) -> tuple[Field, ...]:
    fields = SchemaReader(schema).row(schema)
    # MCP servers in Python wrap a text or a number that a function returns.
    return () if [field.name for field in fields] == ["result"] else fields


def _fields(schema: Any) -> list[Field]:
    # References are looked up in the schema itself, which is a document of its own.
    return SchemaReader(schema).fields(schema)
