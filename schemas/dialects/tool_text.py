"""Tools, their calls and their results as text, for models whose chat template knows no tools, or is not to be used.

* ``react``: ``Thought:``, ``Action:``, ``Action Input:``, ``Observation:``, ``Final Answer:`` (ReAct,
  arXiv:2210.03629).
* ``json``: a call is an object with ``name`` and ``arguments``, a result one with ``name`` and ``result``; one a line.
* ``hermes``, also called ``xml``: ``<tool_call>`` and ``<tool_response>``, as Hermes and Qwen2.5 models write them.
* ``function_xml``: ``<function=…>`` with a ``<parameter=…>`` for each argument, as OpenHands and SWE-agent write them.
  Arguments that are no texts are written as JSON.

The list of tools goes into the system prompt, results become messages of the user. The dialects of the same names read
these calls back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

from agentmill.schemas.chat import to_functions
from agentmill.schemas.records.rows import Message, MessageCall
from agentmill.schemas.records.trajectory import Tool

TextFormat = Literal["react", "json", "hermes", "xml", "function_xml"]
ToolFormat = Literal["native"] | TextFormat
"""``native``: calls stay calls, and the chat template writes them."""

SCAFFOLD_FORMATS: Mapping[str, ToolFormat] = {
    "tools": "native",
    "tools_hermes": "hermes",
    "tools_function_xml": "function_xml",
    "tools_react": "react",
}
"""How agents write their calls under the scaffolds that have tools; under all others they write commands."""


class ToolText(msgspec.Struct, frozen=True):
    """How one format writes. ``tools`` introduces the list of tools, which follows it, one JSON object a line.

    ``thought`` is written before what the agent says with a call, ``answer`` before what it says without one. ``stop``
    opens a result, which an agent must not write itself.
    """

    tools: str
    call: Callable[[MessageCall], str]
    result: Callable[[Message], str]
    thought: str = ""
    answer: str = ""
    stop: str | None = None


def function_xml(name: str, arguments: Mapping[str, str]) -> str:
    """A call in the tags of ``function_xml``; a value of several lines is between line breaks."""
    wrapped = {key: f"\n{value}\n" if "\n" in value else value for key, value in arguments.items()}
    parameters = "".join(f"<parameter={key}>{value}</parameter>\n" for key, value in wrapped.items())
    return f"<function={name}>\n{parameters}</function>"


def tool_list(tools: Sequence[Tool], text: ToolText) -> str:
    """The list of tools for the system prompt."""
    functions = [msgspec.json.encode(each["function"]).decode() for each in to_functions(tools)]
    return "\n".join([text.tools, *functions])


def calls_text(message: Message, text: ToolText) -> str:
    """The content and the calls of an assistant message, as text."""
    content = message.content or ""
    if not message.tool_calls:
        return text.answer + content
    thought = [text.thought + content] if content else []
    return "\n".join([*thought, *map(text.call, message.tool_calls)])


def written_out(
    messages: Sequence[Message], tools: Sequence[Tool], tool_format: ToolFormat
) -> list[tuple[Message, list[int]]]:
    """``messages`` in ``tool_format``, each with the places of those that it is made of.

    The results of parallel calls, one message each, become one. Without tools and calls, and in ``native``, all stay as
    they are. A system prompt that was added for the list of tools is made of no message.
    """
    if tool_format == "native" or not (tools or any(message.tool_calls for message in messages)):
        return [(message, [place]) for place, message in enumerate(messages)]
    text = TOOL_TEXTS[tool_format]
    result: list[tuple[Message, list[int]]] = []
    for place, message in enumerate(messages):
        shown = _as_text(message, text)
        if place and message.role == messages[place - 1].role == "tool":
            last, places = result[-1]
            both = msgspec.structs.replace(last, content=f"{last.content}\n{shown.content}")
            result[-1] = (both, [*places, place])
        else:
            result.append((shown, [place]))
    return _with_tools(result, tool_list(tools, text)) if tools else result


def _with_tools(messages: list[tuple[Message, list[int]]], listed: str) -> list[tuple[Message, list[int]]]:
    if not messages or messages[0][0].role != "system":
        return [(Message(role="system", content=listed), []), *messages]
    (system, places), *rest = messages
    return [(with_text(system, listed), places), *rest]


def with_text(system: Message, text: str) -> Message:
    """A system prompt with ``text`` at its end."""
    prompt = "\n\n".join(part for part in (system.content, text) if part)
    return msgspec.structs.replace(system, content=prompt)


def _as_text(message: Message, text: ToolText) -> Message:
    if message.role == "assistant" and (message.content or message.tool_calls):
        return msgspec.structs.replace(message, content=calls_text(message, text), tool_calls=[])
    if message.role == "tool":
        return Message(role="user", content=text.result(message))
    return message


def _object(call: MessageCall) -> str:
    return f'{{"name": {_quoted(call.name)}, "arguments": {_json(call.arguments)}}}'


_FORMATS: Mapping[TextFormat, ToolText] = {
    "react": ToolText(
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
        # Models of ReAct go on with an observation of their own, unless they are stopped.
        "\nObservation:",
    ),
    "json": ToolText(
        'You can use these tools. To call one, write {"name": the tool, "arguments": an object} on a line of its own.'
        "\n\nTools:",
        _object,
        lambda result: f'{{"name": {_quoted(result.name or "")}, "result": {_quoted(result.content or "")}}}',
    ),
    "hermes": ToolText(
        'You can use these tools. To call one, write <tool_call>{"name": the tool, "arguments": an object}</tool_call>.'
        "\n\nTools:",
        lambda call: f"<tool_call>\n{_object(call)}\n</tool_call>",
        lambda result: f"<tool_response>\n{result.content or ''}\n</tool_response>",
    ),
    "function_xml": ToolText(
        "You can use these tools. To call one, write\n"
        "<function=the tool>\n"
        "<parameter=the name of an argument>its value</parameter>\n"
        "</function>\n\n"
        "Tools:",
        lambda call: function_xml(call.name, _texts(call.arguments)),
        lambda result: f"EXECUTION RESULT of [{result.name or ''}]:\n{result.content or ''}",
    ),
}

TOOL_TEXTS: Mapping[TextFormat, ToolText] = {**_FORMATS, "xml": _FORMATS["hermes"]}


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


def _json(arguments: str) -> str:
    """Arguments as JSON, as they were written; those that are none as a JSON text."""
    try:
        msgspec.json.decode(arguments)
    except (ValueError, RecursionError):
        return _quoted(arguments)
    return arguments


def _texts(arguments: str) -> dict[str, str]:
    """Each argument as text; those that are no JSON object as one."""
    try:
        values = msgspec.json.decode(arguments)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        return {"input": arguments}
    return {
        key: value if isinstance(value, str) else msgspec.json.encode(value).decode() for key, value in values.items()
    }
