"""One pass over the rows of a table, by columns: what it holds, what repeats, what must not be published.

Two rows say the same if the texts of their content are the same; numbers, marks and ids with them do not count. Rows
are compared by 64-bit hashes of their texts: among a million rows two different ones meet once in 37 million tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from agentmill.pipelines.engine.operation import key_of
from agentmill.pipelines.publish.text_columns import Rows, Texts, cells, texts
from agentmill.pipelines.sensitive.patterns import SHARD, Kind, Sort, sensitive_in
from agentmill.schemas.arrow.convert import check_schema
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.record_kinds import RECORD_KINDS
from agentmill.schemas.records.record import Record
from agentmill.schemas.tables import ShardFile, Table

IDENTIFIERS = ("tool_call_id", "id", "state_digest")
"""Fields within content that differ between runs that say the same."""

TAGS = ("class_", "source", "role")
"""Fields within content that say whose words something is; they are no text of their own."""

SHOWN = 5
"""Most ids of rows that are kept for a finding."""

TOKEN_FIELDS = ("input_ids", "prompt_ids", "sampled_ids")
"""Lists of token ids, wherever they are in a record."""

Sensitive = dict[Kind, tuple[int, list[str]]]
"""In how many rows of a file something is, with the ids of the first."""

Hashes = npt.NDArray[np.uint64]


class Finding(msgspec.Struct, frozen=True):
    """``kind`` of data was found in ``rows`` rows of a table; ``ids`` are those of the first of them."""

    sort: Sort
    kind: str
    table: str
    rows: int
    ids: list[str]


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """What a pass over a table found.

    ``characters`` are those of its content, ``stored_tokens`` its token ids. ``repeated`` counts rows that say what a
    row before them says. ``splits`` counts rows by split, "" for none; ``file_splits`` has those of each file.
    ``contents`` and ``marks`` are frames for comparison across tables: (hash, split), and (kind, key, split) for
    tasks and environments.
    """

    rows: int
    characters: int
    stored_tokens: int
    repeated: int
    findings: list[Finding]
    splits: dict[str, int]
    file_splits: dict[str, list[str]]
    contents: pl.DataFrame
    marks: pl.DataFrame


def scan(table: Table, name: str) -> Scan:
    """Look through a table that is published as ``name``.

    Raises ``UserError`` for a file that is missing, damaged, of another schema or other than its manifest says.
    """
    shards, dropped = table.shards(), table.dropped_shards()
    for path, file in zip([*shards, *dropped], [*table.manifest.files, *table.manifest.dropped_files], strict=True):
        check_file(path, file)
    try:
        seen = [look(path, table.record_type) for path in shards]
        letters = [look_at_letters(path) for path in dropped]
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"{table.folder} is damaged ({reason}); run again what writes the table", ErrorCode.DAMAGED_FILE
        ) from error
    frames = [each.contents for each in seen if len(each.contents)]
    contents = pl.concat(frames) if frames else pl.DataFrame(schema={"hash": pl.UInt64, "split": pl.String})
    splits: Counter[str] = Counter()
    for each in seen:
        splits.update(each.splits)
    return Scan(
        rows=sum(file.rows for file in table.manifest.files),
        characters=sum(each.characters for each in seen),
        stored_tokens=sum(map(stored_tokens, shards)),
        repeated=len(contents) - contents.get_column("hash").n_unique(),
        findings=[*merged((each.sensitive for each in seen), name), *merged(letters, f"{name}/dropped")],
        splits=dict(splits),
        file_splits={path.name: sorted(each.splits) for path, each in zip(shards, seen, strict=True)},
        contents=contents,
        marks=pl.concat([each.marks for each in seen]).unique() if seen else no_marks(),
    )


def check_file(path: Path, file: ShardFile) -> None:
    """Raises ``UserError`` unless the file is the one that the manifest lists."""
    file.check(path)
    held = pq.read_metadata(path).num_rows
    if held != file.rows:
        raise UserError(f"{path} holds {held} rows, its manifest has {file.rows}", ErrorCode.MANIFEST_MISMATCH)


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What a pass over one file found."""

    characters: int
    sensitive: Sensitive
    splits: dict[str, int]
    contents: pl.DataFrame
    marks: pl.DataFrame


def look(path: Path, record: type[Record]) -> Seen:
    """One pass over one file of rows."""
    check_schema(pq.read_schema(path).empty_table(), record)
    rows, content = pq.read_metadata(path).num_rows, RECORD_KINDS[record.__name__].content
    hashes, characters, marked = np.zeros(rows, np.uint64), 0, Marked()
    for each in texts(path):
        marked.add(each)
        if each.path.partition(".")[0] in content and each.path.rpartition(".")[2] not in IDENTIFIERS:
            if each.path.rpartition(".")[2] not in TAGS:
                characters += int(each.values.str.len_chars().sum())
            mix(hashes, each)
    other_columns = pl.from_arrow(pq.read_table(path, columns=beside_columns(path)))
    assert isinstance(other_columns, pl.DataFrame)
    split = (
        other_columns.get_column("split")
        if "split" in other_columns.columns
        else pl.Series("split", [None] * rows, pl.String)
    )
    return Seen(
        characters=characters,
        sensitive=marked.findings_at(path, key_of(record)),
        splits={str(value or ""): int(n) for value, n in split.value_counts().iter_rows()},
        contents=pl.DataFrame({"hash": hashes if content else [], "split": split if content else []}),
        marks=marks(other_columns.with_columns(split.alias("split"))),
    )


def mix(hashes: Hashes, found: Texts) -> None:
    """Add the hashes of texts to those of their rows, so that the leaf and the order of its texts matter."""
    starts = np.flatnonzero(np.diff(found.rows, prepend=-1))
    place = np.arange(len(found.rows)) - np.repeat(starts, np.diff(starts, append=len(found.rows)))
    salt = pl.Series([found.path]).hash().to_numpy()[0]
    with np.errstate(over="ignore"):
        # An odd factor has an inverse modulo 2**64, so it makes no two hashes equal.
        mixed = (found.values.hash().to_numpy() ^ salt) * (2 * place + 1).astype(np.uint64)
        hashes[found.rows[starts]] += np.add.reduceat(mixed, starts)


class Marked:
    """The rows in which something sensitive was found."""

    def __init__(self) -> None:
        self._rows: dict[Kind, list[Rows]] = {}

    def add(self, found: Texts, path: str | None = None) -> None:
        """Look through texts; ``path`` as for ``sensitive_in``."""
        for kind, mask in sensitive_in(found.values, path).items():
            self._rows.setdefault(kind, []).append(found.rows[mask.to_numpy()])

    def findings_at(self, path: Path, key: str) -> Sensitive:
        """The findings; ``key`` is the column with the ids of the rows."""
        unique = {kind: np.unique(np.concatenate(rows)) for kind, rows in self._rows.items()}
        return {kind: (len(rows), cells(path, key, rows[:SHOWN].tolist())) for kind, rows in unique.items()}


def look_at_letters(path: Path) -> Sensitive:
    """What is sensitive in a file of dead letters; they say where an input lies that is large."""
    marked = Marked()
    for each in texts(path):
        marked.add(each, SHARD if each.path == "input" else None)
    return marked.findings_at(path, "input_id")


def merged(files: Iterable[Sensitive], table: str) -> Iterator[Finding]:
    """The findings of all files of a table."""
    rows: Counter[Kind] = Counter()
    ids: dict[Kind, list[str]] = {}
    for file in files:
        for kind, (n, first) in file.items():
            rows[kind] += n
            ids[kind] = [*ids.get(kind, []), *map(str, first)][:SHOWN]
    for kind, n in rows.items():
        yield Finding(*kind, table, n, ids[kind])


def beside_columns(path: Path) -> list[str]:
    """Of the columns that tell which data a row belongs to, those that the file has."""
    names = pq.read_schema(path).names
    return [each for each in ("split", "task_id", "environment_id") if each in names]


def no_marks() -> pl.DataFrame:
    """No marks."""
    return pl.DataFrame(schema={"kind": pl.String, "key": pl.String, "split": pl.String})


def marks(other_columns: pl.DataFrame) -> pl.DataFrame:
    """Tasks and environments, with the splits that rows of them are in."""
    kinds = [name for name in ("task_id", "environment_id") if name in other_columns.columns]
    frames = [
        other_columns.select(pl.lit(kind).alias("kind"), pl.col(kind).alias("key"), "split").unique() for kind in kinds
    ]
    return pl.concat([no_marks(), *frames]).drop_nulls("key")


def stored_tokens(path: Path) -> int:
    """How many token ids the rows of a file hold; from the file's own statistics."""
    metadata = pq.read_metadata(path)
    leaves = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    wanted = [i for i, leaf in enumerate(leaves) if any(f".{name}." in leaf for name in TOKEN_FIELDS)]
    groups: list[Any] = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    chunks = [group.column(index) for group in groups for index in wanted]
    return sum(chunk.statistics.num_values for chunk in chunks if chunk.statistics is not None)
