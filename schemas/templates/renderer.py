"""A chat template as a function from messages to text, with what templates differ in.

Templates call the reasoning of a message by several names, and some take the arguments of calls as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.templates.process import shared
from agentmill.schemas.templates.rendering import Render, TemplateError

REASONING_NAMES = {name: re.compile(rf"message\.{name}\b|\[['\"]{name}['\"]\]") for name in ("thinking", "reasoning")}
"""What templates call the reasoning, other than ``reasoning_content`` (gpt-oss has ``thinking``)."""

TemplateOf = Callable[[list[JsonObject] | None], str]
"""The source of the template for a conversation with these tools: a tokenizer may have one of its own for tools."""


def template_renderer(template_of: TemplateOf, variables: Callable[[], JsonObject]) -> Render:
    """The template as a function to text. It knows ``variables`` (``bos_token`` …) in addition to the conversation.

    The function raises ``TemplateError`` where the template fails, and ``UserError`` where it takes too much time or
    memory.
    """

    def render(messages: list[JsonObject], tools: list[JsonObject] | None, add_generation_prompt: bool) -> str:
        source = template_of(tools)
        shown = _with_reasoning_names(messages, source)
        try:
            try:
                return render_template(source, shown, tools, add_generation_prompt, variables())
            except TypeError:
                # DeepSeek's templates join the arguments of calls to other texts.
                texts = [_with_text_arguments(each) for each in shown]
                return render_template(source, texts, tools, add_generation_prompt, variables())
        except TypeError as error:
            raise TemplateError(f"the chat template fails on the conversation: TypeError: {error}") from error

    return render


def render_template(
    source: str,
    messages: list[JsonObject],
    tools: list[JsonObject] | None,
    add_generation_prompt: bool,
    variables: JsonObject,
) -> str:
    """As a tokenizer's ``apply_chat_template``. Raises as ``TemplateProcess.render``."""
    if not messages:
        raise TemplateError("the chat template is given no message")
    given = {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt, "documents": None}
    return shared.render(source, {**variables, **given})


def _with_reasoning_names(messages: list[JsonObject], source: str) -> list[JsonObject]:
    names = [name for name, pattern in REASONING_NAMES.items() if pattern.search(source)]
    if not names:
        return messages
    return [
        {**each, **dict.fromkeys(names, each["reasoning_content"])} if "reasoning_content" in each else each
        for each in messages
    ]


def _with_text_arguments(message: JsonObject) -> JsonObject:
    if "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": _text(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
