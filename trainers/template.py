"""A tokenizer's chat template at work: how it renders, what ends a turn, and which version of it is trained with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jinja2
import msgspec

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.templates.process import shared
from agentmill.schemas.templates.rendering import ChatTemplate, Render, TemplateError

REASONING_NAMES = {name: re.compile(rf"message\.{name}\b|\[['\"]{name}['\"]\]") for name in ("thinking", "reasoning")}
"""What templates call the reasoning, besides ``reasoning_content`` (gpt-oss has ``thinking``)."""

CONTROL = re.compile(r"<\|.+\|>|<｜.+｜>")
"""How control tokens look in most vocabularies."""

GENERATION = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")


def training_template(tokenizer: Any) -> str:
    """TRL's version of the tokenizer's chat template, which shows earlier turns as they were generated.

    It is without the marks of what the model generates, which not every server can read. Raises ``UserError`` where
    TRL has none for the template.
    """
    from trl.chat_template_utils import get_training_chat_template

    bounded: Any = _Bounded(tokenizer)  # all of a tokenizer that TRL uses here
    try:
        template = get_training_chat_template(bounded) or tokenizer.chat_template
    except (ValueError, jinja2.TemplateError) as error:
        raise UserError(
            "chat_template: TRL has no training version of the model's chat template\n"
            "Leave the setting out (a conversation then becomes several sequences), or name a file with a template.",
            ErrorCode.NO_TRAINING_TEMPLATE,
        ) from error
    return GENERATION.sub(_without_mark, str(template))


class _Bounded:
    """A tokenizer as TRL looks at its chat template, which is rendered as by ``renderer``."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.chat_template = tokenizer.chat_template

    def apply_chat_template(
        self, messages: list[JsonObject], tokenize: bool = True, add_generation_prompt: bool = False, **_: Any
    ) -> Any:
        """The text or its tokens. Raises ``jinja2.TemplateError`` as TRL expects it, and ``TypeError``."""
        try:
            text = _rendered(self._tokenizer, messages, None, add_generation_prompt)
        except TemplateError as error:
            raise jinja2.TemplateError(str(error)) from error
        return self._tokenizer(text, add_special_tokens=False)["input_ids"] if tokenize else text


def _without_mark(mark: re.Match[str]) -> str:
    """What trims the same white space as a mark that is taken out."""
    left, right = mark[0].startswith("{%-"), mark[0].endswith("-%}")
    return (
        f"{{%{'-' if left else ''} if true {'-' if right else ''}%}}"
        if "end" not in mark[0]
        else (f"{{%{'-' if left else ''} endif {'-' if right else ''}%}}")
    )


def chat_template(tokenizer: Any) -> ChatTemplate:
    """The tokenizer's chat template."""
    return _chat_template(tokenizer, str(tokenizer.chat_template))


@lru_cache(maxsize=8)
def control_tokens(tokenizer: Any) -> tuple[str, ...]:
    """The texts of the tokenizer's special tokens and of those that look so, the longest first.

    DeepSeek's tokens that open a message are added to the vocabulary, but not marked as special.
    """
    added = tokenizer.added_tokens_decoder.values()
    texts = {token.content for token in added if token.special or CONTROL.fullmatch(token.content)}
    return tuple(sorted(texts.union(tokenizer.all_special_tokens), key=len, reverse=True))


@lru_cache(maxsize=8)
def _chat_template(tokenizer: Any, source: str) -> ChatTemplate:
    stops = control_tokens(tokenizer)
    render = renderer(tokenizer)
    return ChatTemplate(
        render=render,
        end_of_turn=_end_of_turn(render, stops),
        stops=stops,
        thinking={
            thinking: renderer(tokenizer, enable_thinking=thinking)
            for thinking in ((True, False) if "enable_thinking" in source else ())
        },
    )


def _end_of_turn(render: Render, stops: Sequence[str]) -> str | None:
    """The first special token after an answer where a template adds more of them, as Phi-3 at the end of all."""
    conversation: list[JsonObject] = [
        {"role": "user", "content": "question"},
        {"role": "assistant", "content": "the answer"},
    ]
    try:
        tail = render(conversation, None, False).rpartition("the answer")[2]
    except TemplateError:
        return None
    special = "|".join(map(re.escape, stops))
    found = re.fullmatch(rf"\s*({special})\s*(?:(?:{special})\s*)+", tail) if stops else None
    return found[1] if found else None


def renderer(tokenizer: Any, **options: Any) -> Render:
    """The tokenizer's chat template as a function to text, the same as ``tokenizer.apply_chat_template`` gives.

    It raises ``TemplateError`` where the template fails, and ``UserError`` where it takes too much time or memory.
    """

    def render(messages: list[JsonObject], tools: list[JsonObject] | None, add_generation_prompt: bool) -> str:
        shown = _with_reasoning_names(messages, tokenizer.chat_template)
        try:
            try:
                return _rendered(tokenizer, shown, tools, add_generation_prompt, **options)
            except TypeError:
                # DeepSeek's templates join the arguments of calls to other texts.
                texts = [_with_text_arguments(each) for each in shown]
                return _rendered(tokenizer, texts, tools, add_generation_prompt, **options)
        except TypeError as error:
            raise TemplateError(f"the chat template fails on the conversation: TypeError: {error}") from error

    return render


def _rendered(
    tokenizer: Any,
    messages: list[JsonObject],
    tools: list[JsonObject] | None,
    add_generation_prompt: bool,
    **options: Any,
) -> str:
    """As ``tokenizer.apply_chat_template``. Raises as ``TemplateProcess.render``."""
    if not messages:
        raise TemplateError("the chat template is given no message")
    given = {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt, "documents": None}
    return shared.render(tokenizer.get_chat_template(None, tools), {**tokenizer.special_tokens_map, **options, **given})


def _with_reasoning_names(messages: list[JsonObject], source: Any) -> list[JsonObject]:
    names = [name for name, pattern in REASONING_NAMES.items() if pattern.search(str(source))]
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
