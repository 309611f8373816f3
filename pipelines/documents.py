"""Trajectories as documents of a foreign format, one JSON line each, in a folder of their own.

``trajectories.jsonl`` holds what the format can say; ``dropped.jsonl`` the ids of trajectories that it cannot, with the
reason, if there are any; ``metadata.json`` what the format says of a dataset as a whole, if it has such a thing.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from schemas.errors import UserError
from schemas.formats.format import Format, FormatError
from schemas.manifest import disk_errors
from schemas.registry import Registry
from schemas.tables import Counts, Table
from schemas.trajectory import Trajectory

DOCUMENTS = "trajectories.jsonl"
DROPPED = "dropped.jsonl"
METADATA = "metadata.json"

METADATA_WRITERS = Registry("writer of metadata", {"adp": "schemas.formats.adp:metadata"})
"""Formats that describe a dataset as a whole, and the functions of all its trajectories that do it."""


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the trajectories. ``losses`` counts, by field, what the format has no place for."""

    counts: Counts
    reasons: dict[str, int]
    losses: dict[str, int]


def export_documents(tables: Sequence[Table], name: str, writer: Format, folder: Path) -> Exported:
    """Write the trajectories of ``tables`` in format ``name`` into ``folder``, which appears when it is complete.

    Raises ``UserError`` if ``folder`` is there, cannot be written, or a table holds something else.
    """
    for table in tables:
        if table.record_type is not Trajectory:
            raise UserError(f"{table.folder} holds {table.manifest.record} records, expected Trajectory")
    if folder.exists():
        raise UserError(f"{folder} is there already; choose another folder with --out, or remove it")
    with disk_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            exported = write_documents(tables, writer, unfinished)
            if name in METADATA_WRITERS:
                metadata = METADATA_WRITERS.load(name)(rows(tables))
                (unfinished / METADATA).write_bytes(msgspec.json.format(msgspec.json.encode(metadata), indent=2))
            unfinished.chmod(0o755)
            unfinished.rename(folder)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    return exported


def rows(tables: Iterable[Table]) -> Iterator[Trajectory]:
    """The trajectories of all tables, one shard in memory at a time."""
    for table in tables:
        yield from table.rows()


def write_documents(tables: Sequence[Table], writer: Format, folder: Path) -> Exported:
    """Write documents and dropped ids; there is no file of the latter if there are none."""
    losses: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    written = 0
    with (folder / DOCUMENTS).open("wb") as documents, (folder / DROPPED).open("wb") as dropped:
        for trajectory in rows(tables):
            try:
                document = writer.write(trajectory)
            except FormatError as error:
                reasons[error.reason] += 1
                letter = {"trajectory_id": trajectory.trajectory_id, "reason": error.reason, "detail": error.detail}
                write_line(dropped, letter)
                continue
            losses.update(document.losses)
            written += 1
            write_line(documents, document.document)
    if not reasons:
        (folder / DROPPED).unlink()
    counts = Counts(read=written + reasons.total(), used=written, dropped=reasons.total(), written=written)
    return Exported(counts=counts, reasons=dict(reasons), losses={name: n for name, n in losses.items() if n})


def write_line(file: BinaryIO, document: Any) -> None:
    """One JSON document and the end of its line."""
    file.write(msgspec.json.encode(document) + b"\n")
