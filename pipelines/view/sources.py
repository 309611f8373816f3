"""What a view shows: the finished tables of a run, or one table with what the tables with it say of its rows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from agentmill.schemas.arrow.convert import from_arrow
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.hub import fetched, fetched_manifest, is_address, parse, pin, tables
from agentmill.schemas.records.manifest import MANIFEST_NAME, read_manifest
from agentmill.schemas.records.record import Record
from agentmill.schemas.tables import RECORDS, Table, read_columns

BATCH_ROWS = 100
SHOWN = ("Trajectory", "PreferenceRow")
"""Records that have a list of their own; all others are shown with these."""


class _Head(msgspec.Struct):
    record: str
    schema_version: str


class Source(msgspec.Struct, frozen=True):
    """A table and what the view calls it: its path in the run."""

    name: str
    table: Table

    @property
    def record(self) -> str:
        """The name of its record type."""
        return self.table.manifest.record


def sources(path: Path) -> list[Source]:
    """The tables that a view of ``path`` shows, in the order of their names.

    Of a table, these are the table and those of other records in it and right with it, which may speak of its rows.
    Raises ``UserError`` if nothing in ``path`` can be shown.
    """
    if is_table(path) or not path.is_dir():
        table = Table.open(path)
        if table.manifest.record not in SHOWN:
            expected = " or ".join(f"{record} records" for record in SHOWN)
            raise UserError(
                f"{path} holds {table.manifest.record} records; expected {expected}, or the run: {path.parent}",
                ErrorCode.WRONG_RECORD_TYPE,
            )
        whole = path.resolve()
        is_beside = [each for each in around(whole) if each.record != table.manifest.record]
        runs = [each for each in is_beside if each.record == "Trajectory"]
        others = [each for each in is_beside if each.record != "Trajectory"]
        return [Source(whole.name, table), *runs, *others]
    tables = found(path)
    if not any(each.record in SHOWN for each in tables):
        raise UserError(
            f"{path} holds no finished table of trajectories or pairs; expected a run such as runs/quickstart",
            ErrorCode.TABLE_MISSING,
        )
    return tables


def local(place: str) -> Path:
    """The folder at ``place``, or what lies at that address on the Hub, downloaded into its cache.

    Of a table these are also those of other records in it and right with it, without a path all of a data set.
    Raises ``UserError``.
    """
    if not is_address(place):
        return Path(place)
    address = pin(parse(place))
    names = tables(address)
    if not address.path:
        names = [name for name in names if is_table(fetched_manifest(address._replace(path=name)))]
        if names:
            folders = [fetched(str(address._replace(path=name))) for name in names]
            return folders[0].parents[names[0].count("/")]
    folder = fetched(str(address))
    record = read_manifest(folder).record
    for name in names:
        other = address._replace(path=name)
        if is_beside(name, address.path) and speaks_otherwise(fetched_manifest(other), record):
            fetched(str(other))
    return folder


def speaks_otherwise(folder: Path, record: str) -> bool:
    """Whether ``folder`` holds a manifest of ours, of a table of another record."""
    return is_table(folder) and read_manifest(folder).record != record


def is_beside(name: str, table: str) -> bool:
    """Whether a table of a data set is in another one, or right with it."""
    parent = PurePosixPath(table).parent
    return name != table and (name.startswith(f"{table}/") or PurePosixPath(name).parent == parent)


def is_table(folder: Path) -> bool:
    """Whether ``folder`` holds a manifest of ours: many other programs call their files so, too.

    Raises ``UserError`` for one that is damaged and has shards of ours with it.
    """
    try:
        msgspec.json.decode((folder / MANIFEST_NAME).read_bytes(), type=_Head)
    except (OSError, msgspec.ValidationError):
        return False
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        if not any(folder.glob("data/part-*.parquet")):
            return False
        read_manifest(folder)
    return True


def found(root: Path) -> list[Source]:
    """Every finished table in ``root`` whose record this version knows; folders with a leading dot are left out."""
    folders = []
    for folder, inner, _ in os.walk(root):
        own = ("data", "dropped") if is_table(Path(folder)) else ()
        # In place: ``os.walk`` goes into what is left in this list.
        inner[:] = sorted(name for name in inner if not name.startswith(".") and name not in own)
        folders.append(Path(folder))
    return opened(folders, root)


def around(folder: Path) -> list[Source]:
    """The tables inside the folder of a table, and those right with it."""
    is_beside = (path for path in folder.parent.iterdir() if path != folder and not path.name.startswith("."))
    inside = (folder / each.name for each in found(folder) if each.table.folder != folder)
    return opened(sorted([*is_beside, *inside]), folder.parent)


def opened(folders: list[Path], root: Path) -> list[Source]:
    """The tables among ``folders`` whose record this version knows, called by their paths in ``root``."""
    tables = [Table.open(folder) for folder in folders if is_table(folder)]
    known = [table for table in tables if table.manifest.record in RECORDS]
    return [Source(table.folder.relative_to(root).as_posix(), table) for table in known]


def batches(table: Table, columns: Sequence[str] | None = None) -> Iterator[list[Any]]:
    """The records of a table, some at a time; with ``columns``, the other fields hold their defaults.

    Raises ``UserError`` for a shard that is missing, damaged or of a newer version.
    """
    record_type: type[Record] = table.record_type
    for path in table.shards():
        # Reads the version alone, and refuses a file that is missing, damaged or of a newer one.
        read_columns(path, record_type, [])
        with opened_file(path) as file:
            present = None if columns is None else [name for name in columns if name in file.schema_arrow.names]
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=present):
                yield from_arrow(pa.Table.from_batches([batch]), record_type)


@contextmanager
def opened_file(path: Path) -> Iterator[pq.ParquetFile]:
    """A Parquet file to be read in parts. Raises ``UserError`` if one of them turns out to be damaged."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"{path}: a data page is damaged ({reason}); run again what writes the table", ErrorCode.DAMAGED_FILE
        ) from error
