"""Conversations under a chat template, as texts in which each trained message is what a model would generate.

A template may show an earlier message otherwise than when it was generated (it drops earlier reasoning, for example).
Such a conversation is rendered as several texts, as few as the template allows: each trained message is trained in one
of them, after exactly the prompt that the model was asked with.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from agentmill.schemas.chat import to_template
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.rows import ArgumentLoss, Message
from agentmill.schemas.templates.message_parts import (
    after_content,
    check_arguments,
    marked_message,
    missing_marked_part,
    missing_part,
    reasoning_and_content,
)
from agentmill.schemas.templates.prefix_texts import PrefixTexts
from agentmill.schemas.templates.prefix_texts import Render as Render
from agentmill.schemas.templates.prefix_texts import TemplateError as TemplateError

OPENS_REASONING = re.compile(r"<think>\s*\Z")

Ranges = tuple[tuple[int, int], ...]
"""Starts and ends in a text, in characters."""


class Segment(msgspec.Struct, frozen=True):
    """A stretch of rendered text; tokenised by itself. ``train``: its tokens carry loss, times ``weight``.

    ``values`` are the ranges of the values of arguments, where loss on these is not as on the rest.
    """

    text: str
    train: bool
    weight: float = 1.0
    argument_loss: ArgumentLoss = "trained"
    values: Ranges = ()

    def carries(self, start: int, end: int) -> bool:
        """Whether the token with these characters carries loss; one with any character of a value belongs to it."""
        if not self.train or self.argument_loss == "trained":
            return self.train
        inside = any(start < stop and first < end for first, stop in self.values)
        return inside == (self.argument_loss == "only")


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template and what ends a turn under it.

    ``end_of_turn`` is the text that ends one, for templates that add more after the last turn; by default it is the
    last of a turn that is no white space. ``stops`` are the special tokens of the tokenizer: where a template closes a
    turn with nothing, the model stops with the one that opens the next message (GLM-4.5 does). ``thinking`` is
    the template as it prompts for a turn with reasoning (true) and for one without.
    """

    render: Render
    end_of_turn: str | None = None
    stops: Collection[str] = ()
    thinking: Mapping[bool, Render] = field(default_factory=dict)

    @cached_property
    def needs_reasoning_apart(self) -> bool:
        """Whether reasoning has a place of its own in a turn, and is left in the content where it is written there."""
        apart = Message(role="assistant", content="answer", reasoning_content="reasoning")
        inline = Message(role="assistant", content="<think>\nreasoning\n</think>\n\nanswer")
        question = Message(role="user", content="question")
        try:
            texts = [self.render(to_template([question, each]), None, False) for each in (apart, inline)]
        except TemplateError:
            return False
        # White space may differ.
        return "reasoning" in texts[0] and "".join(texts[0].split()) != "".join(texts[1].split())


@dataclass(frozen=True)
class Rendered:
    """A text of a conversation: that of its first ``count`` messages, of which those in ``spans`` are trained.

    ``spans`` are the start and end of each trained message, in characters, by its index. ``verbatim``: the template
    renders the whole conversation to this text, and each turn ends with its message.
    """

    text: str
    count: int
    spans: dict[int, tuple[int, int]]
    verbatim: bool

    def segments(self, messages: Sequence[Message], values: Mapping[int, Ranges] | None = None) -> list[Segment]:
        """The text, cut into what is trained and what is not; ``values`` are those of arguments, by message."""
        result: list[Segment] = []
        done = 0
        for index, (start, end) in self.spans.items():
            message, ranges = messages[index], (values or {}).get(index, ())
            trained = Segment(self.text[start:end], True, message.weight, message.argument_loss, ranges)
            result += [Segment(self.text[done:start], False), trained]
            done = end
        result.append(Segment(self.text[done:], False))
        return [segment for segment in result if segment.text]


@dataclass(frozen=True)
class _Turn:
    """The text up to the end of a trained message, which begins with the ``prompt`` that the model is asked with."""

    index: int
    prompt: str
    text: str


def segments(
    messages: Sequence[Message], tools: list[JsonObject] | None, render: Render, end_of_turn: str | None = None
) -> list[Segment]:
    """The conversation as one text, cut into what is trained and what is not. Raises as ``as_one`` does."""
    return as_one(messages, tools, ChatTemplate(render, end_of_turn)).segments(messages)


def as_one(
    messages: Sequence[Message],
    tools: list[JsonObject] | None,
    template: ChatTemplate,
    prefixes: PrefixTexts | None = None,
) -> Rendered:
    """The conversation as one text. Raises as ``texts`` does, and ``TemplateError`` where one is not enough."""
    first, *more = texts(messages, tools, template, prefixes)
    if more:
        raise TemplateError(
            f"the chat template shows assistant message {min(first.spans)}, or what precedes it, otherwise than at"
            " generation; train with `chat_template: training`, or on pairs of steps (step_pairs)"
        )
    return first


def texts(
    messages: Sequence[Message],
    tools: list[JsonObject] | None,
    template: ChatTemplate,
    prefixes: PrefixTexts | None = None,
) -> list[Rendered]:
    """The conversation as few texts as the template allows, each trained message in one of them.

    ``prefixes`` are its renderings, where they are used further.

    A trained message starts after the generation prompt and ends with the end-of-turn token. What the template adds
    after it is no part of it. A text ends with the last message that is trained in it, unless the template renders the
    whole conversation so.

    Raises ``TemplateError`` where the template leaves out a part of a trained message (tool calls, in a template that
    knows none; arguments that are no JSON object), shows it otherwise than it prompts for it, or closes it with
    nothing, and ``ValueError`` for a trained message of another role.
    """
    trained = [index for index, message in enumerate(messages) if message.train]
    for index in trained:
        if messages[index].role != "assistant":
            raise ValueError(f"message {index} is of role {messages[index].role!r}: only assistant messages carry loss")
    prefixes = prefixes or PrefixTexts(to_template(messages), tools, template.render)
    shown = _Shown(messages, tools, template, prefixes)
    return prefixes.retried(lambda: _texts(shown, trained))


def _texts(shown: _Shown, trained: Sequence[int]) -> list[Rendered]:
    """The texts of a conversation, of which messages are ``trained``."""
    whole, count = shown.text(len(shown.messages), False), len(shown.messages)
    if not trained:
        return [Rendered(whole, count, {}, True)]
    left = [shown.turn(index) for index in trained]
    result: list[Rendered] = []
    while left:
        # From the last turn backwards: the text up to a turn may show earlier ones as they were generated, and no later
        # ones.
        group = _shown_by(left)
        last = group[-1]
        spans = {turn.index: (len(turn.prompt), len(turn.text)) for turn in group}
        if last.index == trained[-1] and whole.startswith(last.text):
            verbatim = len(group) == len(trained) and not shown.stops_by_role
            result.append(Rendered(whole, count, spans, verbatim))
        else:
            result.append(Rendered(last.text, last.index + 1, spans, False))
        left = [turn for turn in left if turn.index not in spans]
    shown.prefixes.require(all(each.verbatim for each in result))
    return result[::-1]


@dataclass
class _Shown:
    """A conversation under a template, with its renderings."""

    messages: Sequence[Message]
    tools: list[JsonObject] | None
    template: ChatTemplate
    prefixes: PrefixTexts

    def text(self, count: int, prompt: bool, thinking: bool | None = None) -> str:
        """The first ``count`` messages, with the generation prompt if ``prompt``."""
        if thinking is None:
            return self.prefixes.text(count, prompt)
        return self.template.thinking[thinking](self.prefixes.messages[:count], self.tools, prompt)

    def turn(self, index: int) -> _Turn:
        """The trained message at ``index`` as a model would generate it. Raises ``TemplateError``."""
        message = self.messages[index]
        reasoning = bool(reasoning_and_content(message)[0])
        # Each further way is tried only where the ones before cannot show the turn after its own prompt.
        turn, rendered = self._prompted(index), message
        self.prefixes.require(turn is not None)
        if turn is None and self.template.thinking:
            turn = self._prompted(index, reasoning)
        if turn is None:
            turn = self._alone(index)
        if turn is None:
            content = reasoning_and_content(message)[1]
            turn = self._reasoned(index)
            rendered = msgspec.structs.replace(message, reasoning_content=None, content=content)
        if turn is None:
            raise TemplateError(f"the chat template renders assistant message {index} otherwise than it prompts for it")
        part = missing_part(message, turn.text[len(turn.prompt) :])
        self.prefixes.require(part is None)
        if part is None:
            part = self._not_shown(index, rendered)
        if part is not None:
            raise TemplateError(f"the chat template does not show {part[:60]!r} of assistant message {index}")
        check_arguments(message, index)
        return self._closed(turn)

    def _not_shown(self, index: int, message: Message) -> str | None:
        """The first part of the message at ``index``, rendered as ``message``, that the template does not show."""
        if not self.prefixes.derives:
            marked = marked_message(message)
            shown = self.template.render(to_template([*self.messages[:index], marked]), self.tools, False)
            return missing_marked_part(message, marked, shown)
        # Where the template only appends, all messages can be marked at once.
        part = missing_marked_part(message, self._marked_messages[index], self._marked_text)
        self.prefixes.require(part is None)
        return part

    @cached_property
    def _marked_messages(self) -> list[Message]:
        return [marked_message(each, f"{place}_") if each.train else each for place, each in enumerate(self.messages)]

    @cached_property
    def _marked_text(self) -> str:
        try:
            return self.template.render(to_template(self._marked_messages), self.tools, False)
        except TemplateError:
            self.prefixes.require(False)
            raise

    def _prompted(self, index: int, thinking: bool | None = None) -> _Turn | None:
        """The turn as the template shows it, if it begins with the prompt for it."""
        prompt = self.text(index, True, thinking)
        text = self._up_to_end(index, len(prompt), thinking)
        return _Turn(index, prompt, text) if text.startswith(prompt) else None

    def _alone(self, index: int) -> _Turn | None:
        """The turn as it is shown after one question, if it is shown so here, but after another past than prompted for.

        gpt-oss does so: an answer makes the template drop the reasoning before the calls that led to it.
        """
        messages = [Message(role="user", content="question"), self.messages[index]]
        prefixes = PrefixTexts(to_template(messages), self.tools, self.template.render)
        prefixes.derives = False
        alone = _Shown(messages, self.tools, self.template, prefixes)
        try:
            turn = alone._prompted(1)
        except TemplateError:
            return None
        if turn is None:
            return None
        prompt, opening = self.text(index, True), turn.prompt.removeprefix(alone.text(1, False))
        answered = turn.text[len(turn.prompt) :]
        same = answered and prompt.endswith(opening) and self._up_to_end(index, 0).endswith(opening + answered)
        return _Turn(index, prompt, prompt + answered) if same else None

    def _reasoned(self, index: int) -> _Turn | None:
        """The turn after a prompt that opens the reasoning with ``<think>``, where the template shows none."""
        prompt = self.text(index, True)
        opening = OPENS_REASONING.search(prompt)
        stem = prompt[: opening.start()] if opening else prompt
        text = self._up_to_end(index, len(stem))
        if opening is None or not text.startswith(stem):
            return None
        rest = text[len(stem) :]
        if rest.startswith("<think>"):
            return _Turn(index, prompt, prompt + rest.removeprefix("<think>").lstrip())
        reasoning, _ = reasoning_and_content(self.messages[index])
        return _Turn(index, prompt, f"{prompt}{reasoning}\n</think>\n\n{rest.lstrip()}")

    def _up_to_end(self, index: int, start: int, thinking: bool | None = None) -> str:
        """The rendering up to the message at ``index`` and the end of its turn, which is sought from ``start`` on."""
        text = self.text(index + 1, False, thinking)
        end = self.template.end_of_turn
        if end is None:
            return text[:start] + text[start:].rstrip()
        position = text.rfind(end, start)
        if position < 0:
            raise TemplateError(f"the chat template does not close an assistant message with {end!r}")
        return text[: position + len(end)]

    def _closed(self, turn: _Turn) -> _Turn:
        """The turn with what the model stops with, where the template closes it with nothing."""
        message = self.messages[turn.index]
        if self.stops_by_role:
            answers = [*(each.role for each in self.messages[turn.index + 1 : turn.index + 2])]
            role = answers[0] if answers else "tool" if message.tool_calls else "user"
            return _Turn(turn.index, turn.prompt, turn.text + self.stops_by_role.get(role, ""))
        if not message.tool_calls and not after_content(message, turn.text[len(turn.prompt) :]):
            raise TemplateError(
                f"the chat template closes assistant message {turn.index} with nothing that a model could learn"
            )
        return turn

    @cached_property
    def stops_by_role(self) -> dict[str, str]:
        """Where the template writes nothing after an answer: the special token that opens a message, by its role."""
        question: JsonObject = {"role": "user", "content": "question"}
        answer: JsonObject = {"role": "assistant", "content": "the answer"}
        call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {}}}
        replies: list[tuple[JsonObject, JsonObject]] = [
            (answer, question),
            (
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "content": "result", "name": "f", "tool_call_id": "call00000"},
            ),
        ]
        found: dict[str, str] = {}
        for message, reply in replies:
            try:
                text = self.template.render([question, message], None, False).rstrip()
                following = self.template.render([question, message, reply], None, False)
            except TemplateError:
                continue
            # The template closes a turn by itself, so the next message's token is not needed.
            if message is answer and not text.endswith("the answer"):
                return {}
            following = following.removeprefix(text).lstrip()
            stop = next((stop for stop in self.template.stops if following.startswith(stop)), "")
            found |= {reply["role"]: stop} if stop else {}
        return found


def _shown_by(turns: Sequence[_Turn]) -> list[_Turn]:
    """The last of ``turns``, and before it those that its prompt shows as they were generated."""
    group = [turns[-1]]
    for turn in reversed(turns[:-1]):
        if group[0].prompt.startswith(turn.text):
            group.insert(0, turn)
    return group
