"""Preferences as tokens: for DPO and KTO with loss in the completion alone, for reward models without any.

For DPO and KTO loss is where the view says so: none in the prompt, or in what the environment answered. Reward models
read whole conversations as their chat template shows them, and score them at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from agentmill.schemas.records.rows import Message, PreferenceRow, RowTokens, ScorerRow, UnpairedRow
from agentmill.trainers.data import EncodedRow
from agentmill.trainers.sampled_tokens import encode_whole
from agentmill.trainers.token_shards import MASK, TOKENS, Columns
from agentmill.trainers.tokenization import Encoded, RowError, encode_messages


@dataclass(frozen=True)
class Pair:
    """The two conversations of a pair; ``weight`` scales its loss."""

    types: ClassVar[Columns] = {
        **dict.fromkeys(("chosen_ids", "rejected_ids"), TOKENS),
        **dict.fromkeys(("chosen_mask", "rejected_mask"), MASK),
        "weight": pa.float64(),
    }
    chosen: Encoded
    rejected: Encoded
    weight: float

    def __len__(self) -> int:
        # Both sides are rows of one tensor, so the longer one decides the padding.
        return max(len(self.chosen), len(self.rejected))

    def columns(self) -> dict[str, Any]:
        """The pair as it is stored."""
        sides = {"chosen": self.chosen, "rejected": self.rejected}
        ids = {f"{name}_ids": side.input_ids for name, side in sides.items()}
        return {**ids, **{f"{name}_mask": side.mask for name, side in sides.items()}, "weight": self.weight}


@dataclass(frozen=True)
class Labelled:
    """A conversation that is good or bad; the first ``prompt`` tokens are its prompt."""

    types: ClassVar[Columns] = {
        **{"ids": TOKENS, "mask": MASK},
        **{"prompt": pa.int32(), "label": pa.bool_(), "weight": pa.float64()},
    }
    sequence: Encoded
    prompt: int
    label: bool
    weight: float

    def __len__(self) -> int:
        return len(self.sequence)

    def columns(self) -> dict[str, Any]:
        """The conversation as it is stored."""
        known = {"prompt": self.prompt, "label": self.label, "weight": self.weight}
        return {"ids": self.sequence.input_ids, "mask": self.sequence.mask, **known}


@dataclass(frozen=True)
class CompletedPrompt:
    """A prompt with its completion, a ``Conversation``; ``tools`` and ``tokens`` as in an ``SftRow``."""

    row_id: str
    prompt: list[Message]
    completion: list[Message]
    tools: str | None
    tokens: list[RowTokens]

    @property
    def messages(self) -> list[Message]:
        """All of it."""
        return [*self.prompt, *self.completion]


def encode_pair(row: PreferenceRow, tokenizer: Any, max_length: int) -> EncodedRow[Pair]:
    """The row as tokens, whole: a part of a pair is not what was judged.

    A side of our own rollouts has the tokens that were sampled, unless their prompt differs from that of the other side
    (it may name the day): then both are made of text. Raises ``RowError``: as ``encode_completion``, ``prefix`` (the
    chat template shows the prompt differently on the two sides) and ``same`` (the two sides do not differ).
    """
    sides = [
        CompletedPrompt(f"{row.row_id}/chosen", row.prompt, row.chosen, row.tools, row.chosen_tokens),
        CompletedPrompt(f"{row.row_id}/rejected", row.prompt, row.rejected, row.tools, row.rejected_tokens),
    ]
    whole = [encode_completion(side, tokenizer) for side in sides]
    # A loss of pairs compares two answers to one prompt.
    if any(each.stored for _, each in whole) and not same_prompt(whole, row.prompt, tokenizer):
        whole = [encode_completion(replace(side, tokens=[]), tokenizer) for side in sides]
    check_length([each for _, each in whole], max_length)
    if not same_prompt(whole, row.prompt, tokenizer):
        raise RowError("prefix", "the chat template shows the prompt differently before chosen and rejected")
    chosen, rejected = (each for _, each in whole)
    # By text: the same words in other tokens would teach a preference between tokenisations.
    if same_text(chosen.input_ids, rejected.input_ids, tokenizer):
        raise RowError("same", "chosen and rejected are the same")
    return EncodedRow([Pair(chosen, rejected, row.weight)], [chosen, rejected], whole)


def encode_labelled(row: UnpairedRow, tokenizer: Any, max_length: int) -> EncodedRow[Labelled]:
    """The row as tokens, whole, since all of it was judged. Raises ``RowError`` as ``encode_completion``."""
    side = CompletedPrompt(row.row_id, row.prompt, row.completion, row.tools, row.tokens)
    messages, sequence = encode_completion(side, tokenizer)
    check_length([sequence], max_length)
    made = Labelled(sequence, prompt_length(sequence, row.prompt), row.label, row.weight)
    return EncodedRow([made], [sequence], [(messages, sequence)])


def encode_completion(side: CompletedPrompt, tokenizer: Any) -> tuple[Sequence[Message], Encoded]:
    """A prompt and its completion as one conversation, with its messages. Raises ``RowError`` as ``encode_whole``, and:

    ``no_prompt``, ``loss_in_prompt``, ``message_weight`` (the loss is one of whole completions, so its messages cannot
    weigh differently).
    """
    if not side.prompt:
        raise RowError("no_prompt", "the row has no prompt, so there is nothing to prefer an answer to")
    if any(message.train for message in side.prompt):
        raise RowError("loss_in_prompt", "a message of the prompt is marked for training; only the completion may be")
    if any(message.train and message.weight != 1 for message in side.completion):
        raise RowError("message_weight", "a message has a weight of its own; preferences weigh whole completions")
    try:
        return encode_whole(side, tokenizer)
    except RowError as error:
        raise RowError(error.reason, f"{side.row_id}: {error}") from error


def check_length(sequences: Sequence[Encoded], limit: int) -> None:
    """Raises ``RowError`` (``too_long``) if a sequence has more than ``limit`` tokens: the row is dropped whole."""
    longest = max(sequences, key=len)
    if len(longest) > limit:
        lost = sum(each.loss_tokens for each in sequences)
        raise RowError("too_long", f"{longest.row_id}: {len(longest)} tokens, more than max_length {limit}", lost)


def same_prompt(whole: Sequence[tuple[Any, Encoded]], prompt: Sequence[Message], tokenizer: Any) -> bool:
    """Whether two sides show their prompt alike, in whatever tokens."""
    one, other = (each.input_ids[: prompt_length(each, prompt)] for _, each in whole)
    return same_text(one, other, tokenizer)


def same_text(one: NDArray[np.int32], other: NDArray[np.int32], tokenizer: Any) -> bool:
    """Whether tokens decode to the same text, which has many tokenisations."""
    # Equal tokens are the common case, and decoding costs more than comparing.
    return np.array_equal(one, other) or tokenizer.decode(one) == tokenizer.decode(other)


def prompt_length(encoded: Encoded, prompt: Sequence[Message]) -> int:
    """How many tokens come before the completion, the generation prompt counted with the completion."""
    return int(np.searchsorted(encoded.messages, len(prompt)))


@dataclass(frozen=True)
class Comparison:
    """Two conversations, of which ``chosen`` shall score higher by ``margin``; ``weight`` scales the loss."""

    types: ClassVar[Columns] = {
        **dict.fromkeys(("chosen_ids", "rejected_ids"), TOKENS),
        **dict.fromkeys(("margin", "weight"), pa.float64()),
    }
    chosen: Encoded
    rejected: Encoded
    margin: float
    weight: float

    def __len__(self) -> int:
        return max(len(self.chosen), len(self.rejected))

    def columns(self) -> dict[str, Any]:
        """The pair as it is stored."""
        ids = {"chosen_ids": self.chosen.input_ids, "rejected_ids": self.rejected.input_ids}
        return {**ids, "margin": self.margin, "weight": self.weight}


@dataclass(frozen=True)
class Valued:
    """A conversation and the score that it shall get."""

    types: ClassVar[Columns] = {"ids": TOKENS, "value": pa.float64()}
    sequence: Encoded
    value: float

    def __len__(self) -> int:
        return len(self.sequence)

    def columns(self) -> dict[str, Any]:
        """The conversation as it is stored."""
        return {"ids": self.sequence.input_ids, "value": self.value}


def encode_comparison(row: PreferenceRow, tokenizer: Any, max_length: int, margin: bool) -> EncodedRow[Comparison]:
    """The row as tokens. Raises ``RowError`` as ``encode_scored``, and ``same`` (the two sides do not differ).

    With ``margin`` it is what the chosen side scored more than the rejected one; 0 where a score is not known, or was
    not what decided the pair.
    """
    messages = [[*row.prompt, *completion] for completion in (row.chosen, row.rejected)]
    chosen, rejected = (
        encode_scored(f"{row.row_id}/{side}", each, row.tools, tokenizer, max_length)
        for side, each in zip(("chosen", "rejected"), messages, strict=True)
    )
    if np.array_equal(chosen.input_ids, rejected.input_ids):
        raise RowError("same", "chosen and rejected are the same")
    ahead = 0.0
    if margin and row.chosen_score is not None and row.rejected_score is not None:
        # A negative margin would ask the model to score the chosen side lower.
        ahead = max(0.0, row.chosen_score - row.rejected_score)
    sides = [chosen, rejected]
    return EncodedRow([Comparison(chosen, rejected, ahead, row.weight)], sides, list(zip(messages, sides, strict=True)))


def encode_valued(row: ScorerRow, tokenizer: Any, max_length: int) -> EncodedRow[Valued]:
    """The row as tokens. Raises ``RowError`` as ``encode_scored``, and ``no_value``."""
    if row.value is None:
        raise RowError("no_value", f"{row.row_id}: there is no value to learn")
    sequence = encode_scored(row.row_id, row.messages, row.tools, tokenizer, max_length)
    return EncodedRow([Valued(sequence, row.value)], [sequence], [(row.messages, sequence)])


def encode_scored(
    row_id: str, messages: Sequence[Message], functions: str | None, tokenizer: Any, limit: int
) -> Encoded:
    """A conversation as its chat template shows it, tokenised in one piece, as it will be when the model scores it.

    Raises ``RowError``: ``no_messages``, ``template``, ``too_long`` for more than ``limit`` tokens (a part of a
    trajectory is not what was judged).
    """
    if not messages:
        raise RowError("no_messages", f"{row_id}: there is nothing to score")
    # A trained message must be shown as at generation, or the row is dropped; that does not matter for a score.
    silent = [msgspec.structs.replace(message, train=False) for message in messages]
    encoded = encode_messages(row_id, silent, functions, tokenizer, silent=True)
    if len(encoded) > limit:
        raise RowError("too_long", f"{row_id}: {len(encoded)} tokens, more than max_length {limit}")
    return encoded
