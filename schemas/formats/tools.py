"""One tool as foreign records declare it: an OpenAI function, with its envelope or bare."""

from __future__ import annotations

from typing import Any

from schemas.record import JsonObject
from schemas.trajectory import Tool

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
