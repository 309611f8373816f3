"""Rows that a training is validated on: which they are, and the batches in which their loss is measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.hub import is_address
from agentmill.schemas.ids import digest, random_key
from agentmill.schemas.monitoring import ValidationConfig
from agentmill.schemas.tables import Table, parquet_errors
from agentmill.trainers.command import TrainSettings

GROUPS = ("task_id", "trajectory_id", "chosen_id", "row_id")
"""Fields of rows; rows with the same value in the first that they have stay together."""


@dataclass(frozen=True)
class HeldOut:
    """The rows of a table that are set aside: those of ``groups`` (tasks, where rows know theirs) or of ``split``."""

    groups: frozenset[str] = frozenset()
    split: str | None = None

    def has(self, row: Any) -> bool:
        """Whether a row of the table is one of them."""
        return row.split == self.split if self.split is not None else group_of(row) in self.groups

    @property
    def identity(self) -> str:
        """What identifies it."""
        return digest(sorted(self.groups), self.split)


@dataclass(frozen=True)
class ValidationSource:
    """The rows to validate on: all of ``table``, or those ``held_out`` of it.

    ``shared_tasks`` of their tasks are trained on too; of rows without a task it is their trajectories.
    """

    table: Table
    held_out: HeldOut | None
    shared_tasks: int = 0


def group_of(row: Any) -> str:
    """What a row stays together with: its task, else its trajectory, else it is alone."""
    return next(str(value) for name in GROUPS if (value := getattr(row, name, None)) is not None)


def open_validation_table(settings: TrainSettings, table: Table) -> Table | None:
    """The table to validate on, which may be that of the rows to train on, ``None`` without validation.

    Raises ``UserError`` if it is missing or empty, holds another record than ``table``, or the same rows.
    """
    if settings.validates is None:
        return None
    path = settings.validation_rows
    if path is None:
        return table
    found = Table.open(path if is_address(path) else Path(path).expanduser())
    if found.record_type is not table.record_type:
        raise UserError(
            f"validation_rows: {path} is a table of {found.record_type.__name__},"
            f" expected {table.record_type.__name__} as in rows",
            ErrorCode.WRONG_RECORD_TYPE,
        )
    if found.manifest.counts.written == 0:
        raise UserError(
            f"validation_rows: {path} holds no rows; look at why with `agentmill inspect {path}`, or set aside a share"
            " of the rows (validation.share)",
            ErrorCode.NO_RECORDS,
        )
    if found.digest == table.digest:
        raise UserError(
            f"validation_rows: {path} holds the rows that are trained on; name other rows, or set aside a share of"
            " them (validation.share)",
            ErrorCode.GIVEN_TWICE,
        )
    return found


def choose_validation(config: ValidationConfig, seed: int, table: Table, validation: Table) -> ValidationSource:
    """Which rows of ``validation`` are those to validate on; ``table`` is what is trained on.

    Raises ``UserError`` where a split has no rows, or nothing would be left to train on.
    """
    if validation is not table:
        shared = {group for group, _ in groups_of(table)} & {group for group, _ in groups_of(validation)}
        return ValidationSource(validation, None, len(shared))
    if config.split is not None:
        return ValidationSource(table, *split_rows(table, config.split))
    return ValidationSource(table, HeldOut(draw_groups(table, cast(float, config.share), seed)))


def split_rows(table: Table, split: str) -> tuple[HeldOut, int]:
    """The rows of a split, and how many of their tasks have rows of other splits too."""
    inside: set[str] = set()
    others: set[str] = set()
    splits: Counter[str | None] = Counter()
    for group, found in groups_of(table):
        splits[found] += 1
        (inside if found == split else others).add(group)
    if not splits[split] or len(splits) == 1:
        named = sorted((name or "without a split", number) for name, number in splits.items())
        listed = ", ".join(f"{name}: {number}" for name, number in named)
        raise UserError(
            f"validation.split: expected a split with some of the rows of {table.folder}, got {split!r}; rows by"
            f" split: {listed}. Name another, or set aside a share of the rows (validation.share)",
            ErrorCode.NO_RECORDS,
        )
    return HeldOut(split=split), len(inside & others)


def draw_groups(table: Table, share: float, seed: int) -> frozenset[str]:
    """Tasks drawn by ``seed`` until they have about ``share`` of the rows, one at least and never all.

    A task of so many rows that the share would be missed by more with it than without it is passed over; where that
    leaves none, the smallest task is taken.

    Raises ``UserError`` if all rows are of one task.
    """
    sizes = Counter(group for group, _ in groups_of(table))
    if len(sizes) < 2:
        raise UserError(
            f"validation.share: the rows of {table.folder} are all of one task, so none can be set aside without it"
            " being trained on; make rows of more tasks, or give a table of its own (validation_rows)",
            ErrorCode.ROWS_TOO_FEW,
        )
    wanted, drawn, rows = share * sizes.total(), list[str](), 0
    # In an order of their own, so that it depends neither on the files nor on the order in them.
    order = sorted(sizes, key=lambda group: random_key(group, seed))
    for group in order:
        if rows >= wanted or len(drawn) == len(sizes) - 1:
            break
        if rows + sizes[group] - wanted <= wanted - rows:
            drawn.append(group)
            rows += sizes[group]
    return frozenset(drawn or [min(order, key=lambda group: sizes[group])])


def groups_of(table: Table) -> Iterator[tuple[str, str | None]]:
    """Of each row its group and its split."""
    for path in table.shards():
        with parquet_errors(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
            # Of a few columns only: the messages of a large table do not fit in memory.
            names = [name for name in (*GROUPS, "split") if name in file.schema_arrow.names]
            for batch in file.iter_batches(columns=names):
                for row in cast("Iterable[dict[str, str | None]]", batch.to_pylist()):
                    group = next(value for name in GROUPS if (value := row.get(name)) is not None)
                    yield group, row.get("split")


def validation_batches(lengths: Sequence[int], size: int, rank: int, processes: int) -> list[list[int]]:
    """The numbers of the rows that the process ``rank`` measures, in batches of rows of like length.

    At each step all processes have batches of one size, since losses exchange tensors between them; so the longest
    rows that are not a multiple of ``processes`` are left out, fewer than ``processes``. Batches are of ``size`` rows
    or some more: none is of one row alone, which KTO cannot cross with another, unless ``size`` or the rows are.
    """
    order = sorted(range(len(lengths)), key=lambda row: lengths[row])
    own = order[rank::processes][: len(order) // processes]
    steps = max(1, len(own) // size)
    return [batch for step in range(steps) if (batch := own[len(own) * step // steps : len(own) * (step + 1) // steps])]
