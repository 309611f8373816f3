"""Tables on disk: ``NAME/data/part-00000.parquet …``, ``NAME/dropped/…`` and ``NAME/manifest.json``.

A shard appears whole or not at all, under a name its writer chooses, with the same bytes for the same records. The
path to give to ``datasets``, Polars or DuckDB is ``NAME/data``.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from agentmill.schemas.arrow.convert import check_schema, from_arrow, to_arrow
from agentmill.schemas.arrow.layout import VERSION_COLUMN, layout
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.hub import fetched, is_address
from agentmill.schemas.ids import digest
from agentmill.schemas.record_kinds import RECORD_KINDS
from agentmill.schemas.records.manifest import (
    MANIFEST_NAME,
    TEMPORARY_FOLDER,
    Counts,
    Manifest,
    ShardFile,
    read_manifest,
    write_atomically,
    write_manifest,
)
from agentmill.schemas.records.record import Record

__all__ = [
    "RECORDS",
    "Counts",
    "Manifest",
    "ShardFile",
    "Table",
    "read_columns",
    "read_manifest",
    "read_shard",
    "write_manifest",
    "write_rows",
    "write_shard",
]

R = TypeVar("R", bound=Record)

ROW_GROUP_BYTES = 64 * 2**20
LISTED_TABLES = 12
"""How many tables of a folder an error names."""

RECORDS: dict[str, type[Record]] = {name: kind.type for name, kind in RECORD_KINDS.items()}
"""Every record type that a table may hold, by name."""


def write_shard(path: Path, records: Sequence[R], record_type: type[R]) -> ShardFile:
    """Write one Parquet file, zstd, row groups of at most 64 MB (a larger row is alone).

    Raises ``RecordError`` for a record that cannot be represented, ``UserError`` if the device is full; nothing is
    written then.
    """
    return write_rows(path, to_arrow(records, record_type))


def write_rows(path: Path, table: pa.Table) -> ShardFile:
    """As ``write_shard``, of rows that are in Arrow already, in the schema of their record."""
    # In memory first: the digest is then that of the bytes that were meant, whatever the disk makes of them.
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression="zstd", write_page_checksum=True) as writer:
        for group in _row_groups(table):
            # pyarrow would divide it again by a number of rows of its own.
            writer.write_table(group, row_group_size=len(group))
    data = memoryview(sink.getvalue())
    write_atomically(path, data, path.parent.parent / TEMPORARY_FOLDER)
    return ShardFile(name=path.name, rows=len(table), bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def read_shard(path: Path, record_type: type[R], columns: Sequence[str] | None = None) -> list[R]:
    """The records of one Parquet file.

    With ``columns``, only these and the required fields are read; the others hold their defaults. Raises ``UserError``
    naming the file if it is missing, damaged, of a newer version, or of another record.
    """
    if columns is not None:
        # Without these no record can be made.
        required = [field.name for field in msgspec.structs.fields(record_type) if field.required]
        columns = list(dict.fromkeys([*columns, *required]))
    table = _read(path, record_type, columns)
    try:
        return from_arrow(table, record_type)
    except UserError as error:
        raise UserError(f"{path}: {error}", error.code) from error


def read_columns(path: Path, record_type: type[Record], columns: Sequence[str]) -> pa.Table:
    """Some columns of one Parquet file as Arrow, for work on ids and scores. Raises as ``read_shard``."""
    return _read(path, record_type, columns).select(list(columns))


@dataclass(frozen=True)
class Table:
    """A finished table: its folder and its manifest."""

    folder: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: Path | str) -> Table:
        """The table at ``path``, the ``NAME`` folder or, as text, an address of one on the Hub
        (``agentmill.schemas.hub``).

        Raises ``UserError`` if there is none, it is unfinished, or ``path`` is a folder of tables, such as a run.
        """
        folder = fetched(path) if isinstance(path, str) and is_address(path) else Path(path)
        try:
            _refuse_others(folder)
        except PermissionError as error:
            raise UserError(
                f"{error.filename} cannot be read ({error.strerror}); make it readable, or name another table",
                ErrorCode.NOT_READABLE,
            ) from error
        return cls(folder, read_manifest(folder))

    @property
    def record_type(self) -> type[Record]:
        """The type of its records. Raises ``UserError`` if this version does not know it."""
        name = self.manifest.record
        if name not in RECORDS:
            raise UserError(
                f"{self.folder} holds records of an unknown type {name!r}.{near_match(name, RECORDS)}",
                ErrorCode.UNKNOWN_NAME,
            )
        return RECORDS[name]

    @functools.cached_property
    def digest(self) -> str:
        """Digest of the content: the same for the same rows, whenever and wherever they were written."""
        files = [(file.name, file.sha256) for file in self.manifest.files]
        return digest(self.manifest.record, self.manifest.schema_version, files)

    def shards(self) -> list[Path]:
        """The Parquet files, in order. Raises ``UserError`` if one is missing or of another size than recorded."""
        return [_present(self.folder / "data" / file.name, file) for file in self.manifest.files]

    def dropped_shards(self) -> list[Path]:
        """The Parquet files of ``Dropped`` records, in order. Raises as ``shards``."""
        return [_present(self.folder / "dropped" / file.name, file) for file in self.manifest.dropped_files]

    def rows(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """The records, one shard in memory at a time. Raises as ``read_shard``."""
        for path in self.shards():
            yield from read_shard(path, self.record_type, columns)


def _refuse_others(folder: Path) -> None:
    """Raises ``UserError`` for what is no table and may be taken for one."""
    if not folder.is_dir():
        siblings = [entry.name for entry in folder.parent.glob("*/") if (entry / MANIFEST_NAME).exists()]
        raise UserError(f"there is no table at {folder}.{near_match(folder.name, siblings)}", ErrorCode.TABLE_MISSING)
    if not (folder / MANIFEST_NAME).exists() and (folder.parent / MANIFEST_NAME).exists():
        raise UserError(f"{folder} is a folder inside a table; the table is {folder.parent}", ErrorCode.INSIDE_A_TABLE)
    names = sorted(path.parent.name for path in folder.glob(f"*/{MANIFEST_NAME}"))
    # Tables of the sides of a table may be finished before it is.
    unfinished = (folder / "data").exists()
    if names and not unfinished and not (folder / MANIFEST_NAME).exists():
        shown = ", ".join(names[:LISTED_TABLES]) + (", …" if len(names) > LISTED_TABLES else "")
        raise UserError(
            f"{folder} is a folder of tables, such as a run; name one of them: {shown} (as {folder / names[0]})",
            ErrorCode.FOLDER_OF_TABLES,
        )


def _row_groups(table: pa.Table) -> Iterator[pa.Table]:
    """Slices of at most ``ROW_GROUP_BYTES``; none of an empty table, since ``datasets`` refuses an empty row group."""
    if not len(table):
        return
    if table.nbytes <= ROW_GROUP_BYTES or len(table) <= 1:
        yield table
        return
    middle = len(table) // 2
    yield from _row_groups(table.slice(0, middle))
    yield from _row_groups(table.slice(middle))


def _read(path: Path, record_type: type[Record], columns: Sequence[str] | None) -> pa.Table:
    unknown = set(columns or ()) - {*layout(record_type).fields, VERSION_COLUMN}
    if unknown:
        raise ValueError(f"{record_type.__name__} has no columns {sorted(unknown)}")
    wanted = None if columns is None else [*columns, VERSION_COLUMN]
    with parquet_errors(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        # The version first: the columns of a newer one may be anything.
        check_schema(file.read([VERSION_COLUMN]), record_type)
        check_schema(file.schema_arrow.empty_table(), record_type)
        return file.read(wanted)


@contextmanager
def parquet_errors(path: Path) -> Iterator[None]:
    """Raises ``UserError`` with the name of a shard that is not there, or cannot be read."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"there is no file {path}", ErrorCode.NO_SUCH_FILE) from None
    except PermissionError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}", ErrorCode.NOT_READABLE) from error
    except UserError as error:
        raise UserError(f"{path}: {error}", error.code) from error
    except UnicodeEncodeError:
        # pyarrow takes paths as text; the file itself may be sound.
        raise UserError(
            f"{path} cannot be read: the name of a folder is not UTF-8; rename it", ErrorCode.NOT_READABLE
        ) from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(path, error) from error


def _present(path: Path, file: ShardFile) -> Path:
    size = path.stat().st_size if path.exists() else None
    if size != file.bytes:
        state = "is missing" if size is None else f"has {size} bytes, expected {file.bytes}"
        raise UserError(
            f"{path} {state}; delete {path.parent.parent} and run again what writes it",
            ErrorCode.FILE_MISSING if size is None else ErrorCode.MANIFEST_MISMATCH,
        )
    return path


def _damaged(path: Path, error: Exception) -> UserError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return UserError(
        f"{path} is no readable Parquet file ({reason:.120}); delete it and run again what writes it",
        ErrorCode.DAMAGED_FILE,
    )


def entries(folder: Path) -> Iterator[str]:
    """The files and links below ``folder``, by their paths in it. Links are not followed."""
    for path, folders, files in os.walk(folder):
        # os.walk lists a link to a folder among the folders, and does not enter it.
        links = [name for name in folders if (Path(path) / name).is_symlink()]
        for name in sorted([*links, *files]):
            yield (Path(path) / name).relative_to(folder).as_posix()


def remove(folder: Path, kind: str, is_ours: Callable[[list[str]], bool]) -> None:
    """Remove ``folder``, a ``kind`` that we made, if there is one.

    ``is_ours`` tells by the paths in it. Raises ``UserError`` for a link, a file, or a folder that is not ours; nothing
    is removed then. An empty folder is anybody's. What a kill interrupts is taken up by the next call.
    """
    leaving = folder.with_name(f".{folder.name.removeprefix('.')}.removed")
    if leaving.is_dir() and not leaving.is_symlink():
        shutil.rmtree(leaving)
    found = list(entries(folder)) if folder.is_dir() and not folder.is_symlink() else None
    if found is None and not folder.is_symlink() and not folder.exists():
        return
    if found is None or (found and not is_ours(found)):
        raise UserError(
            f"{folder} is to be removed and is no {kind} of ours\n"
            "nothing was changed: move it, or choose another place for what is made",
            ErrorCode.OUTPUT_NOT_OURS,
        )
    # By a rename first: a kill must not leave a part that looks like a whole, or like somebody else's.
    folder.rename(leaving)
    shutil.rmtree(leaving)
