"""From a table of training rows to the examples that are trained on, with every row accounted for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.hub import is_address
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.rows import Message
from agentmill.schemas.tables import Counts, Table
from agentmill.trainers.mask import check_roles, check_texts, count_by_role
from agentmill.trainers.pace import paced
from agentmill.trainers.tokens import Encoded, RowError

E = TypeVar("E")


@dataclass(frozen=True)
class Made(Generic[E]):
    """What becomes of one row: ``examples`` to train on, and the ``sequences`` they consist of.

    ``whole`` are its conversations as they were before long ones were cut, with their messages.
    """

    examples: list[E]
    sequences: list[Encoded]
    whole: list[tuple[Sequence[Message], Encoded]]


@dataclass(frozen=True)
class TrainingRows(Generic[E]):
    """What is trained on and how it came about.

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


def load_rows(
    table: Table,
    make: Callable[[Any], Made[E]],
    tokenizer: Any,
    seed: int,
    masked: bool = True,
    max_dropped: float = 1.0,
    control_tokens: str = "text",
) -> TrainingRows[E]:
    """Encode the rows with ``make``, which drops one by a ``RowError``, and run the mask self-test.

    Where no message carries loss, since conversations are scored as a whole, nothing is ``masked`` and not tested.
    Rows in which messages spell control tokens are dropped if ``control_tokens`` is ``drop``.
    Raises ``UserError`` if nothing is left to train on, a larger share than ``max_dropped`` is dropped, or the
    self-test fails.
    """
    made: list[Made[E]] = []
    views: list[tuple[str, dict[str, Any]]] = []
    reasons: Counter[str] = Counter()
    lost = control_rows = 0
    examples_of: dict[str, str] = {}
    for row in paced(table.rows(), table.manifest.counts.written, "reading rows"):
        try:
            one = make(row)
            controls = sum(each.controls for _, each in one.whole)
            if controls and control_tokens == "drop":
                raise RowError("control_tokens", "a message spells control tokens of the tokenizer")
        except RowError as error:
            reasons[error.reason] += 1
            lost += error.lost_tokens
            examples_of.setdefault(error.reason, f"row {row.row_id}: {error}")
            continue
        made.append(one)
        control_rows += controls > 0
        if (row.view, row.view_parameters) not in views:
            views.append((row.view, row.view_parameters))
    used, dropped = len(made), sum(reasons.values())
    if not used or dropped > max_dropped * (used + dropped):
        raise UserError(too_many_dropped(table, used, reasons, examples_of, max_dropped), ErrorCode.TOO_MANY_DROPPED)
    examples = [each for one in made for each in one.examples]
    sequences = [each for one in made for each in one.sequences]
    whole = [each for one in made for each in one.whole]
    roles = count_by_role(sequences)
    if masked:
        check_roles(roles)
    stored = sum(each.stored for _, each in whole)
    return TrainingRows(
        examples=examples,
        counts=Counts(read=used + dropped, used=used, dropped=dropped, written=len(examples)),
        reasons=dict(reasons),
        longest=max(map(len, sequences)),
        lost_tokens=lost + sum(each.loss_tokens for _, each in whole) - sum(each.loss_tokens for each in sequences),
        control_rows=control_rows,
        cut_contexts=sum(each.cut for each in sequences),
        roles=roles,
        texts=check_texts(whole, tokenizer, seed) if masked else [],
        views=views,
        tokens_from={"stored": stored, "text": len(whole) - stored},
    )


def too_many_dropped(
    table: Table, used: int, reasons: Counter[str], examples: dict[str, str], max_dropped: float
) -> str:
    """Why a training does not start: the rows it would drop by reason, an example of the most frequent, what to do."""
    dropped = reasons.total()
    told = ", ".join(f"{number} {reason}" for reason, number in reasons.most_common())
    example = examples[reasons.most_common(1)[0][0]]
    if not used:
        return f"none of the {dropped} rows of {table.folder} can be trained on ({told})\nFor example {example}"
    share = dropped / (used + dropped)
    return (
        f"{dropped} of {used + dropped} rows of {table.folder} would be dropped ({told}): {share:.1%}, more than"
        f" max_dropped={max_dropped:.1%}\nFor example {example}; mend the rows, or set max_dropped={_above(share)}"
    )


def _above(share: float) -> float:
    """The share, rounded up to hundredths."""
    return min(1.0, math.ceil(share * 100) / 100)
