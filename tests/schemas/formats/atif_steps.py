"""Small ATIF documents, and what is read from them."""

from __future__ import annotations

from typing import Any

import msgspec

from agentmill.schemas.format import Origin, Read
from agentmill.schemas.formats.atif.format import Atif

STRUCTURE = frozenset({"source", "type", "media_type", "tool_call_id", "source_call_id"})
"""Keys whose texts say what kind of thing stands there, or link it."""


def read(document: Any) -> Read:
    return Atif().read(msgspec.json.encode(document), Origin("demo"))


def atif(*steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    numbered = [{"step_id": number, **step} for number, step in enumerate(steps, start=1)]
    agent = {"name": "a", "version": "1"}
    return {"schema_version": "ATIF-v1.7", "agent": agent, "steps": numbered, **fields}


def user(text: Any = "Do it.", **fields: Any) -> dict[str, Any]:
    return {"source": "user", "message": text, **fields}


def acts(message: str, *calls: tuple[str, str], **fields: Any) -> dict[str, Any]:
    tool_calls = [{"tool_call_id": name, "function_name": function, "arguments": {}} for name, function in calls]
    return {"source": "agent", "message": message, **({"tool_calls": tool_calls} if calls else {}), **fields}


def answers(*results: tuple[str | None, str]) -> dict[str, Any]:
    return {"results": [{"source_call_id": name, "content": text} for name, text in results]}
