"""Foreign formats by name."""

from __future__ import annotations

from typing import Any

from agentmill.schemas.registry import Registry

FORMATS: Registry[Any] = Registry(
    "format",
    {
        "adp": "agentmill.schemas.formats.adp.format:Adp",
        "atif": "agentmill.schemas.formats.atif.format:Atif",
        "openai": "agentmill.schemas.formats.openai:OpenAi",
        "llamafactory": "agentmill.schemas.formats.llamafactory:LlamaFactory",
        "trl": "agentmill.schemas.formats.trl:Trl",
        "sharegpt": "agentmill.schemas.formats.sharegpt.format:ShareGpt",
        "openhands": "agentmill.schemas.formats.openhands.format:OpenHands",
        "swe_agent": "agentmill.schemas.formats.swe_agent.format:SweAgent",
        "toolbench": "agentmill.schemas.formats.toolbench:ToolBench",
        "xlam": "agentmill.schemas.formats.xlam:XLam",
        "otel": "agentmill.schemas.formats.otel.format:Otel",
        "steps": "agentmill.schemas.formats.steps.format:Steps",
    },
    group="formats",
)
"""Formats that are read, and written but for those in ``READ_ONLY``."""

READ_ONLY = frozenset({"openhands", "otel", "steps", "swe_agent", "toolbench"})
"""Formats of ``FORMATS`` that are logs of other tools: there is nothing to write them for."""
