"""Trajectories as chat: messages, the two spellings of them that servers and templates want, and segments for loss.

Consecutive actions of one turn make one assistant message. The role of an observation follows its link: one that
answers an earlier tool call is a ``tool`` message, any other a ``user`` message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from schemas.record import JsonObject
from schemas.rows import Message, MessageCall
from schemas.trajectory import (
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

Render = Callable[[list[JsonObject], list[JsonObject] | None, bool], str]
"""``(messages, tools, add_generation_prompt) -> text``: a chat template at work."""


class TemplateError(ValueError):
    """A chat template under which a message cannot be trained as it would be generated."""


class Segment(msgspec.Struct, frozen=True):
    """A stretch of rendered text; tokenised by itself. ``train``: its tokens carry loss, times ``weight``."""

    text: str
    train: bool
    weight: float = 1.0


def to_messages(system_prompt: str | None, content: Sequence[AnyItem]) -> list[Message]:
    """The conversation, none of it marked for training."""
    system = [Message(role="system", content=system_prompt)] if system_prompt is not None else []
    return system + [message for message, _ in grouped(content)]


def grouped(content: Sequence[AnyItem]) -> list[tuple[Message, list[int]]]:
    """The messages of ``content``, each with the indices of the items that it is made of."""
    calls = [item for item in content if isinstance(item, ApiAction) and item.tool_call_id is not None]
    functions = {call.tool_call_id: call.function for call in calls}
    result = []
    for indices in _groups(content, frozenset(functions)):
        items = [content[index] for index in indices]
        if isinstance(items[0], Action):
            message = _assistant([item for item in items if isinstance(item, Action)])
        else:
            message = _observed([item for item in items if not isinstance(item, Action)], functions)
        result.append((message, indices))
    return result


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


def segments(
    messages: Sequence[Message], tools: list[JsonObject] | None, render: Render, end_of_turn: str | None = None
) -> list[Segment]:
    """The rendered conversation, cut so that each trained message is exactly what a model would generate.

    A trained segment starts after the generation prompt and ends with the end-of-turn token: the text ``end_of_turn``,
    or without it the last of the message's rendering that is no white space. What the template adds after it belongs
    to the next, untrained segment. The texts join to the whole rendering.

    Raises ``TemplateError`` where the template shows a trained message, or what precedes it, otherwise than at
    generation (templates that strip earlier reasoning do), where it leaves out a part of a trained message (tool calls,
    in a template that knows none; arguments that are no JSON object) or closes it with nothing, and ``ValueError`` for
    a trained message of another role.
    """
    plain = to_template(messages)
    whole = render(plain, tools, False)
    result: list[Segment] = []
    done = 0
    for index, message in enumerate(messages):
        if not message.train:
            continue
        if message.role != "assistant":
            raise ValueError(f"message {index} is of role {message.role!r}: only assistant messages carry loss")
        prompt = render(plain[:index], tools, True)
        start = len(prompt)
        shown = render(plain[: index + 1], tools, False)
        turn = _up_to_end_of_turn(shown, start, end_of_turn)
        if not turn.startswith(prompt):
            raise TemplateError(f"the chat template renders assistant message {index} otherwise than it prompts for it")
        if not whole.startswith(turn):
            raise TemplateError(
                f"the chat template shows assistant message {index}, or what precedes it, otherwise than at generation;"
                " train each turn on its own prompt (rows: step)"
            )
        marked = _marked(message)
        part = unsaid(message, turn[start:])
        if part is None:
            part = _unsaid(message, marked, render(to_template([*messages[:index], marked]), tools, False))
        if part is not None:
            raise TemplateError(f"the chat template does not show {part[:60]!r} of assistant message {index}")
        _check_rest(message, index, turn[start:])
        result += [Segment(whole[done:start], False), Segment(whole[start : len(turn)], True, message.weight)]
        done = len(turn)
    result.append(Segment(whole[done:], False))
    return [segment for segment in result if segment.text]


def unsaid(message: Message, text: str) -> str | None:
    """The first part of an assistant message (reasoning, content, names of calls) that ``text`` does not hold."""
    return _unsaid(message, message, text)


def _unsaid(message: Message, marked: Message, text: str) -> str | None:
    """The first part of ``message`` whose counterpart in ``marked`` is not in ``text``."""
    pairs = zip(_parts(message), _parts(marked), strict=True)
    return next((part for part, counterpart in pairs if counterpart not in text), None)


def _parts(message: Message) -> list[str]:
    texts = [(message.reasoning_content or "").strip(), (message.content or "").strip()]
    return [*filter(None, texts), *(call.name for call in message.tool_calls)]


def _up_to_end_of_turn(text: str, start: int, end_of_turn: str | None) -> str:
    if end_of_turn is None:
        return text[:start] + text[start:].rstrip()
    position = text.rfind(end_of_turn, start)
    if position < 0:
        raise TemplateError(f"the chat template does not close an assistant message with {end_of_turn!r}")
    return text[: position + len(end_of_turn)]


def _check_rest(message: Message, index: int, text: str) -> None:
    """Raises ``TemplateError`` for arguments of calls that no template shows, and for a turn that does not end."""
    for call in message.tool_calls:
        if not isinstance(_decoded(call.arguments), dict):
            raise TemplateError(
                f"the arguments of {call.name!r} in assistant message {index} are no JSON object, so no chat template"
                " shows them as they were written"
            )
    content = (message.content or "").strip()
    if not message.tool_calls and not text[text.find(content) + len(content) :].strip():
        raise TemplateError(f"the chat template closes assistant message {index} with nothing that a model could learn")


def _marked(message: Message) -> Message:
    """The message with a mark before and after each of its parts, all of them different.

    A text may stand in a rendering by chance, as a word of another part or of the template; with its marks it does not.
    """
    names = ("reasoning_content", "content")
    texts = {name: getattr(message, name).strip() for name in names if (getattr(message, name) or "").strip()}
    marked = {name: _between_marks(text, name) for name, text in texts.items()}
    calls = [
        msgspec.structs.replace(call, name=_between_marks(call.name, f"call{number}"))
        for number, call in enumerate(message.tool_calls)
    ]
    return msgspec.structs.replace(message, tool_calls=calls, **marked)


def _between_marks(text: str, name: str) -> str:
    return f"mark_{name}_{text}_{name}_mark"


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
    while fence in code:
        fence += "`"
    return f"{fence}{language}\n{code}\n{fence}"


def _observed(observations: Sequence[AnyObservation], functions: dict[str | None, str]) -> Message:
    text = "\n".join([_seen(observation) for observation in observations])
    call_id = observations[0].tool_call_id
    if call_id in functions:
        return Message(role="tool", content=text, tool_call_id=call_id, name=functions[call_id])
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
    value = _decoded(arguments)
    return value if isinstance(value, dict) else {}


def _decoded(arguments: str) -> Any:
    """The value of JSON text; ``None`` if it is none."""
    try:
        return msgspec.json.decode(arguments)
    except ValueError:
        return None
