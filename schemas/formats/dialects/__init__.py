"""Ways to write calls as text, by name."""

from __future__ import annotations

from schemas.registry import Registry

DIALECTS = Registry(
    "dialect",
    {
        "react": "schemas.formats.dialects.react:React",
        "function_xml": "schemas.formats.dialects.function_xml:FunctionXml",
        "execute": "schemas.formats.dialects.execute:Execute",
        "fenced": "schemas.formats.dialects.fenced:Fenced",
        "brackets": "schemas.formats.dialects.brackets:Brackets",
        "hermes": "schemas.formats.dialects.hermes:Hermes",
        "calls": "schemas.formats.dialects.calls:Calls",
        "webarena": "schemas.formats.dialects.webarena:WebArena",
    },
)
