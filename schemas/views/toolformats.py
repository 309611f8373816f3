"""Tool calls written out as text, for models whose chat template knows no tools, or should not be relied on.

* ``react``: ``Thought:``, ``Action:``, ``Action Input:``, ``Observation:``, ``Final Answer:`` (after ReAct,
  arXiv:2210.03629).
* ``json``: a call is an object with ``name`` and ``arguments``, a result one with ``name`` and ``result``; one a line.
* ``xml``: ``<tool_call>`` and ``<tool_response>``, as the Hermes and Qwen2.5 models write them.
* ``native``: calls stay calls; the chat template writes them.

The list of tools goes into the system prompt, results become messages of the user.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from agentmill.schemas.chat import to_functions
from agentmill.schemas.records.rows import Message, MessageCall
from agentmill.schemas.records.trajectory import Tool
from agentmill.schemas.views.conversation import ConversationTurn, with_system

TextFormat = Literal["react", "json", "xml"]
ToolFormat = Literal["native", "react", "json", "xml"]


class Dialect(msgspec.Struct, frozen=True):
    """How a tool format writes. ``tools`` introduces the list of tools, which follows it, one JSON object a line."""

    tools: str
    call: Callable[[MessageCall], str]
    result: Callable[[Message], str]
    thought: str = ""
    """Stands before what the agent says beside a call."""
    answer: str = ""
    """Stands before what the agent says without a call."""


def _object(call: MessageCall) -> str:
    return f'{{"name": {_quoted(call.name)}, "arguments": {_json(call.arguments)}}}'


DIALECTS: dict[TextFormat, Dialect] = {
    "react": Dialect(
        "You can use these tools. Think first, then name a tool and its input; or give the final answer.\n"
        "Thought: what you think\n"
        "Action: the name of a tool\n"
        "Action Input: its arguments, a JSON object\n"
        "The result comes as an observation. To end, write\n"
        "Final Answer: what you answer\n\n"
        "Tools:",
        lambda call: f"Action: {call.name}\nAction Input: {call.arguments}",
        lambda result: f"Observation: {result.content or ''}",
        "Thought: ",
        "Final Answer: ",
    ),
    "json": Dialect(
        'You can use these tools. To call one, write {"name": the tool, "arguments": an object} on a line of its own.'
        "\n\nTools:",
        _object,
        lambda result: f'{{"name": {_quoted(result.name or "")}, "result": {_quoted(result.content or "")}}}',
    ),
    "xml": Dialect(
        'You can use these tools. To call one, write <tool_call>{"name": the tool, "arguments": an object}</tool_call>.'
        "\n\nTools:",
        lambda call: f"<tool_call>\n{_object(call)}\n</tool_call>",
        lambda result: f"<tool_response>\n{result.content or ''}\n</tool_response>",
    ),
}


def written(
    conversation: Sequence[ConversationTurn], tools: Sequence[Tool], tool_format: ToolFormat
) -> list[ConversationTurn]:
    """The conversation in ``tool_format``; one without tools and calls stays as it is.

    The results of parallel calls, one message each, become one.
    """
    uses_tools = tools or any(said.message.tool_calls for said in conversation)
    if tool_format == "native" or not uses_tools:
        return list(conversation)
    dialect = DIALECTS[tool_format]
    result: list[ConversationTurn] = []
    for place, said in enumerate(conversation):
        parallel = place and said.message.role == conversation[place - 1].message.role == "tool"
        message = _as_text(said.message, dialect)
        if parallel:
            text = f"{result[-1].message.content}\n{message.content}"
            joined = msgspec.structs.replace(result[-1].message, content=text)
            result[-1] = ConversationTurn(joined, (*result[-1].items, *said.items))
        else:
            result.append(msgspec.structs.replace(said, message=message))
    return with_system(result, tool_list(tools, dialect)) if tools else result


def tool_list(tools: Sequence[Tool], dialect: Dialect) -> str:
    """What the system prompt says of the tools."""
    functions = [msgspec.json.encode(each["function"]).decode() for each in to_functions(tools)]
    return "\n".join([dialect.tools, *functions])


def calls_text(message: Message, dialect: Dialect) -> str:
    """What an assistant message says and calls, as text."""
    said = message.content or ""
    if not message.tool_calls:
        return dialect.answer + said
    thought = [dialect.thought + said] if said else []
    return "\n".join([*thought, *map(dialect.call, message.tool_calls)])


def _as_text(message: Message, dialect: Dialect) -> Message:
    if message.role == "assistant" and (message.content or message.tool_calls):
        return msgspec.structs.replace(message, content=calls_text(message, dialect), tool_calls=[])
    if message.role == "tool":
        return Message(role="user", content=dialect.result(message))
    return message


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


def _json(arguments: str) -> str:
    """Arguments as JSON, as they were written; those that are none as a JSON text."""
    try:
        msgspec.json.decode(arguments)
    except (ValueError, RecursionError):
        return _quoted(arguments)
    return arguments
