"""From a table of training rows to encoded examples, with every row accounted for."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets import Dataset
from numpy.typing import NDArray

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.hub import is_address
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.rows import Message
from agentmill.schemas.tables import Counts, Table, read_shard
from agentmill.trainers.command import TrainSettings, say
from agentmill.trainers.mask_test import SAMPLES, Reservoir, check_roles, check_texts, count_by_role
from agentmill.trainers.model_card import versions
from agentmill.trainers.monitors import with_eta
from agentmill.trainers.run_dir import TrainingSetup
from agentmill.trainers.token_shards import LENGTH, ROW_IDS, Columns, Example, FileMaker, TokenShards, WithRows
from agentmill.trainers.tokenization import Encoded, RowError
from agentmill.trainers.validation import HeldOut, ValidationSource

ROWS_SEEN = "rows_seen.parquet"
"""In the model folder: which rows each step was made of."""

E = TypeVar("E", bound=Example)


class Joined(Example, Protocol):
    """An example that is made of several; ``members`` are their places among those that were given."""

    @property
    def members(self) -> Sequence[int]:
        """The places."""


Join = Callable[[Sequence[Any]], Sequence[Joined]]
"""Makes the examples of a trajectory of the sequences of all its rows."""


@dataclass(frozen=True)
class EncodedRow(Generic[E]):
    """What becomes of one row: ``examples`` to train on, and the ``sequences`` they consist of.

    ``whole`` are its conversations as they were before long ones were cut, with their messages.
    """

    examples: list[E]
    sequences: list[Encoded]
    whole: list[tuple[Sequence[Message], Encoded]]


class RowCounts(msgspec.Struct, kw_only=True):
    """What was counted in a file of rows, or in all.

    ``used`` and ``reasons`` count rows, and ``instances`` has a message for each reason; ``written`` is the number of
    examples; ``longest`` is the length of the longest sequence, in tokens; ``lost_tokens`` would carry loss but are in
    turns too long for a window, or in rows dropped for their length; ``cut_contexts`` counts the windows whose context
    is cut within a message, ``control_rows`` the rows in which messages spell control tokens; ``roles`` holds tokens
    and tokens with loss by role; ``texts`` is some decoded loss; ``views`` are the views that made the rows, with
    their parameters. Of the ``conversations`` ``stored`` have stored tokens, and the others those of their text.
    Where sequences share prefixes, ``trees`` counts sequences, trees and the tokens of both.
    """

    used: int = 0
    written: int = 0
    reasons: dict[str, int] = msgspec.field(default_factory=dict)
    instances: dict[str, str] = msgspec.field(default_factory=dict)
    longest: int = 0
    lost_tokens: int = 0
    cut_contexts: int = 0
    control_rows: int = 0
    roles: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    texts: list[str] = msgspec.field(default_factory=list)
    views: list[tuple[str, JsonObject]] = msgspec.field(default_factory=list)
    stored: int = 0
    conversations: int = 0
    trees: dict[str, int] = msgspec.field(default_factory=dict)

    def add(self, other: RowCounts) -> None:
        """Count ``other`` in."""
        for name in ("used", "written", "lost_tokens", "cut_contexts", "control_rows", "stored", "conversations"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.longest = max(self.longest, other.longest)
        self.reasons = dict(Counter(self.reasons) + Counter(other.reasons))
        self.instances = other.instances | self.instances
        for role, found in other.roles.items():
            own = self.roles.setdefault(role, {})
            own |= {kind: own.get(kind, 0) + number for kind, number in found.items()}
        self.trees = dict(Counter(self.trees) + Counter(other.trees))
        self.texts += other.texts
        self.views += [each for each in other.views if each not in self.views]


@dataclass(frozen=True)
class TrainingRows:
    """The examples of a training, in the order of their rows, and what was counted while they were made.

    ``validation`` are those that are not trained on, if there are any.
    """

    examples: Dataset
    counted: RowCounts
    validation: TrainingRows | None = None

    @property
    def counts(self) -> Counts:
        """Rows, and examples as what is written."""
        used, dropped = self.counted.used, sum(self.counted.reasons.values())
        return Counts(read=used + dropped, used=used, dropped=dropped, written=self.counted.written)

    def column(self, name: str) -> NDArray[Any]:
        """A value of each example; ``LENGTH`` is its length in tokens."""
        values: NDArray[Any] = self.examples.data.column(name).to_numpy()
        return values

    @property
    def lengths(self) -> list[int]:
        """The length of each example in tokens."""
        lengths: list[int] = self.column(LENGTH).tolist()
        return lengths

    def write_seen(
        self, folder: Path, packs: Sequence[Sequence[int]] | None, order: Sequence[int], rows_per_step: int
    ) -> None:
        """Write ``rows_seen.parquet``: for each step that was made the rows it was made of, so a spike can be traced.

        ``order`` has the examples of these steps. A row is there once for each of its sequences, or for each tree that
        it is in, with the tokens of the sequence or of the tree.
        """
        members = [packs[example] if packs is not None else [example] for example in order]
        steps = [1 + place // rows_per_step for place, group in enumerate(members) for _ in group]
        taken = pa.array([row for group in members for row in group], pa.int64())
        found = self.examples.data.table.select([ROW_IDS, LENGTH]).take(taken)
        ids, tokens = (pa.concat_arrays(found[name].chunks) for name in (ROW_IDS, LENGTH))
        example = pc.list_parent_indices(ids)
        columns = {
            "step": pa.array(steps, pa.int32()).take(example),
            "row_id": ids.flatten(),
            "tokens": tokens.take(example),
        }
        pq.write_table(pa.table(columns), folder / ROWS_SEEN)

    @property
    def weighted(self) -> tuple[bool, bool]:
        """Whether one of the rows has a weight other than 1, and whether one of those to validate on has."""
        validation = self.validation
        return bool((self.column("weight") != 1).any()), validation is not None and validation.weighted[0]


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
    setup: TrainingSetup,
    settings: TrainSettings,
    encode: Callable[[Any], EncodedRow[Any]],
    example: type[Example],
    masked: bool = True,
    join: Join | None = None,
) -> TrainingRows:
    """The rows of a training as examples, made by ``encode``, which drops a row by a ``RowError``.

    With ``join`` the examples are what it makes of those of a trajectory, as far as its rows are in one file.
    Where no message carries loss, since conversations are scored as a whole, nothing is ``masked``, and not tested.
    Raises ``UserError`` if nothing is left to train on, a larger share than ``max_dropped`` is dropped, or the mask
    self-test fails.
    """
    record, control_tokens = setup.table.record_type, settings.control_tokens
    source = setup.validation
    types = {**example.types, **WithRows.types}
    encoder = RowEncoder(types, encode, setup.tokenizer, record, masked, control_tokens, join)
    if source is not None and source.held_out is not None:
        encoder = replace(encoder, held_out=source.held_out)
    rows = _read(setup, setup.table, encoder, setup.work.tokens)
    counted, dropped = rows.counted, rows.counts.dropped
    if not counted.used or dropped / (counted.used + dropped) > settings.max_dropped:
        raise UserError(too_many_dropped(setup.table, counted, settings.max_dropped), ErrorCode.TOO_MANY_DROPPED)
    return rows if source is None else replace(rows, validation=_read_validation(setup, source, encoder))


def _read_validation(setup: TrainingSetup, source: ValidationSource, encoder: RowEncoder) -> TrainingRows:
    """The rows to validate on. Raises ``UserError`` if there are none, or fewer than processes."""
    rows = _read(setup, source.table, replace(encoder, validates=True), setup.work.tokens / "validation")
    found, processes = rows.counted, int(os.environ.get("WORLD_SIZE", "1"))
    if not found.used:
        raise UserError(f"validation: {too_many_dropped(source.table, found, 1.0)}", ErrorCode.TOO_MANY_DROPPED)
    if found.written < processes:
        raise UserError(
            f"validation: {found.written} rows are fewer than the {processes} processes, each of which takes some;"
            " set more aside, or train in fewer processes",
            ErrorCode.ROWS_TOO_FEW,
        )
    return rows


def _read(setup: TrainingSetup, table: Table, encoder: RowEncoder, folder: Path) -> TrainingRows:
    """The rows of ``table`` that ``encoder`` takes, by way of files in ``folder``."""
    # Other versions may show a conversation otherwise, or mark other tokens.
    identity = {**setup.token_identity, "versions": versions(), "columns": [*encoder.types]}
    identity["rows_digest"] = table.digest
    if encoder.held_out is not None:
        identity["held_out"] = encoder.held_out.identity
    shards = TokenShards(folder, table, encoder, identity)
    counted = RowCounts()
    for each in shards.make():
        counted.add(each)
    # Only where there is a row: no dataset is made of files without any.
    if counted.used and encoder.masked:
        check_roles(counted.roles)
    return TrainingRows(shards.open() if counted.used else Dataset.from_dict({}), counted)


@dataclass(frozen=True)
class RowEncoder(FileMaker[WithRows, RowCounts]):
    """Encodes the rows of a file; those in which messages spell control tokens are dropped with ``drop``.

    Of the rows ``held_out`` it takes none, or with ``validates`` them alone; without any it takes all.
    """

    types: Columns
    encode: Callable[[Any], EncodedRow[Any]]
    tokenizer: Any
    record_type: type[Record]
    masked: bool
    control_tokens: str
    join: Join | None = None
    held_out: HeldOut | None = None
    validates: bool = False
    counts: ClassVar[type[Any]] = RowCounts

    def make(self, path: Path, keep: Callable[[Sequence[WithRows]], None]) -> RowCounts:
        """Encode all rows of a file. Raises ``UserError`` if tokens do not say what they should be trained on."""
        counted = RowCounts()
        sample = Reservoir(SAMPLES, path.name)
        rows: list[Any] = read_shard(path, self.record_type)
        if self.held_out is not None:
            rows = [row for row in rows if self.held_out.has(row) == self.validates]
        groups = [[row] for row in rows] if self.join is None else by_trajectory(rows)
        for group in with_eta(groups, len(groups), f"tokens of {path.name}"):
            examples = [each for row in group for each in self._examples(row, counted, sample)]
            keep(examples if self.join is None else _joined(examples, self.join, counted))
        if self.masked:
            # Whole conversations, since a window may lack the message that is compared.
            counted.texts = check_texts(sample.kept, self.tokenizer)
        return counted

    def _examples(self, row: Any, counted: RowCounts, sample: Reservoir) -> list[WithRows]:
        """The examples of a row, none where it is dropped."""
        try:
            encoded = self._encode(row)
        except RowError as error:
            # One instance of each reason is enough for the message; a table may have millions of dropped rows.
            instances = {error.reason: f"row {row.row_id}: {error}"}
            counted.add(RowCounts(reasons={error.reason: 1}, instances=instances, lost_tokens=error.lost_tokens))
            return []
        counted.add(counts_of(row, encoded))
        sample.add(encoded.whole)
        return [WithRows(each, (row.row_id,)) for each in encoded.examples]

    def _encode(self, row: Any) -> EncodedRow[Any]:
        encoded = self.encode(row)
        if self.control_tokens == "drop" and any(each.controls for _, each in encoded.whole):
            raise RowError("control_tokens", "a message spells control tokens of the tokenizer")
        return encoded


def by_trajectory(rows: Sequence[Any]) -> list[list[Any]]:
    """The rows of each trajectory, in the order in which trajectories come first."""
    groups: dict[str, list[Any]] = {}
    for row in rows:
        groups.setdefault(row.trajectory_id, []).append(row)
    return list(groups.values())


def _joined(sequences: Sequence[WithRows], join: Join, counted: RowCounts) -> list[WithRows]:
    """What ``join`` makes of sequences, which is counted as trees."""
    trees = join([each.example for each in sequences])
    tokens = {"sequence_tokens": sum(map(len, sequences)), "tree_tokens": sum(map(len, trees))}
    counted.add(RowCounts(trees={"sequences": len(sequences), "trees": len(trees), **tokens}))
    # They were counted as examples, one by one.
    counted.written += len(trees) - len(sequences)
    rows = [[row for member in tree.members for row in sequences[member].row_ids] for tree in trees]
    return [WithRows(tree, tuple(dict.fromkeys(ids))) for tree, ids in zip(trees, rows, strict=True)]


def counts_of(row: Any, encoded: EncodedRow[Any]) -> RowCounts:
    """What is counted of one row."""
    # Windows train each turn once, so the difference is what no window holds.
    cut_away = sum(each.loss_tokens for _, each in encoded.whole) - sum(each.loss_tokens for each in encoded.sequences)
    return RowCounts(
        used=1,
        written=len(encoded.examples),
        longest=max(map(len, encoded.sequences)),
        lost_tokens=cut_away,
        cut_contexts=sum(each.cut for each in encoded.sequences),
        control_rows=any(each.controls for _, each in encoded.whole),
        roles=count_by_role(encoded.sequences),
        views=[(row.view, row.view_parameters)],
        stored=sum(each.stored for _, each in encoded.whole),
        conversations=len(encoded.whole),
    )


def too_many_dropped(table: Table, counted: RowCounts, max_dropped: float) -> str:
    """Why a training does not start: the rows it would drop by reason, an example of the most frequent, what to do."""
    reasons, used = Counter(counted.reasons), counted.used
    dropped = reasons.total()
    listed = ", ".join(f"{number} {reason}" for reason, number in reasons.most_common())
    example = counted.instances[reasons.most_common(1)[0][0]]
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


def count_line(rows: TrainingRows, examples: str) -> str:
    """How many rows were read, used and dropped, with reasons, and what came of them."""
    counts, found = rows.counts, rows.counted
    reasons = ", ".join(f"{number} {reason}" for reason, number in found.reasons.items())
    return (
        f"read {counts.read} = used {counts.used} + dropped {counts.dropped}{reasons and f' ({reasons})'};"
        f" {counts.written} {examples}, longest {found.longest} tokens"
    )


def report_rows(rows: TrainingRows, examples: str) -> None:
    """Print what is trained on, ``examples`` of what kind, and that the mask is right."""
    found = rows.counted
    say(f"rows: {count_line(rows, examples)}")
    if rows.validation is not None:
        say(f"validation, not trained on: {count_line(rows.validation, examples)}")
    if found.trees:
        before, after = (f"{found.trees[name]:,}" for name in ("sequence_tokens", "tree_tokens"))
        say(f"shared prefixes: {found.trees['sequences']} sequences of {before} tokens in trees of {after} tokens")
    say(f"tokens: {found.stored} conversations as sampled, {found.conversations - found.stored} from their text")
    if found.lost_tokens:
        say(f"{found.lost_tokens} tokens that should carry loss are in turns or rows too long for max_length: left out")
    if found.control_rows:
        say(
            f"messages of {found.control_rows} rows spell control tokens: they are text, in stored tokens as they were"
            " sampled; control_tokens=drop drops such rows"
        )
    if found.cut_contexts:
        say(f"{found.cut_contexts} sequences begin within a message, since with all of it their turn would not fit")
    if not found.texts:
        return
    shares = ", ".join(f"{role} {count['loss']:,} of {count['tokens']:,}" for role, count in found.roles.items())
    say(f"mask self-test passed, tokens with loss: {shares}; decoded and compared: {len(found.texts)} messages")
    say(f"for example {found.texts[0]!r}")
