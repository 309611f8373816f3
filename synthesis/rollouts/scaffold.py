"""Scaffolds: how the system prompt describes an environment, and whether the agent acts by text or by tool calls.

* ``text``: one command a message.
* ``react``: thoughts, and in the last line of the message, or a block of code at its end, one command (after ReAct,
  arXiv:2210.03629). The thoughts become the action's ``description``, so that the conversation shows the message as it
  was written.
* ``tools``: native tool calls, which the chat template writes and the server reads.
* ``tools_hermes``, ``tools_function_xml``, ``tools_react``: tool calls that the agent writes as text, in a dialect that
  is read here. So a model acts, too, whose chat template knows no tools.

``closed_book`` is none to choose: it marks episodes without tools (``sample`` with ``tools: none``).

In environments of family ``interpreter`` a command is code. To plan first is a second role (``multi_agent``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from agentmill.schemas.chat import decoded_json
from agentmill.schemas.dialects import DIALECTS
from agentmill.schemas.dialects.tool_text import SCAFFOLD_FORMATS
from agentmill.schemas.messages.dialect import Dialect, read_text
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.trajectory import AnyAction, ApiAction, MessageAction, Tool
from agentmill.synthesis.environments.environment import Environment
from agentmill.synthesis.policies.policy import Turn

ScaffoldName = Literal["text", "react", "tools", "tools_hermes", "tools_function_xml", "tools_react"]
CLOSED_BOOK = "closed_book"
CLOSED_BOOK_PROMPT = "Answer from what you know; there are no tools. Reply with the answer and nothing else."
HOW = {
    "text": "Reply with one command and nothing else.",
    "react": "Think first, then write one command, alone in the last line.",
    **dict.fromkeys(SCAFFOLD_FORMATS, "Act by calling the tools."),
}


class Frame(Record):
    """What stands around an episode: the system prompt, and the tools that the agent may call (none: it writes)."""

    system_prompt: str
    tools: list[Tool]


def frame(name: str, environment: Environment) -> Frame:
    """The rules of the environment and how to act by the scaffold ``name``."""
    tools = environment.tools if name in SCAFFOLD_FORMATS else []
    return Frame(system_prompt=f"{environment.rules}\n{HOW[name]}", tools=tools)


def read(name: str, turn: Turn, tools: Sequence[Tool]) -> Turn:
    """A turn as actions upon an environment with ``tools``, by the scaffold ``name``."""
    if name == "react":
        return msgspec.structs.replace(turn, actions=[_thought_apart(action) for action in turn.actions])
    dialect = SCAFFOLD_FORMATS.get(name, "native")
    if dialect == "native":
        return turn
    actions = [call for each in turn.actions for call in _calls(each, dialect, tools)]
    return msgspec.structs.replace(turn, actions=actions)


_FENCE = re.compile(r"^(`{3,})([^\n`]*)$", re.MULTILINE)


def _thought_apart(action: AnyAction) -> AnyAction:
    if not isinstance(action, MessageAction):
        return action
    text = action.content.rstrip()
    thought, _, _ = text.rpartition("\n")
    start = _start_of_last_block(text)
    if start is not None:  # code has several lines
        thought = text[: max(0, start - 1)]
    if not thought.strip():
        return action
    command = action.content[len(thought) + 1 :]  # white space behind it stays, or the tokens would not be its own
    return msgspec.structs.replace(action, description=thought, content=command)


def _start_of_last_block(text: str) -> int | None:
    """Where the fenced block begins with which ``text`` ends; ``None`` if it ends otherwise."""
    if not text.endswith("```"):
        return None
    opening: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opening is None:
            opening = fence
        elif fence[1] == opening[1] and not fence[2].strip():
            if fence.end() == len(text):
                return opening.start()
            opening = None
    return None


def _calls(action: AnyAction, name: str, tools: Sequence[Tool]) -> list[AnyAction]:
    """The calls that a message makes in a dialect; the message itself if it makes none."""
    dialect = cast("Dialect", DIALECTS.load(name)())
    parsed = read_text(dialect, action.content) if isinstance(action, MessageAction) else None
    if parsed is None:
        return [action]
    calls = _without_epilogue(parsed.actions, dialect)
    first = msgspec.structs.replace(calls[0], tokens=action.tokens, reasoning_content=action.reasoning_content)
    declared = {tool.name: tool.parameters.get("properties") for tool in tools}
    return [_typed(call, declared) for call in [first, *calls[1:]]]


def _without_epilogue(actions: Sequence[AnyAction], dialect: Dialect) -> list[AnyAction]:
    """``actions`` without the prose after the last call, which joins the thought before it.

    As an action it would be a message that interrupts the answer to the call. In ReAct it may hold another action,
    which was not done, and would be read as the one that was; it is only in the sampled tokens then.
    """
    *calls, last = actions
    if not calls or not isinstance(last, MessageAction):
        return list(actions)
    thought = "\n".join(part for part in (calls[-1].description, last.content) if part)
    if read_text(dialect, thought) is not None:
        return calls
    return [*calls[:-1], msgspec.structs.replace(calls[-1], description=thought)]


def _typed(action: AnyAction, properties: Mapping[str, Any]) -> AnyAction:
    """A call with its arguments as the tool declares them: some dialects can only write texts.

    A text that is no JSON of another type stays one, and the environment says what is wrong with it.
    """
    declared = properties.get(action.function) if isinstance(action, ApiAction) else None
    if not isinstance(action, ApiAction) or not isinstance(declared, dict):
        return action
    kwargs = {key: _as_declared(value, declared.get(key)) for key, value in action.kwargs.items()}
    return msgspec.structs.replace(action, kwargs=kwargs)


def _as_declared(value: object, schema: object) -> object:
    types = _types(schema)
    if not isinstance(value, str) or "string" in types or not types:
        return value
    if value.strip() == "null":
        return None if "null" in types else value
    found = decoded_json(value)
    return value if found is None else found


_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def _types(schema: object) -> set[str]:
    """The types that a schema names, alone or as one of several; empty where it names none."""
    # A schema may be anything that a model wrote.
    if not isinstance(schema, dict):
        return {"string"}
    given = schema.get("type")
    found = {each for each in (given if isinstance(given, list) else [given]) if isinstance(each, str)}
    for keyword in ("anyOf", "oneOf"):
        parts = schema.get(keyword)
        found |= {each for part in (parts if isinstance(parts, list) else ()) for each in _types(part)}
    values = schema.get("enum")
    if not found and isinstance(values, list):
        found = {_TYPES.get(type(each), "object") for each in values}
    return found
