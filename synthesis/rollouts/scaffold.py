"""Scaffolds: how the system prompt describes an environment, and whether the agent acts by text or by tool calls.

* ``text``: one command a message.
* ``react``: thoughts, and in the last line of the message one command (after ReAct, arXiv:2210.03629). The thoughts
  become the action's ``description``, so that the conversation shows the message as it was written.
* ``tools``: native tool calls.

In environments of family ``interpreter`` a command is code. To plan first is a second role (``multi_agent``).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from agentmill.schemas.records.record import Record
from agentmill.schemas.records.trajectory import AnyAction, MessageAction, Tool
from agentmill.synthesis.environments.environment import Environment
from agentmill.synthesis.policies.policy import Turn

ScaffoldName = Literal["text", "react", "tools"]
HOW = {
    "text": "Reply with one command and nothing else.",
    "react": "Think first, then write one command, alone in the last line.",
    "tools": "Act by calling the tools.",
}


class Frame(Record):
    """What stands around an episode: the system prompt, and the tools that the agent may call (none: it writes)."""

    system_prompt: str
    tools: list[Tool]


def frame(name: str, environment: Environment) -> Frame:
    """The rules of the environment and how to act by the scaffold ``name``."""
    tools = environment.tools if name == "tools" else []
    return Frame(system_prompt=f"{environment.rules}\n{HOW[name]}", tools=tools)


def read(name: str, turn: Turn) -> Turn:
    """A turn as actions upon an environment, by the scaffold ``name``."""
    if name != "react":
        return turn
    return msgspec.structs.replace(turn, actions=[_thought_apart(action) for action in turn.actions])


def _thought_apart(action: AnyAction) -> AnyAction:
    if not isinstance(action, MessageAction):
        return action
    thought, _, _ = action.content.rstrip().rpartition("\n")
    if not thought.strip():
        return action
    command = action.content[len(thought) + 1 :]  # white space behind it stays, or the tokens would not be its own
    return msgspec.structs.replace(action, description=thought, content=command)
