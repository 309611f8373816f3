"""A training row as tokens: those that the model sees and makes at generation, with loss where the view marked it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from agentmill.schemas.chat import to_template
from agentmill.schemas.records.rows import Message, RowTokens
from agentmill.schemas.templates.argument_values import all_value_ranges, common_length
from agentmill.schemas.templates.message_parts import with_reasoning_apart
from agentmill.schemas.templates.prefix_texts import PrefixTexts, TemplateError
from agentmill.schemas.templates.rendering import Rendered, Segment, as_one, texts
from agentmill.schemas.templates.shielding import ShieldedConversation, shield_control_tokens
from agentmill.trainers.chat_template import chat_template, control_tokens, piece_tokenizer, text_ids
from agentmill.trainers.token_shards import MASK, TOKENS, WEIGHTS, Columns

IGNORED = -100
"""The label of a token without loss."""


class RowError(Exception):
    """A row that cannot be trained on; ``reason`` is a short code that is counted.

    ``lost_tokens`` of it would carry loss, where it is dropped for its length.
    """

    def __init__(self, reason: str, detail: str, lost_tokens: int = 0) -> None:
        super().__init__(detail)
        self.reason = reason
        self.lost_tokens = lost_tokens


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
    stored, and not made of text. ``cut``: the context before its turn is cut within a message.
    ``controls``: how many control tokens of the tokenizer the messages and tools spell out.
    """

    types: ClassVar[Columns] = {"input_ids": TOKENS, "mask": MASK, "weights": WEIGHTS}
    row_id: str
    input_ids: NDArray[np.int32]
    labels: NDArray[np.int32]
    weights: NDArray[np.float32]
    messages: NDArray[np.int32]
    roles: tuple[str, ...]
    stored: bool = False
    cut: bool = False
    controls: int = 0

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Which tokens carry loss."""
        return np.not_equal(self.labels, IGNORED)

    def columns(self) -> dict[str, Any]:
        """The sequence as it is stored: labels follow from the mask, and only tokens with loss have weights."""
        return {"input_ids": self.input_ids, "mask": self.mask, "weights": self.weights[self.mask]}

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
    """A conversation under the tokenizer's chat template, as one sequence, each segment tokenised by itself.

    ``functions`` is JSON text, as in a row. Raises ``RowError`` as ``encode_texts`` does, ``template`` also where the
    template shows a trained message otherwise than at generation; not ``no_loss`` if it may be ``silent``.
    """
    with _row_errors():
        return _encoded(row_id, messages, functions, tokenizer, as_one, silent)[0][1]


def encode_texts(
    row_id: str, messages: Sequence[Message], functions: str | None, tokenizer: Any
) -> list[tuple[Sequence[Message], Encoded]]:
    """A conversation as few sequences as the chat template allows, each message with loss in one, with its messages.

    Raises ``RowError``: ``loss_outside_assistant``, ``template`` (the template fails or refuses the conversation, or
    cannot show a trained message as it is generated), ``no_loss``, ``damaged_tools``,
    ``control_tokens`` (a message spells one that the tokenizer cannot write as text).
    """
    with _row_errors():
        return _encoded(row_id, messages, functions, tokenizer, texts)


@contextmanager
def _row_errors() -> Iterator[None]:
    try:
        yield
    # A TemplateError is a ValueError too, so it has to come first.
    except TemplateError as error:
        raise RowError("template", str(error)) from error
    except ValueError as error:
        raise RowError("loss_outside_assistant", str(error)) from error


def _encoded(
    row_id: str,
    messages: Sequence[Message],
    functions: str | None,
    tokenizer: Any,
    split: Callable[..., Rendered | list[Rendered]],
    silent: bool = False,
) -> list[tuple[Sequence[Message], Encoded]]:
    if not silent and not any(message.train for message in messages):
        raise RowError("no_loss", "no assistant message of the row is trained")
    try:
        tools = msgspec.json.decode(functions) if functions else None
    except (msgspec.DecodeError, RecursionError) as error:
        raise RowError("damaged_tools", f"the tools of the row are no JSON: {error}") from error
    template = chat_template(tokenizer)
    if template.needs_reasoning_apart:
        # Else the answer would begin with it.
        messages = [with_reasoning_apart(message) for message in messages]
    shield = shield_control_tokens(messages, tools, control_tokens(tokenizer))
    prefixes = PrefixTexts(to_template(shield.messages), shield.tools, template.render)

    def split_with_ends() -> list[tuple[Rendered, list[int]]]:
        made = split(shield.messages, shield.tools, template, prefixes)
        return [(each, _ends(each, prefixes)) for each in (made if isinstance(made, list) else [made])]

    result: list[tuple[Sequence[Message], Encoded]] = []
    # Together: where only the ends show that the template rewrites what is earlier, the texts were not right, either.
    rendered = prefixes.retried(split_with_ends)
    values = all_value_ranges(shield.messages, shield.tools, template, [each for each, _ in rendered])
    for each, ends in rendered:
        shown = messages if each.verbatim else with_loss_at(messages[: each.count], each.spans)
        result.append((shown, _tokenized(row_id, each.segments(shown, values), ends, shown, shield, tokenizer)))
    if not silent and not any(encoded.loss_tokens for _, encoded in result):
        raise RowError("no_loss", "the trained messages have no text that carries loss")
    return result


def _ends(rendered: Rendered, prefixes: PrefixTexts) -> list[int]:
    """Where each message ends in the text. Raises ``NotAppendOnly`` as ``message_ends``."""
    ends = message_ends(prefixes, rendered.text, rendered.count)
    if not rendered.verbatim:
        # The template shows these otherwise by themselves, so that where they end cannot be seen from that.
        for index, (start, end) in rendered.spans.items():
            ends[:index] = [min(start, each) for each in ends[:index]]
            ends[index:] = [end, *(max(end, each) for each in ends[index + 1 :])]
    return ends


def _tokenized(
    row_id: str,
    parts: Sequence[Segment],
    ends: Sequence[int],
    messages: Sequence[Message],
    shield: ShieldedConversation,
    tokenizer: Any,
) -> Encoded:
    ids: list[int] = []
    labels: list[int] = []
    weights: list[float] = []
    starts: list[int] = []
    position, before = 0, ""
    for part in parts:
        begin = position
        # A piece at a time: tokens across the border of a control token would not be those of its text.
        for piece in shield.pieces(part.text):
            found, places = _piece_tokens(piece, before, shield, tokenizer)
            shift = position - begin
            carries = [part.carries(shift + start, shift + end) for start, end in places]
            ids += found
            labels += [token if loss else IGNORED for token, loss in zip(found, carries, strict=True)]
            weights += [part.weight if loss else 0.0 for loss in carries]
            starts += [position + start for start, _ in places]
            position += len(piece)
            before = piece
    return Encoded(
        row_id=row_id,
        input_ids=np.array(ids, np.int32),
        labels=np.array(labels, np.int32),
        weights=np.array(weights, np.float32),
        # What the template adds after the last message counts with that message.
        messages=np.array([min(bisect_right(ends, start), len(ends) - 1) for start in starts], np.int32),
        roles=tuple(message.role for message in messages),
        controls=shield.count,
    )


def _piece_tokens(
    piece: str, before: str, shield: ShieldedConversation, tokenizer: Any
) -> tuple[list[int], list[tuple[int, int]]]:
    """The tokens of the piece of text after ``before``, and where each begins and ends in it.

    Raises ``RowError`` (``control_tokens``).
    """
    control = shield.texts.get(piece)
    if control is None:
        pieces = piece_tokenizer(tokenizer)
        if pieces is not None:
            return pieces.encode(piece, before)
        tokens = tokenizer(piece, add_special_tokens=False, return_offsets_mapping=True)
        return tokens["input_ids"], tokens["offset_mapping"]
    ids = text_ids(control, tokenizer)
    if ids is None:
        raise RowError("control_tokens", f"a message spells {control!r}, which the tokenizer cannot write as text")
    # A private character is one character of the rendered text, so all tokens of its control token are there.
    return ids, [(0, 1)] * len(ids)


def with_loss_at(messages: Sequence[Message], places: Collection[int]) -> list[Message]:
    """The messages, with loss on those at ``places`` only."""
    return [msgspec.structs.replace(message, train=place in places) for place, message in enumerate(messages)]


def message_ends(prefixes: PrefixTexts, whole: str, count: int) -> list[int]:
    """Where each message ends in the text ``whole`` of the first ``count`` messages, in characters.

    It is where the rendering of what comes up to it ends. Where a template renders a part of the conversation
    otherwise, the message ends after its content; where it refuses to render it, the message counts with the next one.
    Raises ``NotAppendOnly`` as ``PrefixTexts`` does, after which ``whole`` may be another one.
    """
    ends = [0]
    for number in range(1, count):
        try:
            part = prefixes.text(number, False)
        # Some templates refuse a conversation that does not end with certain roles.
        except TemplateError:
            part = ""
        end = common_length(part, whole)
        content = str(prefixes.messages[number - 1].get("content") or "").strip()
        if part and end < len(part.rstrip()) and content:
            found = whole.find(content, ends[-1])
            end = max(end, found + len(content) if found >= 0 else 0)
        # Ends never go back, or a message would have a negative length.
        ends.append(max(ends[-1], end))
    return [*ends[1:], len(whole)]


def turn_ranges(encoded: Encoded) -> list[tuple[int, int]]:
    """Token ranges of the opening and then of each turn: an assistant message and all up to the next one.

    The opening is what precedes the first assistant message; it may be empty. A call is never parted from its result.
    """
    assistant = [index for index, role in enumerate(encoded.roles) if role == "assistant"]
    starts = [int(np.searchsorted(encoded.messages, index)) for index in assistant]
    return list(pairwise([0, *starts, len(encoded)]))


def round_trip(text: str, tokenizer: Any) -> str:
    """The text as it comes back from its tokens: some tokenizers bring it into a normal form."""
    decoded: str = tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"])
    return decoded
