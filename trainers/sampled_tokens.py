"""Rows of our own rollouts as tokens: those that were sampled, wherever they decode to what the row holds.

A text has many tokenisations, and a model's own need not be the one that its text maps back to.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from agentmill.schemas.chat import to_template
from agentmill.schemas.records.rows import Message, RowTokens, SampledTurn
from agentmill.schemas.templates.message_parts import missing_part
from agentmill.schemas.templates.prefix_texts import PrefixTexts
from agentmill.schemas.templates.rendering import TemplateError
from agentmill.schemas.templates.shielding import shield_control_tokens
from agentmill.trainers.chat_template import control_tokens, renderer
from agentmill.trainers.tokenization import (
    IGNORED,
    Conversation,
    Encoded,
    RowError,
    encode,
    encode_texts,
    message_ends,
    round_trip,
    with_loss_at,
)

CONTEXT = 16
"""Tokens that are decoded before those whose text is measured.

A character has at most four, and some tokenizers drop the space of the first one.
"""


def encode_row(row: Conversation, tokenizer: Any) -> list[tuple[Sequence[Message], Encoded]]:
    """The conversations that a row is trained as, with their messages: each message with loss has it in one of them.

    There is one for each stored segment that decodes to the messages of the row, unless one with loss has another on
    values of arguments. For the messages with loss that are in none of these, as few are made of text as the chat
    template allows. Raises ``RowError`` as ``encode_texts`` does, and ``damaged_tokens`` where the stored ones break
    the contract of ``RowTokens``.
    """
    check_turns(row)
    whole: list[tuple[Sequence[Message], Encoded]] = []
    rest = {place for place, message in enumerate(row.messages) if message.train}
    for segment in row.tokens:
        sampled = rest & {turn.message for turn in segment.turns}
        # Values of arguments are found in the text of the chat template, and not in what was sampled.
        if any(row.messages[place].argument_loss != "trained" for place in sampled):
            continue
        # Earlier segments may have had all messages of this one; decoding it would be work for nothing.
        places = message_of_tokens(row, segment, tokenizer) if sampled else None
        if places is not None:
            messages = with_loss_at(row.messages[: segment.turns[-1].message + 1], sampled)
            tools = msgspec.json.decode(row.tools) if row.tools else None
            controls = shield_control_tokens(messages, tools, control_tokens(tokenizer)).count
            whole.append((messages, encode_segment(row.row_id, segment, messages, places, controls)))
            # A message has its loss once, though later segments show it again as context.
            rest -= sampled
    if not whole:
        return encode_texts(row.row_id, row.messages, row.tools, tokenizer)
    if rest:
        messages = with_loss_at(row.messages[: max(rest) + 1], rest)
        whole += encode_texts(row.row_id, messages, row.tools, tokenizer)
    return whole


def encode_whole(row: Conversation, tokenizer: Any) -> tuple[Sequence[Message], Encoded]:
    """The row as one conversation, with its messages, for losses that cannot be split into several.

    It has the stored tokens where one segment holds all messages with loss and decodes to the messages of the row, else
    those of its text. Raises ``RowError`` as ``encode_row``.
    """
    parts = encode_row(row, tokenizer)
    return parts[0] if len(parts) == 1 else (row.messages, encode(row, tokenizer))


def check_turns(row: Conversation) -> None:
    """Raises ``RowError`` unless the turns of the stored tokens are in order, and each of an assistant's message."""
    message = -1
    for segment in row.tokens:
        end = 0
        for turn in segment.turns:
            if not (end <= turn.start < turn.end and message < turn.message < len(row.messages)):
                raise RowError("damaged_tokens", f"the stored turns are out of order or range at {turn}")
            if row.messages[turn.message].role != "assistant":
                raise RowError(
                    "damaged_tokens", f"message {turn.message} has stored tokens, but no assistant message holds it"
                )
            end, message = turn.end, turn.message
        if not end == len(segment.input_ids) > 0 or min(segment.input_ids) < 0:
            raise RowError("damaged_tokens", f"{len(segment.input_ids)} stored tokens, of which turns reach to {end}")


def encode_segment(
    row_id: str, segment: RowTokens, messages: Sequence[Message], places: NDArray[np.int32], controls: int = 0
) -> Encoded:
    """The stored tokens, with loss on what was sampled for the trained messages; ``places`` are those of each token.

    A turn that was cut short has no end-of-turn token, and gets none.
    """
    ids = np.array(segment.input_ids, np.int32)
    labels = np.full_like(ids, IGNORED)
    weights = np.zeros(len(ids), np.float32)
    for turn in segment.turns:
        if messages[turn.message].train:
            labels[turn.start : turn.end] = ids[turn.start : turn.end]
            weights[turn.start : turn.end] = messages[turn.message].weight
    roles = tuple(message.role for message in messages)
    return Encoded(row_id, ids, labels, weights, places, roles, stored=True, controls=controls)


def message_of_tokens(row: Conversation, segment: RowTokens, tokenizer: Any) -> NDArray[np.int32] | None:
    """The index of the message of each stored token, ``None`` if the tokens decode to anything else than the row.

    Sampled tokens must hold the parts of their message; the text before and between must be that of the chat template,
    in whatever tokens. The opening need only hold the system prompt and be the same from the text of the next message
    on: a template may write the date before it, and servers list tools each in their way.
    """
    # Ids of another tokenizer: the model may have no embedding for them.
    if max(segment.input_ids) >= len(tokenizer):
        return None
    tools = msgspec.json.decode(row.tools) if row.tools else None
    before = to_template(row.messages[: segment.turns[-1].message])
    prefixes = PrefixTexts(before, tools, renderer(tokenizer))
    try:
        text = prefixes.retried(lambda: prefixes.text(len(before), True))
        ends = prefixes.retried(lambda: message_ends(prefixes, prefixes.text(len(before), False), len(before)))
    except TemplateError:
        return None
    found: list[NDArray[np.int32]] = []
    last: SampledTurn | None = None
    for turn in segment.turns:
        ids = segment.input_ids[last.end if last else 0 : turn.start]
        first, begin = (last.message, ends[last.message]) if last else (0, 0)
        expected = text[begin : ends[turn.message - 1]] + text[ends[-1] :]
        read = tokenizer.decode(ids)
        opening = row.messages[: turn.message]
        same = _opens(read, expected, opening, ends, tokenizer) if last is None else _ends(read, expected, tokenizer)
        sampled = tokenizer.decode(segment.input_ids[turn.start : turn.end])
        if not same or missing_part(row.messages[turn.message], sampled) is not None:
            return None
        stops = [len(read) - len(expected) + end - begin for end in ends[first : turn.message]]
        # Ends count from the end of the text: only there the opening is known to agree with the template.
        found += [_by_message(ids, stops, first, tokenizer), np.full(turn.end - turn.start, turn.message, np.int32)]
        last = turn
    return np.concatenate(found)


def _opens(read: str, expected: str, messages: Sequence[Message], ends: Sequence[int], tokenizer: Any) -> bool:
    """Whether ``read`` is ``expected`` from the first message on, and has the text of the system prompt before."""
    system = [message for message in messages[:1] if message.role == "system"]
    start = 0
    if len(messages) > len(system):
        text = (messages[len(system)].content or "").strip()
        start = max(expected.rfind(text, 0, ends[len(system)]), 0)
    texts = [round_trip((message.content or "").strip(), tokenizer) for message in system]
    return all(text in read for text in texts) and _ends(read, expected[start:], tokenizer)


def _ends(read: str, expected: str, tokenizer: Any) -> bool:
    return read.endswith(round_trip(expected, tokenizer))


def _by_message(ids: Sequence[int], stops: Sequence[int], first: int, tokenizer: Any) -> NDArray[np.int32]:
    """The message of each of ``ids``; the one at ``first`` reaches to ``stops[0]`` in their text, and so on."""
    cuts, length = [0], 0
    for stop in stops:
        begin = cuts[-1]
        # Decoding from the start on for each message takes time that grows with the cube of a conversation.
        context = max(begin - CONTEXT, 0)
        known = length - len(tokenizer.decode(ids[context:begin]))

        def reached(count: int, context: int = context, known: int = known) -> int:
            return known + len(tokenizer.decode(ids[context:count]))

        width = CONTEXT
        while begin + width < len(ids) and reached(begin + width) < stop:
            width *= 2
        # A part of a character reads as one, so that more tokens may have a shorter text.
        end = min(begin + width, len(ids))
        cuts.append(begin + bisect_left(range(begin, end), stop, key=reached))
        length = reached(cuts[-1])
    sizes = np.diff([*cuts, len(ids)])
    return np.repeat(np.arange(first, first + len(stops) + 1, dtype=np.int32), sizes)
