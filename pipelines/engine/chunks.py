"""Chunks: the parts of a stage's input, each of which becomes one shard of its output."""

from __future__ import annotations

import contextlib
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from agentmill.schemas.arrow.convert import from_arrow
from agentmill.schemas.config import config_digest
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import SCHEMA_VERSION, Record
from agentmill.schemas.tables import Counts, Manifest, Table, read_shard, write_manifest, write_shard


class Chunk(msgspec.Struct, frozen=True):
    """Rows ``start`` to ``stop`` of one shard, which has ``rows``; ``index`` is that of the output shard."""

    index: int
    path: str
    start: int
    stop: int
    rows: int

    @property
    def name(self) -> str:
        """File name of the output shard."""
        return f"part-{self.index:05d}.parquet"


def plan(tables: Sequence[Table], chunk_rows: int) -> list[Chunk]:
    """Cut the shards of ``tables``, in order, into chunks of at most ``chunk_rows`` rows of even size."""
    chunks: list[Chunk] = []
    for table in tables:
        for path, rows in zip(table.shards(), (file.rows for file in table.manifest.files), strict=True):
            parts = max(1, -(-rows // chunk_rows))
            # Of even size, so that workers end at about the same time.
            edges = [rows * part // parts for part in range(parts + 1)]
            for start, stop in itertools.pairwise(edges):
                if stop > start:
                    chunks.append(Chunk(len(chunks), str(path), start, stop, rows))
    return chunks


def read_chunk(chunk: Chunk, record_type: type[Record]) -> Sequence[Any]:
    """The records of ``chunk``, in order. Raises ``UserError`` for a shard that cannot be read."""
    path = Path(chunk.path)
    if chunk.stop - chunk.start < chunk.rows:
        # Whatever is wrong with the file, ``read_shard`` finds it again and explains it.
        with contextlib.suppress(pa.ArrowException, OSError, UserError):
            return from_arrow(_rows(path, chunk.start, chunk.stop), record_type)
    return read_shard(path, record_type)[chunk.start : chunk.stop]


def _rows(path: Path, start: int, stop: int) -> pa.Table:
    """Rows ``start`` to ``stop``, reading no more row groups than hold them."""
    modified_ns = path.stat().st_mtime_ns
    edges = _edges_of_groups(path, modified_ns)
    groups = range(bisect_right(edges, start) - 1, bisect_left(edges, stop))
    return _groups(path, modified_ns, groups).slice(start - edges[groups.start], stop - start)


# Both are kept for the next chunk, which is often one of many of the same row group.
@lru_cache(maxsize=1)
def _edges_of_groups(path: Path, modified_ns: int) -> list[int]:
    """The first row of each row group, and the number of rows."""
    del modified_ns
    with pq.ParquetFile(path) as file:
        sizes = (file.metadata.row_group(index).num_rows for index in range(file.num_row_groups))
        return [*itertools.accumulate(sizes, initial=0)]


@lru_cache(maxsize=1)
def _groups(path: Path, modified_ns: int, groups: range) -> pa.Table:
    del modified_ns
    with pq.ParquetFile(path) as file:
        return file.read_row_groups([*groups])


def seed_table(folder: Path, rows: Sequence[Record]) -> Table:
    """A table of ``rows``, all of one type, in ``folder``."""
    record_type = type(rows[0])
    file = write_shard(folder / "data" / "part-00000.parquet", rows, record_type)
    manifest = Manifest(
        table=folder.name,
        record=record_type.__name__,
        schema_version=SCHEMA_VERSION,
        operator="seeds",
        config={},
        config_digest=config_digest({}),
        inputs={},
        counts=Counts(read=len(rows), used=len(rows), dropped=0, written=len(rows)),
        reasons={},
        files=[file],
        dropped_files=[],
        seconds=0.0,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={},
    )
    write_manifest(folder, manifest)
    return Table.open(folder)
