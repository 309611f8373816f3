"""From a table of training rows to the sequences that are trained on, with every row accounted for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.errors import UserError
from schemas.rows import SftRow
from schemas.tables import Counts, Table
from trainers.mask import check_roles, check_texts, count_by_role
from trainers.settings import SftSettings
from trainers.tokens import Encoded, RowError, encode
from trainers.windows import windows


@dataclass(frozen=True)
class TrainingRows:
    """What is trained on and how it came about.

    ``counts.written`` is the number of sequences; ``lost_tokens`` would carry loss but are in no window; ``roles``
    holds tokens and tokens with loss by role; ``texts`` is some decoded loss; ``views`` are the views that made the
    rows, with their parameters.
    """

    sequences: list[Encoded]
    counts: Counts
    reasons: dict[str, int]
    lost_tokens: int
    roles: dict[str, dict[str, int]]
    texts: list[str]
    views: list[tuple[str, dict[str, Any]]]


def open_rows(path: str) -> Table:
    """The table at ``path``. Raises ``UserError`` if there is none, it is empty, or it holds other records."""
    table = Table.open(Path(path).expanduser())
    if table.record_type is not SftRow:
        raise UserError(
            f"{path} is a table of {table.record_type.__name__}, expected SftRow;"
            " `agentmill export` makes one from trajectories (--to sft)"
        )
    if table.manifest.counts.written == 0:
        raise UserError(f"{path} holds no rows; look at why with `agentmill inspect {path}`")
    return table


def load_rows(table: Table, tokenizer: Any, settings: SftSettings, max_length: int) -> TrainingRows:
    """Encode the rows, cut or drop the long ones, and run the mask self-test.

    Raises ``UserError`` if nothing is left to train on or the self-test fails.
    """
    sequences: list[Encoded] = []
    tested: list[tuple[SftRow, Encoded]] = []
    views: list[tuple[str, dict[str, Any]]] = []
    reasons: Counter[str] = Counter()
    example = ""
    for row in table.rows():
        try:
            whole = encode(row, tokenizer)
            parts = _parts(whole, settings.long_rows, max_length)
        except RowError as error:
            reasons[error.reason] += 1
            example = example or f"row {row.row_id}: {error}"
            continue
        sequences += parts
        tested.append((row, whole))
        if (row.view, row.view_parameters) not in views:
            views.append((row.view, row.view_parameters))
    used, dropped = len(tested), sum(reasons.values())
    if not used:
        raise UserError(f"none of the {dropped} rows of {table.folder} can be trained on: {dict(reasons)}; {example}")
    roles = count_by_role(sequences)
    check_roles(roles)
    texts = check_texts(tested, tokenizer, settings.seed)
    counts = Counts(read=used + dropped, used=used, dropped=dropped, written=len(sequences))
    lost = sum(whole.loss_tokens for _, whole in tested) - sum(part.loss_tokens for part in sequences)
    return TrainingRows(sequences, counts, dict(reasons), lost, roles, texts, views)


def _parts(whole: Encoded, long_rows: str, max_length: int) -> list[Encoded]:
    parts = windows(whole, max_length) if long_rows == "window" or len(whole) <= max_length else []
    if not parts:
        raise RowError("too_long", f"{len(whole)} tokens, more than max_length {max_length}, and no turn fits alone")
    return parts
