"""Preferences as tokens: loss where the view says so in the completion, none in the prompt or in what came back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from schemas.errors import UserError
from schemas.record import JsonObject
from schemas.rows import Message, PreferenceRow, UnpairedRow
from trainers.models import model_folder
from trainers.rows import Made
from trainers.tokens import Encoded, RowError, encode_messages


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


def pair(row: PreferenceRow, tokenizer: Any, max_length: int) -> Made[Pair]:
    """The row as tokens, whole: a pair of which a part is cut away says nothing of what is better.

    Raises ``RowError``: as ``completed``, ``prefix`` (the chat template shows the prompt differently on the two
    sides) and ``same`` (nothing tells them apart).
    """
    chosen, rejected = (
        completed(f"{row.row_id}/{side}", (row.prompt, completion), row.tools, tokenizer, max_length)
        for side, completion in (("chosen", row.chosen), ("rejected", row.rejected))
    )
    starts = [prompt_length(each, row.prompt) for each in (chosen, rejected)]
    if not np.array_equal(chosen.input_ids[: starts[0]], rejected.input_ids[: starts[1]]):
        raise RowError("prefix", "the chat template shows the prompt differently before chosen and rejected")
    if np.array_equal(chosen.input_ids, rejected.input_ids):
        raise RowError("same", "chosen and rejected are the same")
    whole = [([*row.prompt, *row.chosen], chosen), ([*row.prompt, *row.rejected], rejected)]
    return Made([Pair(chosen, rejected, row.weight)], [chosen, rejected], list(whole))


def labelled(row: UnpairedRow, tokenizer: Any, max_length: int) -> Made[Labelled]:
    """The row as tokens, whole: what is judged good or bad is all of it. Raises ``RowError`` as ``completed``."""
    sequence = completed(row.row_id, (row.prompt, row.completion), row.tools, tokenizer, max_length)
    made = Labelled(sequence, prompt_length(sequence, row.prompt), row.label, row.weight)
    return Made([made], [sequence], [([*row.prompt, *row.completion], sequence)])


def completed(
    row_id: str, parts: tuple[Sequence[Message], Sequence[Message]], functions: str | None, tokenizer: Any, limit: int
) -> Encoded:
    """A prompt and its completion. Raises ``RowError`` as ``encode_messages``, and:

    ``no_prompt``, ``loss_in_prompt``, ``message_weight`` (the loss is one of whole completions, so its messages cannot
    weigh differently), ``too_long`` for more than ``limit`` tokens.
    """
    prompt, completion = parts
    if not prompt:
        raise RowError("no_prompt", "the row has no prompt, so there is nothing to prefer an answer to")
    if any(message.train for message in prompt):
        raise RowError("loss_in_prompt", "a message of the prompt is marked for training; only the completion may be")
    if any(message.train and message.weight != 1 for message in completion):
        raise RowError("message_weight", "a message has a weight of its own; preferences weigh whole completions")
    try:
        encoded = encode_messages(row_id, [*prompt, *completion], functions, tokenizer)
    except RowError as error:
        raise RowError(error.reason, f"{row_id}: {error}") from error
    if len(encoded) > limit:
        raise RowError("too_long", f"{row_id}: {len(encoded)} tokens, more than max_length {limit}")
    return encoded


def prompt_length(encoded: Encoded, prompt: Sequence[Message]) -> int:
    """How many tokens come before the completion, the generation prompt counted with the completion."""
    return int(np.searchsorted(encoded.messages, len(prompt)))


def reference_folder(reference: str | None, base: Path) -> Path:
    """The folder of the reference model. Raises ``UserError`` where it cannot score the tokens of ``base``."""
    folder = base if reference is None else model_folder(reference)
    if folder != base and vocabulary(folder) != vocabulary(base):
        raise UserError(
            f"the reference {reference} has another tokenizer than the model {base};"
            " expected the model itself, or one that comes from it or that it comes from"
        )
    return folder


def vocabulary(folder: Path) -> list[Any]:
    """What the numbers of a model's tokens mean: how many there are, and their texts, where its files say so."""
    config: JsonObject = msgspec.json.decode((folder / "config.json").read_bytes())
    tokenizer = folder / "tokenizer.json"
    texts = msgspec.json.decode(tokenizer.read_bytes())["model"]["vocab"] if tokenizer.is_file() else None
    return [config.get("vocab_size", config.get("text_config", {}).get("vocab_size")), texts]
