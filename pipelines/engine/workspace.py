"""The unfinished part of a table: what its attempt has done, so that a killed stage goes on where it stopped.

``NAME/.work/ATTEMPT/`` holds all that workers write; ``NAME/data/`` is filled by the launcher alone, at the end. A new
attempt renames or removes the folder of the one before, so a worker that outlived its own attempt has nowhere left to
write to, and what is read never changes under a manifest. A chunk is done when its note is there: it is created once,
the first one counts, and it names the files and their digests. Workers on other machines need the folder under the
same path.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from agentmill.pipelines.engine.operation import SIDES, identity
from agentmill.pipelines.engine.provenance import WORK, Provenance
from agentmill.pipelines.engine.shard import Shard, ShardResult
from agentmill.pipelines.engine.stop import Stopped
from agentmill.schemas.arrow.check import RecordError, check
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import RAISE_OR_WAIT
from agentmill.schemas.records.manifest import disk_errors
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.verdict import Dropped
from agentmill.schemas.tables import ShardFile, Table, read_shard, write_shard

S = TypeVar("S", bound=msgspec.Struct)

# Errors of file systems that have no hard links, or not this one.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)

Phase = Literal["results", "candidates"]
"""``results``: final shards. ``candidates``: shards that still await a decision over all rows."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What an unfinished table is made by, and in how many chunks; it goes on only under an equal plan.

    ``order`` are the digests of its input tables in their order, where there are several: it numbers the chunks.
    """

    provenance: Provenance
    chunks: int
    order: list[str] = []


def order_of(tables: Sequence[Table]) -> list[str]:
    """The ``order`` of a plan for these input tables."""
    return [table.digest for table in tables] if len(tables) > 1 else []


class Superseded(Stopped):
    """Another attempt has taken the table over: what this worker does is of no use any more."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """What ended a stage in a worker. ``code`` is there if ``text`` is for the user to act on."""

    code: ErrorCode | None
    text: str
    trace: str


class Halt(msgspec.Struct, frozen=True, kw_only=True):
    """Why a stage ends before all its inputs have."""

    reason: str
    advice: str = RAISE_OR_WAIT


class Workspace(msgspec.Struct, frozen=True):
    """The folder of a table in the making. ``attempt`` names the part of it that one launcher and its workers use.

    ``launcher`` is the process that began the attempt, by its identity.
    """

    folder: str
    attempt: str
    launcher: str = ""

    @property
    def path(self) -> Path:
        """Where all lies that is only needed until the table is finished."""
        return Path(self.folder) / WORK / self.attempt

    @property
    def journal(self) -> Path:
        """The journal of inputs that have ended in chunks that have not."""
        return self.path / "journal.sqlite"

    @property
    def stop_file(self) -> Path:
        """Worker processes end when this file is there."""
        return self.path / "stop"

    @property
    def lease(self) -> Path:
        """A file that the launcher touches again and again while it lives."""
        return self.path / "lease"

    def report(self) -> None:
        """Say that a worker has started."""
        self._started.touch()

    def started(self) -> bool:
        """Whether a worker has started."""
        return self._started.exists()

    @property
    def _started(self) -> Path:
        return self.path / "started"

    def fail(self, failure: Failure) -> None:
        """Leave word of what ended the stage."""
        write_note(self.path / "failure.json", failure)

    def failure(self) -> Failure | None:
        """What ended the stage in a worker, if word of it could be left."""
        return read_note(self.path / "failure.json", Failure)

    def halt(self, reason: str, advice: str = RAISE_OR_WAIT) -> None:
        """Leave word that no worker is to start anything new."""
        write_note(self.path / "halted.json", Halt(reason=reason, advice=advice))

    def halted(self) -> Halt | None:
        """Why nothing new is to be started, if so."""
        return read_note(self.path / "halted.json", Halt)

    def result(self, phase: Phase, index: int) -> ShardResult | None:
        """The result of a chunk, or ``None`` if it is not done."""
        return read_note(self._result_path(phase, index), ShardResult)

    def store(self, phase: Phase, shard: Shard, writes: type[Record]) -> ShardResult:
        """Write the files of a chunk, then its note; returns the result that counts, which another worker may have
        stored before. What no table can hold is dropped.

        Raises ``UserError`` if the device is full, ``Superseded`` if another attempt has taken over.
        """
        # Looked at first, since writing a shard would make the folder anew. If it goes later, the note finds no folder.
        if not self.path.is_dir():
            raise Superseded
        # A place of its own for every try: two workers may have the same chunk, as after a retry of a bundle.
        place = f"{shard.chunk.index:05d}-{secrets.token_hex(4)}"
        base = self.path / place
        data, sides = _write_outputs(base, shard, writes)
        # Dead letters end in any order; sorted, the file is the same for any division of work.
        letters = sorted(shard.dropped, key=identity)
        dropped = write_shard(base / "dropped" / shard.chunk.name, letters, Dropped) if letters else None
        result = shard.result(place, data, sides, dropped)
        path = self._result_path(phase, shard.chunk.index)
        # Whoever creates the note first has done the chunk; its files are then those of the table.
        while not create_note(path, result):
            first = read_note(path, ShardResult)
            if first is not None:
                shutil.rmtree(base, ignore_errors=True)
                return first
            path.unlink(missing_ok=True)  # a power failure cut it
        return result

    def candidates(self, result: ShardResult, writes: type[Record]) -> tuple[Sequence[Any], Sequence[Dropped]]:
        """The outputs and dead letters of a candidate shard."""
        base = self.path / result.place
        outputs = read_shard(base / "data" / result.chunk.name, writes)
        dropped = read_shard(base / "dropped" / result.chunk.name, Dropped) if result.dropped else []
        return outputs, dropped

    def publish(self, results: Sequence[ShardResult]) -> None:
        """Put the files of all chunks where the table's readers find them. Raises ``UserError`` if that cannot be."""
        for result in results:
            for part, file in result.files():
                target = Path(self.folder) / part / file.name
                with disk_errors(target):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    put(self.path / result.place / part / file.name, target)

    def reopen(self, result: ShardResult) -> None:
        """Take back that a chunk is done."""
        # The note first: with a note and without files the chunk would count as done.
        self._result_path("results", result.chunk.index).unlink(missing_ok=True)
        shutil.rmtree(self.path / result.place, ignore_errors=True)

    def finished(self, phase: Phase) -> set[int]:
        """Which chunks are done."""
        # Notes that are being written end otherwise.
        return {int(path.stem) for path in (self.path / phase).glob("*.json")}

    def _result_path(self, phase: Phase, index: int) -> Path:
        return self.path / phase / f"{index:05d}.json"


def read_note(path: Path, content_type: type[S]) -> S | None:
    """The small file that ``write_note`` wrote; ``None`` if it did not, or a power failure undid it."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=content_type)
    except (FileNotFoundError, msgspec.DecodeError, RecursionError):
        return None


def write_note(path: Path, content: msgspec.Struct) -> None:
    """Write a small file that appears whole, without waiting for the disk: what is lost with it is done again.

    Raises ``UserError`` if the device is full, ``Superseded`` if the folder is gone.
    """
    with _note(path, content) as temporary:
        temporary.replace(path)


def create_note(path: Path, content: msgspec.Struct) -> bool:
    """As ``write_note``, if there is no file at ``path``; whether it was so."""
    with _note(path, content) as temporary:
        try:
            # A link fails where a file is there already; a rename would replace the note of another worker.
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # Two workers may both pass here. The later note counts then, and names whole files as well.
            if path.exists():
                return False
            temporary.replace(path)
    return True


@contextlib.contextmanager
def _note(path: Path, content: msgspec.Struct) -> Iterator[Path]:
    """A temporary file in the folder of ``path`` that holds ``content``; it is gone afterwards."""
    # Two threads of a worker may write one note at the same time.
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with disk_errors(path):
            temporary.write_bytes(msgspec.json.encode(content))
            yield temporary
    except FileNotFoundError:
        raise Superseded from None
    finally:
        temporary.unlink(missing_ok=True)


def put(source: Path, target: Path) -> None:
    """Let ``target`` be the file ``source``, by a link, or a copy where the file system has none."""
    if target.exists() and target.samefile(source):
        return
    # A run that was killed in the middle of this may have left half a copy.
    target.unlink(missing_ok=True)
    try:
        # No rename: until the manifest is there, the attempt has to stay whole for a run that resumes it.
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, target)


def _write_outputs(base: Path, shard: Shard, writes: type[Record]) -> tuple[ShardFile, dict[str, ShardFile]]:
    """Write the outputs of a shard, and those of its sides; inputs with some that cannot be represented are dropped."""
    try:
        return _write_all(base, shard, writes)
    except RecordError:
        # Looked for only now: to check every output in advance would cost more than to write twice once in a while.
        shard.revoke(unrepresentable(shard, writes))
        return _write_all(base, shard, writes)


def _write_all(base: Path, shard: Shard, writes: type[Record]) -> tuple[ShardFile, dict[str, ShardFile]]:
    name = shard.chunk.name
    sides = {side: write_shard(base / side / "data" / name, shard.outputs(side), SIDES[side]) for side in shard.sides}
    return write_shard(base / "data" / name, shard.outputs(), writes), sides


def unrepresentable(shard: Shard, writes: type[Record]) -> list[Dropped]:
    """One dead letter for each input of a shard that gave outputs which no table can hold."""
    letters: dict[str, Dropped] = {}
    for rows, record_type in ((shard.rows, writes), *((rows, SIDES[side]) for side, rows in shard.sides.items())):
        for input_id, output in rows:
            try:
                check([output], record_type)
            except RecordError as error:
                detail = f"field {error.field}: {error.detail}"
                letters.setdefault(input_id, shard.letter(input_id, "unrepresentable", detail, output))
    return list(letters.values())
