"""Conversations that are scored, as tokens: read whole, with no loss on what they say."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from agentmill.schemas.records.rows import Message, PreferenceRow, ScorerRow
from agentmill.trainers.rows import Made
from agentmill.trainers.tokens import Encoded, RowError, encode_messages


@dataclass(frozen=True)
class Comparison:
    """Two conversations, of which ``chosen`` shall score higher by ``margin``; ``weight`` scales the loss."""

    chosen: Encoded
    rejected: Encoded
    margin: float
    weight: float


@dataclass(frozen=True)
class Valued:
    """A conversation and the score that it shall get."""

    sequence: Encoded
    value: float


def comparison(row: PreferenceRow, tokenizer: Any, max_length: int, margin: bool) -> Made[Comparison]:
    """The row as tokens. Raises ``RowError`` as ``whole``, and ``same`` (nothing tells the two sides apart).

    With ``margin`` it is what the chosen side scored more than the rejected one; 0 where a score is not known, or was
    not what decided the pair.
    """
    messages = [[*row.prompt, *completion] for completion in (row.chosen, row.rejected)]
    chosen, rejected = (
        whole(f"{row.row_id}/{side}", each, row.tools, tokenizer, max_length)
        for side, each in zip(("chosen", "rejected"), messages, strict=True)
    )
    if np.array_equal(chosen.input_ids, rejected.input_ids):
        raise RowError("same", "chosen and rejected are the same")
    ahead = 0.0
    if margin and row.chosen_score is not None and row.rejected_score is not None:
        ahead = max(0.0, row.chosen_score - row.rejected_score)
    sides = [chosen, rejected]
    return Made([Comparison(chosen, rejected, ahead, row.weight)], sides, list(zip(messages, sides, strict=True)))


def valued(row: ScorerRow, tokenizer: Any, max_length: int) -> Made[Valued]:
    """The row as tokens. Raises ``RowError`` as ``whole``, and ``no_value``."""
    if row.value is None:
        raise RowError("no_value", f"{row.row_id}: there is no value to learn")
    sequence = whole(row.row_id, row.messages, row.tools, tokenizer, max_length)
    return Made([Valued(sequence, row.value)], [sequence], [(row.messages, sequence)])


def whole(row_id: str, messages: Sequence[Message], functions: str | None, tokenizer: Any, limit: int) -> Encoded:
    """A conversation as its chat template shows it, tokenised in one piece, as it will be when the model is asked.

    Raises ``RowError``: ``no_messages``, ``template``, ``too_long`` for more than ``limit`` tokens (a part of a run is
    not what was judged).
    """
    if not messages:
        raise RowError("no_messages", f"{row_id}: there is nothing to score")
    silent = [msgspec.structs.replace(message, train=False) for message in messages]
    encoded = encode_messages(row_id, silent, functions, tokenizer, silent=True)
    if len(encoded) > limit:
        raise RowError("too_long", f"{row_id}: {len(encoded)} tokens, more than max_length {limit}")
    return encoded


def spread(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and how far it is from the values (root mean square)."""
    return statistics.fmean(values), statistics.pstdev(values)
