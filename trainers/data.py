"""From a table of training rows to encoded examples, with every row accounted for, and the mask self-test.

The self-test runs before every training: only what the view marked in assistant messages may carry loss.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.hub import is_address
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.rows import Message
from agentmill.schemas.tables import Counts, Table
from agentmill.schemas.templates.rendering import unsaid
from agentmill.trainers.command import TrainSettings, say
from agentmill.trainers.monitors import with_eta
from agentmill.trainers.run_dir import TrainingSetup
from agentmill.trainers.tokenization import IGNORED, Encoded, RowError

E = TypeVar("E")


@dataclass(frozen=True)
class EncodedRow(Generic[E]):
    """What becomes of one row: ``examples`` to train on, and the ``sequences`` they consist of.

    ``whole`` are its conversations as they were before long ones were cut, with their messages.
    """

    examples: list[E]
    sequences: list[Encoded]
    whole: list[tuple[Sequence[Message], Encoded]]


@dataclass(frozen=True)
class TrainingRows(Generic[E]):
    """The examples of a training, and how many rows, tokens and conversations they were made of.

    ``counts.written`` is the number of examples; ``longest`` is the length of the longest sequence, in tokens;
    ``lost_tokens`` would carry loss but are in turns too long for a window, or in rows dropped for their length;
    ``cut_contexts`` counts the windows whose context is cut within a message, ``control_rows`` the rows in which
    messages spell control tokens; ``roles`` holds tokens and tokens with loss by role; ``texts`` is some decoded loss;
    ``views`` are the views that made the rows, with their parameters. ``tokens_from`` counts the conversations whose
    tokens are ``stored`` ones, and those tokenised from ``text``.
    """

    examples: list[E]
    counts: Counts
    reasons: dict[str, int]
    longest: int
    lost_tokens: int
    cut_contexts: int
    control_rows: int
    roles: dict[str, dict[str, int]]
    texts: list[str]
    views: list[tuple[str, dict[str, Any]]]
    tokens_from: dict[str, int]


def open_rows(path: str, wanted: type[Record] | tuple[type[Record], ...], views: str) -> Table:
    """The table at ``path``, a folder or an address on the Hub.

    Raises ``UserError`` if there is none, it is empty, or it holds none of the ``wanted``.

    ``views`` are the targets of ``agentmill export`` that make such a table, for the message.
    """
    table = Table.open(path if is_address(path) else Path(path).expanduser())
    types = wanted if isinstance(wanted, tuple) else (wanted,)
    if table.record_type not in types:
        raise UserError(
            f"{path} is a table of {table.record_type.__name__}, expected {' or '.join(t.__name__ for t in types)};"
            f" `agentmill export` makes one from trajectories (--to {views})",
            ErrorCode.WRONG_RECORD_TYPE,
        )
    if table.manifest.counts.written == 0:
        raise UserError(f"{path} holds no rows; look at why with `agentmill inspect {path}`", ErrorCode.NO_RECORDS)
    return table


def read_rows(
    setup: TrainingSetup, settings: TrainSettings, encode: Callable[[Any], EncodedRow[E]], masked: bool = True
) -> TrainingRows[E]:
    """``load_rows`` of the table and with the settings of a training."""
    return load_rows(
        setup.table,
        encode,
        setup.tokenizer,
        settings.seed,
        masked=masked,
        max_dropped=settings.max_dropped,
        control_tokens=settings.control_tokens,
    )


def load_rows(
    table: Table,
    encode: Callable[[Any], EncodedRow[E]],
    tokenizer: Any,
    seed: int,
    masked: bool = True,
    max_dropped: float = 1.0,
    control_tokens: str = "text",
) -> TrainingRows[E]:
    """Encode the rows with ``encode``, which drops one by a ``RowError``, and run the mask self-test.

    Where no message carries loss, since conversations are scored as a whole, nothing is ``masked``, and not tested.
    Rows in which messages spell control tokens are dropped if ``control_tokens`` is ``drop``.
    Raises ``UserError`` if nothing is left to train on, a larger share than ``max_dropped`` is dropped, or the
    self-test fails.
    """
    found = _encode_all(table, encode, control_tokens)
    used, dropped = len(found.rows), found.reasons.total()
    if not used or dropped > max_dropped * (used + dropped):
        message = too_many_dropped(table, used, found.reasons, found.instances, max_dropped)
        raise UserError(message, ErrorCode.TOO_MANY_DROPPED)
    examples = [each for row in found.rows for each in row.examples]
    sequences = [each for row in found.rows for each in row.sequences]
    whole = [each for row in found.rows for each in row.whole]
    roles = count_by_role(sequences)
    if masked:
        check_roles(roles)
    # Windows train each turn once, so the difference is what no window holds.
    cut_away = sum(each.loss_tokens for _, each in whole) - sum(each.loss_tokens for each in sequences)
    stored = sum(each.stored for _, each in whole)
    return TrainingRows(
        examples=examples,
        counts=Counts(read=used + dropped, used=used, dropped=dropped, written=len(examples)),
        reasons=dict(found.reasons),
        longest=max(map(len, sequences)),
        lost_tokens=found.lost_tokens + cut_away,
        control_rows=found.control_rows,
        cut_contexts=sum(each.cut for each in sequences),
        roles=roles,
        # Whole conversations, since a window may lack the message that is compared.
        texts=check_texts(whole, tokenizer, seed) if masked else [],
        views=found.views,
        tokens_from={"stored": stored, "text": len(whole) - stored},
    )


@dataclass
class _Encoding(Generic[E]):
    """The rows of a table, encoded or dropped; ``instances`` has a message for each reason."""

    rows: list[EncodedRow[E]] = field(default_factory=list)
    views: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    instances: dict[str, str] = field(default_factory=dict)
    lost_tokens: int = 0
    control_rows: int = 0


def _encode_all(table: Table, encode: Callable[[Any], EncodedRow[E]], control_tokens: str) -> _Encoding[E]:
    found: _Encoding[E] = _Encoding()
    for row in with_eta(table.rows(), table.manifest.counts.written, "reading rows"):
        try:
            encoded = encode(row)
            controls = sum(each.controls for _, each in encoded.whole)
            if controls and control_tokens == "drop":
                raise RowError("control_tokens", "a message spells control tokens of the tokenizer")
        except RowError as error:
            found.reasons[error.reason] += 1
            found.lost_tokens += error.lost_tokens
            # One instance of each reason is enough for the message; a table may have millions of dropped rows.
            found.instances.setdefault(error.reason, f"row {row.row_id}: {error}")
            continue
        found.rows.append(encoded)
        found.control_rows += controls > 0
        if (row.view, row.view_parameters) not in found.views:
            found.views.append((row.view, row.view_parameters))
    return found


def too_many_dropped(
    table: Table, used: int, reasons: Counter[str], examples: dict[str, str], max_dropped: float
) -> str:
    """Why a training does not start: the rows it would drop by reason, an example of the most frequent, what to do."""
    dropped = reasons.total()
    listed = ", ".join(f"{number} {reason}" for reason, number in reasons.most_common())
    example = examples[reasons.most_common(1)[0][0]]
    if not used:
        return f"none of the {dropped} rows of {table.folder} can be trained on ({listed})\nFor example {example}"
    share = dropped / (used + dropped)
    return (
        f"{dropped} of {used + dropped} rows of {table.folder} would be dropped ({listed}): {share:.1%}, more than"
        f" max_dropped={max_dropped:.1%}\nFor example {example}; mend the rows, or set max_dropped={_above(share)}"
    )


def _above(share: float) -> float:
    """The share, rounded up to hundredths."""
    # Rounded up, so that the training starts with the value that the message advises.
    return min(1.0, math.ceil(share * 100) / 100)


SAMPLES = 8
"""Conversations whose loss is decoded."""

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


def check_texts(whole: Sequence[tuple[Sequence[Message], Encoded]], tokenizer: Any, seed: int) -> list[str]:
    """The decoded loss of some whole conversations, after comparing it with the text of their trained messages.

    Raises ``UserError`` where they differ.
    """
    texts = []
    for messages, sequence in random.Random(seed).sample(whole, min(SAMPLES, len(whole))):
        for number, message in enumerate(messages):
            if not message.train:
                continue
            here = (sequence.messages == number) & (sequence.labels != IGNORED)
            text = tokenizer.decode(sequence.labels[here].tolist())
            # Of a message whose values alone carry loss, no part is in it whole.
            missing = unsaid(message, text) if message.arguments != "only" else None
            if missing is not None:
                raise UserError(
                    f"mask self-test failed: message {number} of row {sequence.row_id} should be trained on"
                    f" {missing!r}, but the tokens with loss say {text!r}",
                    ErrorCode.MASK_WRONG,
                )
            texts.append(text)
    return texts


def report_rows(rows: TrainingRows[Any], examples: str) -> None:
    """Print what is trained on, ``examples`` of what kind, and that the mask is right."""
    counts = rows.counts
    reasons = ", ".join(f"{number} {reason}" for reason, number in rows.reasons.items())
    say(
        f"rows: read {counts.read} = used {counts.used} + dropped {counts.dropped}{reasons and f' ({reasons})'};"
        f" {counts.written} {examples}, longest {rows.longest} tokens"
    )
    say(f"tokens: {rows.tokens_from['stored']} conversations as sampled, {rows.tokens_from['text']} from their text")
    if rows.lost_tokens:
        say(f"{rows.lost_tokens} tokens that should carry loss are in turns or rows too long for max_length: left out")
    if rows.control_rows:
        say(
            f"messages of {rows.control_rows} rows spell control tokens: they are text, in stored tokens as they were"
            " sampled; control_tokens=drop drops such rows"
        )
    if rows.cut_contexts:
        say(f"{rows.cut_contexts} sequences begin within a message, since with all of it their turn would not fit")
    if not rows.texts:
        return
    shares = ", ".join(f"{role} {count['loss']:,} of {count['tokens']:,}" for role, count in rows.roles.items())
    say(f"mask self-test passed, tokens with loss: {shares}; decoded and compared: {len(rows.texts)} messages")
    say(f"for example {rows.texts[0]!r}")
