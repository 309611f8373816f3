"""Foreign formats by name."""

from __future__ import annotations

from schemas.registry import Registry

FORMATS = Registry(
    "format",
    {
        "adp": "schemas.formats.adp:Adp",
        "atif": "schemas.formats.atif:Atif",
        "openai": "schemas.formats.openai:OpenAi",
        "llamafactory": "schemas.formats.llamafactory:LlamaFactory",
        "trl": "schemas.formats.trl:Trl",
        "sharegpt": "schemas.formats.sharegpt:ShareGpt",
        "openhands": "schemas.formats.openhands:OpenHands",
        "swe_agent": "schemas.formats.swe_agent:SweAgent",
        "toolbench": "schemas.formats.toolbench:ToolBench",
        "xlam": "schemas.formats.xlam:XLam",
        "otel": "schemas.formats.otel:Otel",
        "steps": "schemas.formats.steps:Steps",
    },
)
"""Formats that are read, and written but for those in ``READ_ONLY``."""

READ_ONLY = frozenset({"openhands", "otel", "steps", "swe_agent", "toolbench"})
"""Formats of ``FORMATS`` that are logs of other tools: there is nothing to write them for."""
