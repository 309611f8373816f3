"""Trajectories as chat: messages, and the two spellings of them that servers and templates want.

Consecutive actions of one turn make one assistant message. The role of an observation follows its link: one that
answers an earlier tool call is a ``tool`` message, any other a ``user`` message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.rows import Message, MessageCall
from agentmill.schemas.records.trajectory import (
    Action,
    AnyItem,
    AnyObservation,
    ApiAction,
    CodeAction,
    ImageObservation,
    MessageAction,
    TextObservation,
    Tool,
)


def to_messages(system_prompt: str | None, content: Sequence[AnyItem]) -> list[Message]:
    """The conversation, none of it marked for training."""
    system = [Message(role="system", content=system_prompt)] if system_prompt is not None else []
    return system + [message for message, _ in grouped(content)]


def grouped(content: Sequence[AnyItem]) -> list[tuple[Message, list[int]]]:
    """The messages of ``content``, each with the indices of the items that it is made of."""
    calls = [item for item in content if isinstance(item, ApiAction) and item.tool_call_id is not None]
    # A result that comes before its call takes the name of the first call with this id.
    functions = {call.tool_call_id: [call.function] for call in reversed(calls)}
    result = []
    for indices in _groups(content, frozenset(functions)):
        items = [content[index] for index in indices]
        if isinstance(items[0], Action):
            message = _assistant([item for item in items if isinstance(item, Action)])
            functions.update(_functions(items))
        else:
            message = _observed([item for item in items if not isinstance(item, Action)], functions)
        result.append((message, indices))
    return result


def _functions(items: Sequence[AnyItem]) -> dict[str | None, list[str]]:
    """The functions that one turn calls, by the id of the call; several if the turn repeats an id."""
    found: dict[str | None, list[str]] = {}
    for item in items:
        if isinstance(item, ApiAction) and item.tool_call_id is not None:
            found.setdefault(item.tool_call_id, []).append(item.function)
    return found


def to_functions(tools: Sequence[Tool]) -> list[JsonObject]:
    """Tools as OpenAI function schemas."""
    functions = []
    for tool in tools:
        function: JsonObject = {"name": tool.name}
        if tool.description is not None:
            function["description"] = tool.description
        function["parameters"] = tool.parameters
        if tool.strict is not None:
            function["strict"] = tool.strict
        functions.append({"type": "function", "function": function})
    return functions


def to_openai(messages: Sequence[Message]) -> list[JsonObject]:
    """Messages for an OpenAI-compatible API: call arguments as JSON text, calls without an id numbered by position."""
    return [_plain(message, index, "reasoning", str) for index, message in enumerate(messages)]


def to_template(messages: Sequence[Message]) -> list[JsonObject]:
    """Messages for a tokenizer's chat template: call arguments as objects.

    Arguments that are no JSON object become ``{}``, which is what a vLLM server shows to the model in their place.
    """
    return [_plain(message, index, "reasoning_content", _object) for index, message in enumerate(messages)]


def _groups(content: Sequence[AnyItem], called: frozenset[str | None]) -> Iterator[list[int]]:
    """Indices of the items that make one message: actions of one turn, or unlinked observations of one turn."""
    group: list[int] = []
    for index, item in enumerate(content):
        if group and not _joins(content[group[-1]], item, called):
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def _joins(last: AnyItem, item: AnyItem, called: frozenset[str | None]) -> bool:
    if last.turn != item.turn or isinstance(last, Action) != isinstance(item, Action):
        return False
    # A tool message answers one call, so results of several calls never share one.
    return isinstance(item, Action) or (last.tool_call_id not in called and item.tool_call_id not in called)


def _assistant(actions: Sequence[Action]) -> Message:
    """One assistant message. A thought shared by parallel calls is said once."""
    texts: list[str] = []
    for action in actions:
        if action.description and action.description not in texts:
            texts.append(action.description)
        if isinstance(action, MessageAction):
            texts.append(action.content)
        elif isinstance(action, CodeAction):
            texts.append(_fenced(action.language, action.content))
    reasoning = list(dict.fromkeys([action.reasoning_content for action in actions if action.reasoning_content]))
    return Message(
        role="assistant",
        content="\n".join(texts) if texts else None,
        reasoning_content="\n".join(reasoning) if reasoning else None,
        tool_calls=[_call(action) for action in actions if isinstance(action, ApiAction)],
    )


def _call(action: ApiAction) -> MessageCall:
    arguments = action.raw_arguments
    if arguments is None:
        arguments = msgspec.json.encode(action.kwargs).decode()
    return MessageCall(name=action.function, arguments=arguments, id=action.tool_call_id)


def _fenced(language: str, code: str) -> str:
    fence = "```"
    # Code may hold a fence itself, which would end the block too early.
    while fence in code:
        fence += "`"
    return f"{fence}{language}\n{code}\n{fence}"


def _observed(observations: Sequence[AnyObservation], functions: dict[str | None, list[str]]) -> Message:
    """A tool message or a user message. Calls of one turn that share an id are answered in order."""
    text = "\n".join([_seen(observation) for observation in observations])
    call_id = observations[0].tool_call_id
    if call_id in functions:
        names = functions[call_id]
        name = names.pop(0) if len(names) > 1 else names[0]
        return Message(role="tool", content=text, tool_call_id=call_id, name=name)
    return Message(role="user", content=text)


def _seen(observation: AnyObservation) -> str:
    """An observation as text; an image is named, not shown."""
    if isinstance(observation, TextObservation):
        return observation.content
    if isinstance(observation, ImageObservation):
        return f"[image: {observation.content}]"
    page = observation.axtree if observation.axtree is not None else observation.html
    return "\n".join(part for part in (observation.url, page) if part)


def _plain(message: Message, index: int, reasoning: str, arguments: Callable[[str], Any]) -> JsonObject:
    plain: JsonObject = {"role": message.role, "content": message.content or ""}
    if message.reasoning_content is not None:
        plain[reasoning] = message.reasoning_content
    if message.tool_calls:
        plain["tool_calls"] = [
            {
                "id": call.id or f"call_{index}_{number}",
                "type": "function",
                "function": {"name": call.name, "arguments": arguments(call.arguments)},
            }
            for number, call in enumerate(message.tool_calls)
        ]
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        plain["name"] = message.name
    return plain


def _object(arguments: str) -> JsonObject:
    value = decoded_json(arguments)
    return value if isinstance(value, dict) else {}


def decoded_json(arguments: str) -> Any:
    """The value of JSON text; ``None`` if it is none."""
    try:
        return msgspec.json.decode(arguments)
    except (ValueError, RecursionError):
        return None


MARKS = ("condense", "fold")


def is_mark(item: AnyItem) -> bool:
    """Whether the item stands for turns that were left out."""
    return item.context_operation in MARKS and not isinstance(item, Action)


def shown(content: Sequence[AnyItem]) -> list[AnyItem]:
    """What the agent sees next: the opening (turn 0), the last mark, and all turns that it does not stand for."""
    seen = [content[place] for place in shown_places(content)]
    return [msgspec.structs.replace(item, turn=0) if is_mark(item) else item for item in seen]


def shown_places(content: Sequence[AnyItem]) -> list[int]:
    """The places of that in ``content``."""
    mark = next((place for place in reversed(range(len(content))) if is_mark(content[place])), None)
    if mark is None:
        return list(range(len(content)))
    items = [(place, item) for place, item in enumerate(content) if not is_mark(item)]
    opening = [place for place, item in items if item.turn == 0]
    later = [place for place, item in items if item.turn > content[mark].turn]
    return [*opening, mark, *later]
