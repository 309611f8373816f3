"""A training row as tokens: exactly those the model sees and makes at generation, with loss where the view says so."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any, Protocol

import jinja2
import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.chat import Render, TemplateError, segments, to_template
from schemas.record import JsonObject
from schemas.rows import Message, RowTokens

IGNORED = -100
"""The label of a token without loss."""


class RowError(Exception):
    """A row that cannot be trained on; ``reason`` is a short code that is counted."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Conversation(Protocol):
    """What is trained as one: an ``SftRow``, or a prompt with its completion. Fields as those of an ``SftRow``."""

    @property
    def row_id(self) -> str:
        """What errors call it."""

    @property
    def messages(self) -> Sequence[Message]:
        """All of it, marked."""

    @property
    def tools(self) -> str | None:
        """JSON text."""

    @property
    def tokens(self) -> Sequence[RowTokens]:
        """What is stored of it."""


@dataclass(frozen=True)
class Encoded:
    """Arrays of one length: ``labels`` are the ids or ``IGNORED``, ``weights`` scale the loss of each token.

    ``messages`` is the index of the message that a token belongs to, the generation prompt counted with the message
    that it opens; ``roles`` are those of the messages. ``stored``: the tokens are those that were sampled, as they were
    stored, and not made of text.
    """

    row_id: str
    input_ids: NDArray[np.int32]
    labels: NDArray[np.int32]
    weights: NDArray[np.float32]
    messages: NDArray[np.int32]
    roles: tuple[str, ...]
    stored: bool = False

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Which tokens carry loss."""
        return np.not_equal(self.labels, IGNORED)

    @property
    def loss_tokens(self) -> int:
        """How many tokens carry loss."""
        return int(self.mask.sum())


def encode(row: Conversation, tokenizer: Any) -> Encoded:
    """The text of the conversation as tokens. Raises ``RowError`` as ``encode_messages`` does."""
    return encode_messages(row.row_id, row.messages, row.tools, tokenizer)


def encode_messages(
    row_id: str, messages: Sequence[Message], functions: str | None, tokenizer: Any, silent: bool = False
) -> Encoded:
    """A conversation under the tokenizer's chat template, each segment tokenised by itself.

    ``functions`` is JSON text, as in a row. Raises ``RowError``: ``loss_outside_assistant``, ``template`` (the template
    refuses the conversation, or shows a trained message otherwise than at generation), ``no_loss`` unless it may be
    ``silent``.
    """
    render = renderer(tokenizer)
    tools = msgspec.json.decode(functions) if functions else None
    try:
        parts = segments(messages, tools, render)
        ends = message_ends(to_template(messages), tools, render)
    except (TemplateError, jinja2.TemplateError) as error:
        raise RowError("template", str(error)) from error
    except ValueError as error:
        raise RowError("loss_outside_assistant", str(error)) from error
    ids: list[int] = []
    labels: list[int] = []
    weights: list[float] = []
    starts: list[int] = []
    position = 0
    for part in parts:
        tokens = tokenizer(part.text, add_special_tokens=False, return_offsets_mapping=True)
        ids += tokens["input_ids"]
        labels += tokens["input_ids"] if part.train else [IGNORED] * len(tokens["input_ids"])
        weights += [part.weight if part.train else 0.0] * len(tokens["input_ids"])
        starts += [position + start for start, _ in tokens["offset_mapping"]]
        position += len(part.text)
    if not silent and all(label == IGNORED for label in labels):
        raise RowError("no_loss", "no assistant message of the row is trained")
    return Encoded(
        row_id=row_id,
        input_ids=np.array(ids, np.int32),
        labels=np.array(labels, np.int32),
        weights=np.array(weights, np.float32),
        messages=np.array([min(bisect_right(ends, start), len(ends) - 1) for start in starts], np.int32),
        roles=tuple(message.role for message in messages),
    )


def renderer(tokenizer: Any) -> Render:
    """The tokenizer's chat template as a function to text."""

    def render(messages: list[JsonObject], tools: list[JsonObject] | None, add_generation_prompt: bool) -> str:
        text: str = tokenizer.apply_chat_template(
            messages, tools=tools, add_generation_prompt=add_generation_prompt, tokenize=False
        )
        return text

    return render


def message_ends(messages: Sequence[JsonObject], tools: list[JsonObject] | None, render: Render) -> list[int]:
    """Where each message ends in the whole rendering, in characters, found by rendering what comes up to it.

    Where a template refuses to render a part of the conversation, the message counts with the next one.
    """
    whole = render(list(messages), tools, False)
    ends = [0]
    for count in range(1, len(messages)):
        try:
            part = render(list(messages[:count]), tools, False)
        except jinja2.TemplateError:
            part = ""
        ends.append(max(ends[-1], _common(part, whole)))
    return [*ends[1:], len(whole)]


def _common(one: str, other: str) -> int:
    """How many characters two texts share from the start on."""
    if other.startswith(one):
        return len(one)
    return next(index for index, pair in enumerate(zip_longest(one, other)) if pair[0] != pair[1])


def blocks(encoded: Encoded) -> list[tuple[int, int]]:
    """Token ranges of the opening and then of each turn: an assistant message and all up to the next one.

    The opening is what precedes the first assistant message; it may be empty. A call is never parted from its result.
    """
    assistant = [index for index, role in enumerate(encoded.roles) if role == "assistant"]
    starts = [int(np.searchsorted(encoded.messages, index)) for index in assistant]
    return list(pairwise([0, *starts, len(encoded)]))
