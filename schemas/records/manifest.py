"""The manifest of a table: what made it, from what, what is in it. Written last: a folder without one is no table."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import file_sha256
from agentmill.schemas.records.record import JsonObject, Record, check_version

MANIFEST_NAME = "manifest.json"
TEMPORARY_FOLDER = ".tmp"
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class Counts(Record):
    """What became of a stage's inputs. ``read = used + dropped``; ``written`` counts rows, apart from them."""

    read: int
    used: int
    dropped: int
    written: int


class ShardFile(Record):
    """One Parquet file: its name in its folder, rows, size in bytes, and hex SHA-256 of its bytes."""

    name: str
    rows: int
    bytes: int
    sha256: str

    def check(self, path: Path) -> None:
        """Raises ``UserError`` unless the file at ``path`` is this one, byte for byte."""
        found = file_sha256(path)
        if found != self.sha256:
            difference = f"sha256 {found:.12}…, expected {self.sha256:.12}…"
            raise UserError(f"{path} is not what the manifest lists ({difference})", ErrorCode.MANIFEST_MISMATCH)


class Manifest(Record):
    """What a table is. ``record`` names the record type; ``inputs`` are digests of the tables it was made from.

    ``reasons`` counts dropped inputs by reason; ``files`` are in ``data/``, ``dropped_files`` in ``dropped/``;
    ``created`` is an ISO 8601 time in UTC; ``versions`` are those of the packages involved.
    """

    table: str
    record: str
    schema_version: str
    operator: str
    config: JsonObject
    config_digest: str
    inputs: dict[str, str]
    counts: Counts
    reasons: dict[str, int]
    files: list[ShardFile]
    dropped_files: list[ShardFile]
    seconds: float
    created: str
    versions: dict[str, str]
    metrics: JsonObject = {}

    def held(self) -> list[tuple[str, ShardFile]]:
        """Every file of the table by its path in the table's folder, rows before dropped ones."""
        parts = (("data", self.files), ("dropped", self.dropped_files))
        return [(f"{part}/{file.name}", file) for part, files in parts for file in files]

    def check(self) -> None:
        """Raises ``ValueError`` unless every input is used or dropped once and the files hold what is counted."""
        counts = self.counts
        if counts.read != counts.used + counts.dropped:
            raise ValueError(f"{self.table}: read {counts.read}, but used {counts.used} and dropped {counts.dropped}")
        if sum(self.reasons.values()) != counts.dropped:
            raise ValueError(f"{self.table}: dropped {counts.dropped}, but the reasons say {self.reasons}")
        written = sum(file.rows for file in self.files)
        if written != counts.written:
            raise ValueError(f"{self.table}: written {counts.written}, but the files hold {written} rows")


class _Version(msgspec.Struct):
    schema_version: str


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write ``folder/manifest.json`` atomically and clear what killed writers left behind.

    Raises ``ValueError`` if the counts do not add up, ``UserError`` if the device is full.
    """
    manifest.check()
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    write_atomically(folder / MANIFEST_NAME, text + b"\n", folder / TEMPORARY_FOLDER)
    shutil.rmtree(folder / TEMPORARY_FOLDER, ignore_errors=True)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a table. Raises ``UserError`` if there is none, none that we can read, or one that lies.

    A manifest may come from anybody: the files that it names are in the table, and nowhere else.
    """
    path = folder / MANIFEST_NAME
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise _without_manifest(folder) from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); make it readable, or name another table",
            ErrorCode.NOT_READABLE,
        ) from error
    try:
        # The version alone first: a newer manifest may have fields that ours forbids.
        check_version(msgspec.json.decode(text, type=_Version).schema_version, str(path))
        manifest = msgspec.json.decode(text, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(
            f"{path} is damaged ({error}); delete {folder} and run again what writes it", ErrorCode.DAMAGED_FILE
        ) from error
    for _, file in manifest.held():
        # A name such as ../x would lead reading, and publishing, out of the table.
        if not _FILE_NAME.fullmatch(file.name):
            raise UserError(
                f"{path} names the file {file.name!r}; expected a plain name such as part-00000.parquet",
                ErrorCode.FILE_NAME_UNSAFE,
            )
    return manifest


def _without_manifest(folder: Path) -> UserError:
    """The error for a folder without a manifest, by what else is in it."""
    documents = sorted(each.name for each in folder.glob("*.jsonl"))
    if documents:
        return UserError(
            f"{folder} is no table: it holds {', '.join(documents[:3])}; read that, or make a table of it with"
            " agentmill normalize",
            ErrorCode.TABLE_MISSING,
        )
    if not any((folder / name).exists() for name in ("data", "dropped", ".work", TEMPORARY_FOLDER)):
        return UserError(
            f"{folder} holds no table; expected the folder of a table, with {MANIFEST_NAME}", ErrorCode.TABLE_MISSING
        )
    return UserError(
        f"{folder} is no table: it has no {MANIFEST_NAME}; run again what writes it, it resumes",
        ErrorCode.TABLE_UNFINISHED,
    )


def write_atomically(path: Path, data: bytes | memoryview, temporary_folder: Path) -> None:
    """Put ``data`` at ``path`` whole or not at all: a file in ``temporary_folder`` (same device), synced, then renamed.

    Raises ``UserError`` if the device is full; the temporary file is then gone.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary_folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f"{path.parent.name}-{path.name}.", dir=temporary_folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                # mkstemp makes files that only their owner may read.
                os.fchmod(file.fileno(), 0o644)
                # Before the rename: after a crash the name could otherwise belong to an empty file.
                os.fsync(file.fileno())
            Path(name).replace(path)
        # Also on an interrupt, which is no Exception.
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        # The rename itself is in the folder, and lasts only once that is on the disk.
        _sync_folder(path.parent)


NO_PLACE = {errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG}
"""Errors of writing in a place where nothing can be written, whatever is free on the device."""


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what a user can mend while ``path`` is written, such as a full device, into a ``UserError``."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"no space left on the device for {path}: free some and run the same command, it resumes",
                ErrorCode.NO_SPACE,
            ) from error
        if error.errno in NO_PLACE:
            raise UserError(
                f"{path} cannot be written ({error.strerror}): choose another folder", ErrorCode.NOT_WRITABLE
            ) from error
        raise


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
