"""Preferences as tokens: loss where the view says so in the completion, none in the prompt or in what came back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.rows import Message, PreferenceRow, RowTokens, UnpairedRow
from agentmill.trainers.loading import load_errors
from agentmill.trainers.models import model_folder
from agentmill.trainers.rows import Made
from agentmill.trainers.stored import encode_whole
from agentmill.trainers.tokens import Encoded, RowError


@dataclass(frozen=True)
class Pair:
    """The two conversations of a pair; ``weight`` scales its loss."""

    chosen: Encoded
    rejected: Encoded
    weight: float


@dataclass(frozen=True)
class Labelled:
    """A conversation that is good or bad; the first ``prompt`` tokens are its prompt."""

    sequence: Encoded
    prompt: int
    label: bool
    weight: float


@dataclass(frozen=True)
class Completed:
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


def pair(row: PreferenceRow, tokenizer: Any, max_length: int) -> Made[Pair]:
    """The row as tokens, whole: a pair of which a part is cut away says nothing of what is better.

    Of a side that we generated they are those that were sampled, unless that would show another prompt than the other
    side has (the day of its run, say): then both are made of text. Raises ``RowError``: as ``encoded``, ``prefix`` (the
    chat template shows the prompt differently on the two sides) and ``same`` (nothing tells them apart).
    """
    sides = [
        Completed(f"{row.row_id}/chosen", row.prompt, row.chosen, row.tools, row.chosen_tokens),
        Completed(f"{row.row_id}/rejected", row.prompt, row.rejected, row.tools, row.rejected_tokens),
    ]
    whole = [encoded(side, tokenizer) for side in sides]
    if any(each.stored for _, each in whole) and not same_prompt(whole, row.prompt, tokenizer):
        whole = [encoded(replace(side, tokens=[]), tokenizer) for side in sides]
    check_length([each for _, each in whole], max_length)
    if not same_prompt(whole, row.prompt, tokenizer):
        raise RowError("prefix", "the chat template shows the prompt differently before chosen and rejected")
    chosen, rejected = (each for _, each in whole)
    if same_text(chosen.input_ids, rejected.input_ids, tokenizer):
        raise RowError("same", "chosen and rejected are the same")
    return Made([Pair(chosen, rejected, row.weight)], [chosen, rejected], whole)


def labelled(row: UnpairedRow, tokenizer: Any, max_length: int) -> Made[Labelled]:
    """The row as tokens, whole: what is judged good or bad is all of it. Raises ``RowError`` as ``encoded``."""
    side = Completed(row.row_id, row.prompt, row.completion, row.tools, row.tokens)
    messages, sequence = encoded(side, tokenizer)
    check_length([sequence], max_length)
    made = Labelled(sequence, prompt_length(sequence, row.prompt), row.label, row.weight)
    return Made([made], [sequence], [(messages, sequence)])


def encoded(side: Completed, tokenizer: Any) -> tuple[Sequence[Message], Encoded]:
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
    """Raises ``RowError`` (``too_long``) for a row with a sequence of more than ``limit`` tokens: all of it is lost."""
    longest = max(sequences, key=len)
    if len(longest) > limit:
        lost = sum(each.loss_tokens for each in sequences)
        raise RowError("too_long", f"{longest.row_id}: {len(longest)} tokens, more than max_length {limit}", lost)


def same_prompt(whole: Sequence[tuple[Any, Encoded]], prompt: Sequence[Message], tokenizer: Any) -> bool:
    """Whether two sides show their prompt alike, in whatever tokens."""
    one, other = (each.input_ids[: prompt_length(each, prompt)] for _, each in whole)
    return same_text(one, other, tokenizer)


def same_text(one: NDArray[np.int32], other: NDArray[np.int32], tokenizer: Any) -> bool:
    """Whether tokens tell the same; a text has many tokenisations."""
    return np.array_equal(one, other) or tokenizer.decode(one) == tokenizer.decode(other)


def prompt_length(encoded: Encoded, prompt: Sequence[Message]) -> int:
    """How many tokens come before the completion, the generation prompt counted with the completion."""
    return int(np.searchsorted(encoded.messages, len(prompt)))


def reference_folder(reference: str | None, base: Path) -> Path:
    """The folder of the reference model. Raises ``UserError`` where it cannot score the tokens of ``base``."""
    folder = base if reference is None else model_folder(reference)
    if folder != base and vocabulary(folder) != vocabulary(base):
        raise UserError(
            f"the reference {reference} has another tokenizer than the model {base};"
            " expected the model itself, or one that comes from it or that it comes from",
            ErrorCode.TOKENIZERS_DIFFER,
        )
    return folder


def vocabulary(folder: Path) -> list[Any]:
    """What the numbers of a model's tokens mean: how many there are, and their texts, where its files say so."""
    with load_errors(folder):
        config: JsonObject = msgspec.json.decode((folder / "config.json").read_bytes())
        tokenizer = folder / "tokenizer.json"
        texts = msgspec.json.decode(tokenizer.read_bytes())["model"]["vocab"] if tokenizer.is_file() else None
        return [config.get("vocab_size", config.get("text_config", {}).get("vocab_size")), texts]
