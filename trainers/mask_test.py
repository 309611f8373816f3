"""The mask self-test, before every training: only what the view marked in assistant messages may carry loss."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.rows import Message
from agentmill.schemas.templates.message_parts import missing_part
from agentmill.trainers.tokenization import IGNORED, Encoded, round_trip

SAMPLES = 8
"""Conversations of a file whose loss is decoded."""

ROLES = ("system", "user", "assistant", "tool")


def count_by_role(sequences: Sequence[Encoded]) -> dict[str, dict[str, int]]:
    """For each role, its ``tokens`` and how many of them carry ``loss``.

    The role of a token comes from where the rendering of its message ends, not from the segments that set the labels.
    """
    tokens: Counter[str] = Counter()
    loss: Counter[str] = Counter()
    for sequence in sequences:
        size = len(sequence.roles)
        counts = np.bincount(sequence.messages, minlength=size)
        trained = np.bincount(sequence.messages[sequence.labels != IGNORED], minlength=size)
        for index, role in enumerate(sequence.roles):
            tokens[role] += int(counts[index])
            loss[role] += int(trained[index])
    return {role: {"tokens": tokens[role], "loss": loss[role]} for role in ROLES}


def check_roles(counts: dict[str, dict[str, int]]) -> None:
    """Raises ``UserError`` if a token of another role than assistant carries loss, or none does."""
    outside = {role: count["loss"] for role, count in counts.items() if role != "assistant" and count["loss"]}
    if outside:
        listed = ", ".join(f"{number} {role}" for role, number in outside.items())
        raise UserError(
            f"mask self-test failed: {listed} tokens would carry loss; the model's chat template is not supported",
            ErrorCode.MASK_WRONG,
        )
    if not counts["assistant"]["loss"]:
        raise UserError("mask self-test failed: no token carries loss", ErrorCode.MASK_WRONG)


class Reservoir:
    """A random sample of at most ``size`` conversations, each with its messages, while they come (Vitter 1985)."""

    def __init__(self, size: int, seed: str) -> None:
        self.kept: list[tuple[Sequence[Message], Encoded]] = []
        self._size = size
        self._seen = 0
        self._chance = random.Random(seed)

    def add(self, whole: Sequence[tuple[Sequence[Message], Encoded]]) -> None:
        """Take some conversations into account."""
        for each in whole:
            self._seen += 1
            place = self._chance.randrange(self._seen)
            if len(self.kept) < self._size:
                self.kept.append(each)
            elif place < self._size:
                self.kept[place] = each


def check_texts(whole: Sequence[tuple[Sequence[Message], Encoded]], tokenizer: Any) -> list[str]:
    """The decoded loss of whole conversations, after comparing it with the text of their trained messages.

    Raises ``UserError`` where they differ.
    """
    texts = []
    for messages, sequence in whole:
        for number, message in enumerate(messages):
            if not message.train:
                continue
            here = (sequence.messages == number) & (sequence.labels != IGNORED)
            text = tokenizer.decode(sequence.labels[here].tolist())
            # Of a message whose values alone carry loss, no part is in it whole.
            missing = _missing(message, text, tokenizer) if message.argument_loss != "only" else None
            if missing is not None:
                raise UserError(
                    f"mask self-test failed: message {number} of row {sequence.row_id} should be trained on"
                    f" {missing!r}, but the tokens with loss say {text!r}",
                    ErrorCode.MASK_WRONG,
                )
            texts.append(text)
    return texts


def _missing(message: Message, text: str, tokenizer: Any) -> str | None:
    """The first part of a message that ``text``, decoded from tokens, holds neither as written nor as decoded."""
    return missing_part(message, text, lambda part: round_trip(part, tokenizer).strip())
