"""Scaffolds: how an agent is told of its world, and whether it acts by text or by tool calls."""

from __future__ import annotations

from typing import Literal

from schemas.record import Record
from schemas.trajectory import Tool
from synthesis.environments.environment import Environment

ScaffoldName = Literal["text", "tools"]


class Frame(Record):
    """What stands around an episode: the system prompt, and the tools that the agent may call (none: it writes)."""

    system_prompt: str
    tools: list[Tool]


def frame(name: str, environment: Environment) -> Frame:
    """``text``: the rules, and one command a message. ``tools``: the rules, and native tool calls."""
    if name == "text":
        return Frame(system_prompt=f"{environment.rules}\nReply with one command and nothing else.", tools=[])
    return Frame(system_prompt=f"{environment.rules}\nAct by calling the tools.", tools=environment.tools)
