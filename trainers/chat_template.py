"""A tokenizer's chat template: how it renders, what ends a turn, and control tokens that a message spells out.

Control tokens in the text of a message, as a tool or a web page may have them, stay text; otherwise `<|im_end|>` in a
tool's result would end the turn. While a conversation is rendered, a private character takes the place of each; what
the template itself writes keeps its meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jinja2
import msgspec

from agentmill.schemas.chat import decoded_json
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.rows import Message
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
        # TRL gives nothing where the template shows earlier turns as they were generated already.
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
        # A mark that was simply removed would take its white space control with it, and the text would differ.
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
    # A regular expression takes the first alternative that fits, so a token must come before one that it begins with.
    return tuple(sorted(texts.union(tokenizer.all_special_tokens), key=len, reverse=True))


@lru_cache(maxsize=8)
# The source is part of the key: a tokenizer's template can be set anew.
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
    # A tokenizer may have several templates, one of them for conversations with tools.
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


PRIVATE = range(0xF0000, 0x10FFFE)
"""Characters that Unicode leaves to private use."""


@dataclass(frozen=True)
class ShieldedConversation:
    """A conversation with private characters in the place of control tokens; ``texts`` maps them back.

    ``count`` is how many control tokens the messages and tools spell out.
    """

    messages: Sequence[Message]
    tools: list[JsonObject] | None
    texts: dict[str, str] = field(default_factory=dict)
    count: int = 0

    def pieces(self, text: str) -> list[str]:
        """The text, cut at the private characters, which are pieces of their own."""
        if not self.texts:
            return [text]
        return [piece for piece in re.split(f"([{''.join(self.texts)}])", text) if piece]


def shield_control_tokens(
    messages: Sequence[Message], tools: list[JsonObject] | None, tokenizer: Any
) -> ShieldedConversation:
    """The conversation, shielded from the control tokens of the tokenizer that its texts spell out."""
    pattern = _pattern(control_tokens(tokenizer))
    texts = list(_texts([*map(msgspec.to_builtins, messages), tools]))
    found = [match[0] for text in texts for match in pattern.finditer(text)]
    if not found:
        return ShieldedConversation(messages, tools)
    # A message may hold private characters of its own, which must come back as they are.
    used = set("".join(texts))
    free = (chr(code) for code in PRIVATE if chr(code) not in used)
    # A dict keeps the order of the messages, where a set would make tokens depend on Python's hash seed.
    places = {text: next(free) for text in dict.fromkeys(found)}

    def hide(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub(lambda match: places[match[0]], value)
        if isinstance(value, list):
            return [hide(each) for each in value]
        return {hide(key): hide(each) for key, each in value.items()} if isinstance(value, dict) else value

    hidden = [_hidden(message, hide) for message in messages]
    return ShieldedConversation(hidden, hide(tools), {place: text for text, place in places.items()}, len(found))


def text_ids(text: str, tokenizer: Any) -> list[int] | None:
    """The tokens of a control token's text, none of which is one; ``None`` where the tokenizer has no such."""
    return _text_ids(text, tokenizer)


@lru_cache(maxsize=256)
def _text_ids(text: str, tokenizer: Any) -> list[int] | None:
    special = {tokenizer.convert_tokens_to_ids(token) for token in control_tokens(tokenizer)}
    # Only tokens that are marked as special are split on request. Others, such as DeepSeek's, are broken by a cut.
    ways: list[list[str]] = [[text], [text[:1], text[1:]]]
    for parts in ways:
        ids = [
            one
            for part in parts
            for one in tokenizer(part, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        ]
        if ids and not special & set(ids):
            return ids
    return None


@lru_cache(maxsize=8)
def _pattern(controls: tuple[str, ...]) -> re.Pattern[str]:
    # Without control tokens there is nothing to find.
    return re.compile("|".join(map(re.escape, controls)) or r"(?!)")


def _texts(value: Any) -> Iterator[str]:
    """All texts in a JSON value; those in the arguments of calls as decoded from their JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield key
            # JSON text may write a control token with escapes, which the template shows decoded.
            arguments = decoded_json(each) if key == "arguments" and isinstance(each, str) else None
            yield from _texts(arguments if isinstance(arguments, dict) else each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def _hidden(message: Message, hide: Any) -> Message:
    calls = []
    for call in message.tool_calls:
        arguments = decoded_json(call.arguments)
        hidden = hide(arguments)
        # Arguments without control tokens keep their exact spelling.
        text = call.arguments if hidden == arguments else msgspec.json.encode(hidden).decode()
        calls.append(msgspec.structs.replace(call, name=hide(call.name), arguments=text))
    return msgspec.structs.replace(
        message,
        content=hide(message.content),
        reasoning_content=hide(message.reasoning_content),
        name=hide(message.name),
        tool_calls=calls,
    )
