"""What a table holds: counts, columns, how values are distributed, sample rows.

It works on the columns as Parquet stores them, one leaf column at a time, so a table need not fit into memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agentmill.pipelines.engine.operation import SIDES
from agentmill.pipelines.quality import summary
from agentmill.pipelines.tables.dropped import Reason, reasons, without_empty
from agentmill.pipelines.terminal.progress import displayed
from agentmill.schemas.arrow.convert import from_arrow
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.profiles.fields import Kept, field_report, without_fields
from agentmill.schemas.records.manifest import MANIFEST_NAME
from agentmill.schemas.records.verdict import Quality
from agentmill.schemas.tables import Table, read_columns

T = TypeVar("T")

MAX_CATEGORIES = 24
MAX_CATEGORY_LENGTH = 60
"""A text column with more distinct values, or with a longer one, is no category and is not counted."""


class Column(msgspec.Struct, frozen=True):
    """A top-level column: its name and its Arrow type, in full or with the fields of structs by name only."""

    name: str
    type: str
    short_type: str


class Spread(msgspec.Struct, frozen=True):
    """How the ``n`` values of a number column, or the lengths of a list column, are spread."""

    n: int
    minimum: float
    median: float
    mean: float
    maximum: float


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """What ``agentmill inspect`` shows of a table; ``categories`` and ``spreads`` go by the path of the column.

    ``beside`` are the folders of tables that its stage wrote with it, ``metrics`` the figures that it summed;
    ``quality`` sums up a table of ``Quality``, and ``fields`` tells what became of the fields of foreign records.
    ``dropped`` has examples of the most frequent reasons, if they were asked for.
    """

    path: str
    record: str
    schema_version: str
    operator: str
    beside: list[str]
    counts: dict[str, int]
    reasons: dict[str, int]
    files: int
    bytes: int
    seconds: float
    metrics: dict[str, float]
    quality: dict[str, float | None]
    fields: list[Kept]
    columns: list[Column]
    categories: dict[str, dict[str, int]]
    spreads: dict[str, Spread]
    rows: list[Any]
    dropped: list[Reason] = []


def inspect_table(table: Table, rows: int, dropped: bool = False) -> Inspection:
    """Look at every shard of ``table``, at its first ``rows`` rows in full, and at examples of ``dropped`` inputs.

    Raises ``UserError`` for a shard that is missing, damaged or of a newer version.
    """
    shards = table.shards()
    for shard in shards:
        # Reads the version alone, and refuses a file that is missing, damaged or of a newer one.
        read_columns(shard, table.record_type, [])
    try:
        found = look(table, shards, rows)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"{table.folder}: a data page is damaged ({reason}); run again what writes the table",
            ErrorCode.DAMAGED_FILE,
        ) from error
    return msgspec.structs.replace(found, dropped=reasons(table.manifest.table, table)) if dropped else found


def look(table: Table, shards: Sequence[Path], rows: int) -> Inspection:
    """The inspection of a table whose shards are known to be there."""
    manifest = table.manifest
    return Inspection(
        path=str(table.folder),
        record=manifest.record,
        schema_version=manifest.schema_version,
        operator=manifest.operator,
        beside=[str(table.folder / side) for side in SIDES if (table.folder / side / MANIFEST_NAME).exists()],
        counts=msgspec.to_builtins(manifest.counts),
        reasons=manifest.reasons,
        files=len(shards),
        bytes=sum(file.bytes for file in manifest.files),
        seconds=manifest.seconds,
        metrics=without_fields(manifest.metrics),
        quality=summary(table) if table.record_type is Quality else {},
        fields=field_report(manifest.metrics),
        columns=columns(shards),
        categories=all_categories(shards),
        spreads=all_spreads(shards),
        rows=first_rows(table, shards, rows),
    )


def all_categories(shards: Sequence[Path]) -> dict[str, dict[str, int]]:
    """The categories of every text column that has some."""
    found = each_column({path: (path,) for path in text_columns(shards)}, partial(categories, shards))
    return {path: counts for path, counts in found.items() if counts is not None}


def all_spreads(shards: Sequence[Path]) -> dict[str, Spread]:
    """The spreads of every number column, and of the lengths of every list column, that is not empty."""
    measured = {path: (path, numbers) for path in number_columns(shards)}
    measured |= {name: (leaf, lengths) for name, leaf in list_columns(shards)}
    found = each_column(measured, partial(spread, shards))
    return {path: each for path, each in found.items() if each is not None}


def each_column(columns: Mapping[str, tuple[Any, ...]], look: Callable[..., T]) -> dict[str, T]:
    """What ``look`` finds, given the arguments of each column; its progress is shown."""
    found = {}
    with displayed("columns", len(columns)) as advance:
        for name, arguments in columns.items():
            found[name] = look(*arguments)
            advance(1)
    return found


def columns(shards: Sequence[Path]) -> list[Column]:
    """The top-level columns of the first shard."""
    schema = pq.read_schema(shards[0]) if shards else []
    return [Column(field.name, str(field.type), short_type(field.type)) for field in schema]


def short_type(arrow: pa.DataType) -> str:
    """An Arrow type in words, with the fields of a struct by name."""
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return f"list of {short_type(arrow.value_type)}"
    if pa.types.is_struct(arrow):
        return f"struct of {', '.join(field.name for field in arrow)}"
    return str(arrow)


def leaves(shards: Sequence[Path], lists: bool) -> Iterator[Any]:
    """The leaf columns of the first shard that lie inside of lists, or those that do not."""
    if shards:
        schema = pq.ParquetFile(shards[0]).schema
        for index in range(len(schema)):
            if (schema.column(index).max_repetition_level > 0) == lists:
                yield schema.column(index)


def text_columns(shards: Sequence[Path]) -> list[str]:
    """Paths of the text and boolean columns, such as ``outcome.status``; the version of the schema is no news."""
    return [
        leaf.path
        for leaf in leaves(shards, lists=False)
        if leaf.path != "schema_version" and (leaf.logical_type.type == "STRING" or leaf.physical_type == "BOOLEAN")
    ]


def number_columns(shards: Sequence[Path]) -> list[str]:
    """Paths of the number columns, such as ``usage.completion_tokens``."""
    return [leaf.path for leaf in leaves(shards, lists=False) if leaf.physical_type in ("INT32", "INT64", "DOUBLE")]


def list_columns(shards: Sequence[Path]) -> list[tuple[str, str]]:
    """(list column, one leaf of it that is quick to read) for every list that is in no other."""
    inside: dict[str, list[Any]] = {}
    for leaf in leaves(shards, lists=True):
        if leaf.max_repetition_level == 1:
            inside.setdefault(leaf.path.partition(".list.")[0], []).append(leaf)
    return [(name, min(found, key=is_bytes).path) for name, found in inside.items()]


def is_bytes(leaf: Any) -> bool:
    """Whether a leaf column holds text or bytes, which take longer to read than numbers."""
    return bool(leaf.physical_type == "BYTE_ARRAY")


def read_column(shards: Sequence[Path], path: str) -> Iterator[pa.Array]:
    """The leaf column ``path``, taken out of the structs and lists around it only as far as the first list."""
    for shard in shards:
        for batch in pq.ParquetFile(shard, page_checksum_verification=True).iter_batches(columns=[path]):
            array = batch.column(0)
            while pa.types.is_struct(array.type):
                array = pc.struct_field(array, 0)
            yield array


def categories(shards: Sequence[Path], path: str) -> dict[str, int] | None:
    """How often each value occurs, most frequent first; ``None`` if there are too many, long ones, or only nulls."""
    counts: Counter[str] = Counter()
    for array in read_column(shards, path):
        for entry in pc.value_counts(array).to_pylist():
            counts[category(entry["values"])] += entry["counts"]
        # After each batch, so that a column of texts is given up before it fills the memory.
        if len(counts) > MAX_CATEGORIES or max(map(len, counts), default=0) > MAX_CATEGORY_LENGTH:
            return None
    return dict(counts.most_common()) if set(counts) - {""} else None


def category(value: str | bool | None) -> str:
    """A value as the name of a category; nothing has an empty one."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else value


def numbers(array: pa.Array) -> pa.Array:
    """The numbers that are there."""
    return array.drop_null().cast(pa.float64())


def lengths(array: pa.Array) -> pa.Array:
    """The lengths of the lists that are there."""
    return pc.list_value_length(array).drop_null().cast(pa.float64())


def spread(shards: Sequence[Path], path: str, measure: Callable[[pa.Array], pa.Array]) -> Spread | None:
    """The spread of what ``measure`` finds in a column; ``None`` if it finds nothing."""
    values = pa.chunked_array([measure(array) for array in read_column(shards, path)], type=pa.float64())
    if len(values) == 0:
        return None
    ends = pc.min_max(values).as_py()
    median = pc.quantile(values, q=0.5)[0].as_py()
    return Spread(len(values), ends["min"], median, pc.mean(values).as_py(), ends["max"])


def first_rows(table: Table, shards: Sequence[Path], n: int) -> list[Any]:
    """The first ``n`` rows, as plain objects without what is empty."""
    found: list[Any] = []
    for shard in shards:
        if len(found) < n:
            batch = next(pq.ParquetFile(shard).iter_batches(batch_size=n - len(found)), None)
            records = from_arrow(pa.Table.from_batches([batch]), table.record_type) if batch is not None else []
            found += [without_empty(msgspec.to_builtins(record)) for record in records]
    return found
