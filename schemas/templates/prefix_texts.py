"""The renderings of all beginnings of a conversation, most of them taken out of the rendering of the whole.

Rendering each beginning by itself takes time that grows with the square of the messages. Most templates only append:
what they show of the first messages is how the whole begins, followed by what they add at the end. What they add is
the same after messages of the same kind. Some beginnings of each kind are rendered to make sure; where one of them is
otherwise, what was taken is dropped, and every beginning of that conversation is rendered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeVar

from agentmill.schemas.records.record import JsonObject

T = TypeVar("T")

Render = Callable[[list[JsonObject], list[JsonObject] | None, bool], str]
"""``(messages, tools, add_generation_prompt) -> text``: a chat template at work."""

Kind = tuple[bool, tuple[object, ...], object]
"""With the generation prompt or not, the last message, and the role of the one that follows in the whole."""

CHECKED_EACH = 8
"""Of each kind the first two beginnings are rendered, the 8th, the 64th and so on."""


class TemplateError(ValueError):
    """A chat template under which a message cannot be trained as it would be generated, or that fails."""


class RenderedText(str):
    """A rendered conversation; ``starts`` are where its messages start in it, in characters.

    It is -1 for a message that no loop of the template takes; they are empty where loops do not take them in order.
    """

    starts: Sequence[int] = ()


class NotAppendOnly(Exception):
    """A beginning is not that of the whole with what its kind has added; from now on each is rendered."""


class PrefixTexts:
    """The renderings of the first messages of a conversation; each is made once.

    ``NotAppendOnly`` may come from every method, but never after it came once; ``retried`` sees to it.
    """

    derives = True
    """Whether texts are taken out of that of the whole; false: each is rendered."""

    def __init__(self, messages: Sequence[JsonObject], tools: list[JsonObject] | None, render: Render) -> None:
        self.messages = list(messages)
        self.tools = tools
        self._render = render
        self._made: dict[tuple[int, bool], str | TemplateError] = {}
        self._added: dict[Kind, str] = {}
        self._met: dict[Kind, int] = {}

    def retried(self, made: Callable[[], T]) -> T:
        """What ``made`` gives; it is called again where the first texts that it asked for were not the right ones."""
        try:
            return made()
        except NotAppendOnly:
            return made()

    def require(self, holds: bool) -> None:
        """Raises ``NotAppendOnly`` unless it ``holds`` or every text is rendered by itself anyway."""
        if self.derives and not holds:
            self.derives = False
            raise NotAppendOnly

    def text(self, count: int, prompt: bool) -> str:
        """The first ``count`` messages, with the generation prompt if ``prompt``. Raises ``TemplateError``."""
        whole = self._whole if self.derives and count > 0 and (count, prompt) not in self._made else None
        # Templates show the first messages outside the loop: the system prompt, or the question with the tools.
        if whole is None or self._starts[count] < 0 or (count == len(self.messages) and not prompt):
            return self._rendered(count, prompt)
        kind = self._kind(count, prompt)
        met = self._met[kind] = self._met.get(kind, 0) + 1
        begins = whole[: self._starts[count]]
        if kind in self._added and not _checked(met):
            return begins + self._added[kind]
        # A template that refuses one beginning may refuse others of its kind, or not.
        try:
            text = self._rendered(count, prompt)
        except TemplateError:
            self.require(False)
            raise
        self.require(text.startswith(begins) and self._added.get(kind, text[len(begins) :]) == text[len(begins) :])
        self._added[kind] = text[len(begins) :]
        return text

    @cached_property
    def _whole(self) -> str | None:
        """The whole, where it is known where its messages start."""
        try:
            whole = self._rendered(len(self.messages), False)
        except TemplateError:
            return None
        self._starts = (*(whole.starts if isinstance(whole, RenderedText) else ()), len(whole))
        return str(whole) if len(self._starts) == len(self.messages) + 1 else None

    def _rendered(self, count: int, prompt: bool) -> str:
        """The rendering itself, made once. Raises ``TemplateError``."""
        key = (count, prompt)
        if key not in self._made:
            try:
                self._made[key] = self._render(self.messages[:count], self.tools, prompt)
            except TemplateError as error:
                self._made[key] = error
        found = self._made[key]
        if isinstance(found, TemplateError):
            raise found
        return found

    def _kind(self, count: int, prompt: bool) -> Kind:
        following = self.messages[count].get("role") if count < len(self.messages) else None
        return prompt, _traits(self.messages[count - 1]), following


def _traits(message: JsonObject) -> tuple[object, ...]:
    """What templates tell messages apart by, but for their texts."""
    content = message.get("content")
    inline = isinstance(content, str) and "<think>" in content
    return message.get("role"), tuple(message), bool(content), inline, len(message.get("tool_calls") or ())


def _checked(number: int) -> bool:
    """Whether the beginning of a kind that comes as the ``number``-th is rendered."""
    powers = number
    while powers % CHECKED_EACH == 0:
        powers //= CHECKED_EACH
    return powers == 1 or number == 2
