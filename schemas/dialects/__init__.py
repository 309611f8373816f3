"""Ways to write calls as text, by name."""

from __future__ import annotations

from typing import Any

from agentmill.schemas.registry import Registry

DIALECTS: Registry[Any] = Registry(
    "dialect",
    {
        "react": "agentmill.schemas.dialects.react:React",
        "function_xml": "agentmill.schemas.dialects.function_xml:FunctionXml",
        "execute": "agentmill.schemas.dialects.code_blocks:Execute",
        "fenced": "agentmill.schemas.dialects.code_blocks:Fenced",
        "brackets": "agentmill.schemas.dialects.commands:Brackets",
        "hermes": "agentmill.schemas.dialects.hermes:Hermes",
        "calls": "agentmill.schemas.dialects.commands:Calls",
        "webarena": "agentmill.schemas.dialects.commands:WebArena",
    },
    group="dialects",
)
