"""Rows that a stage starts from when it has no input table, laid down as a table for as long as the stage runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from schemas.config import config_digest
from schemas.record import SCHEMA_VERSION, Record
from schemas.tables import Counts, Manifest, Table, write_manifest, write_shard


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
