"""The unfinished part of a table: which of its chunks are done, so that a killed stage goes on where it stopped.

``NAME/.work/`` holds it and goes when the manifest is written. A chunk is done when its result file is there, which is
written last; every file is written under a temporary name and renamed, and names depend on the chunk alone, so work
that is done twice leaves the same files. Workers on other machines need the folder under the same path.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from pipelines.engine.operation import SIDES, identity
from pipelines.engine.provenance import Provenance
from pipelines.engine.shard import Shard, ShardResult
from schemas.errors import RAISE_OR_WAIT
from schemas.manifest import MANIFEST_NAME, TEMPORARY_FOLDER, disk_errors
from schemas.record import Record
from schemas.representable import RecordError, check
from schemas.tables import ShardFile, read_shard, write_shard
from schemas.verdict import Dropped

S = TypeVar("S", bound=msgspec.Struct)

Phase = Literal["results", "candidates"]
"""``results``: final shards. ``candidates``: shards that still await a decision over all rows."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What an unfinished table is made by, and in how many chunks; it goes on only under an equal plan."""

    provenance: Provenance
    chunks: int


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """What ended a stage in a worker. ``user``: ``text`` is for the user to act on."""

    user: bool
    text: str
    trace: str


class Halt(msgspec.Struct, frozen=True, kw_only=True):
    """Why a stage ends before all its inputs have."""

    reason: str
    advice: str = RAISE_OR_WAIT


class Workspace(msgspec.Struct, frozen=True):
    """The folder of a table in the making."""

    folder: str

    @property
    def path(self) -> Path:
        """Where what is only needed until the table is finished lies."""
        return Path(self.folder) / ".work"

    @property
    def journal(self) -> Path:
        """The journal of inputs that have ended in chunks that have not."""
        return self.path / "journal.sqlite"

    @property
    def stop_file(self) -> Path:
        """Worker processes end when this file is there."""
        return self.path / "stop"

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
        _write(self.path / "failure.json", failure)

    def failure(self) -> Failure | None:
        """What ended the stage in a worker, if word of it could be left."""
        return _read(self.path / "failure.json", Failure)

    def halt(self, reason: str, advice: str = RAISE_OR_WAIT) -> None:
        """Leave word that no worker is to start anything new."""
        _write(self.path / "halted.json", Halt(reason=reason, advice=advice))

    def halted(self) -> Halt | None:
        """Why nothing new is to be started, if so."""
        return _read(self.path / "halted.json", Halt)

    def result(self, phase: Phase, index: int) -> ShardResult | None:
        """The result of a chunk, or ``None`` if it is not done."""
        return _read(self._result_path(phase, index), ShardResult)

    def store(self, phase: Phase, shard: Shard, writes: type[Record]) -> ShardResult:
        """Write the files of a chunk, then its result. What no table can hold is dropped. Raises ``UserError``
        if the device is full.
        """
        base = self.path / "candidates" if phase == "candidates" else Path(self.folder)
        data, sides = _write_outputs(base, shard, writes)
        letters = sorted(shard.dropped, key=identity)
        dropped = write_shard(base / "dropped" / shard.chunk.name, letters, Dropped) if letters else None
        result = shard.result(data, sides, dropped)
        _write(self._result_path(phase, shard.chunk.index), result)
        return result

    def candidates(self, result: ShardResult, writes: type[Record]) -> tuple[Sequence[Any], Sequence[Dropped]]:
        """The outputs and dead letters of a candidate shard."""
        base = self.path / "candidates"
        outputs = read_shard(base / "data" / result.chunk.name, writes)
        dropped = read_shard(base / "dropped" / result.chunk.name, Dropped) if result.dropped else []
        return outputs, dropped

    def plan(self) -> Plan | None:
        """The plan of the unfinished table, or ``None`` if there is none, or none that can be read."""
        return _read(self.path / "plan.json", Plan)

    def begin(self, plan: Plan) -> None:
        """Make ready for ``plan``: keep what an equal plan has done, remove what another one has."""
        for path in (self.stop_file, self._started, self.path / "failure.json", self.path / "halted.json"):
            path.unlink(missing_ok=True)
        if self.plan() == plan:
            return
        self.clear()
        _write(self.path / "plan.json", plan)

    def clear(self) -> None:
        """Remove the table: the manifest first, so that what is left at any moment is no table."""
        folder = Path(self.folder)
        (folder / MANIFEST_NAME).unlink(missing_ok=True)
        (self.path / "plan.json").unlink(missing_ok=True)
        for name in (".work", "data", "dropped", *SIDES, TEMPORARY_FOLDER):
            shutil.rmtree(folder / name, ignore_errors=True)

    def end(self) -> None:
        """Remove what only an unfinished table needs, also what writers that were killed left behind."""
        for path in (self.path, Path(self.folder) / TEMPORARY_FOLDER):
            shutil.rmtree(path, ignore_errors=True)

    def finished(self, phase: Phase) -> set[int]:
        """Which chunks are done."""
        folder = self.path / phase / "done"
        return {int(path.stem) for path in folder.glob("*.json")} if folder.exists() else set()

    def _result_path(self, phase: Phase, index: int) -> Path:
        return self.path / phase / "done" / f"{index:05d}.json"


def _read(path: Path, content_type: type[S]) -> S | None:
    """What ``_write`` wrote; ``None`` if it did not, or a power failure undid it."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=content_type)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _write(path: Path, content: msgspec.Struct) -> None:
    """Write a small file that appears whole, without waiting for the disk: what is lost with it is done again."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
        temporary.write_bytes(msgspec.json.encode(content))
        temporary.replace(path)


def _write_outputs(base: Path, shard: Shard, writes: type[Record]) -> tuple[ShardFile, dict[str, ShardFile]]:
    """Write the outputs of a shard, and those of its sides; inputs with some that cannot be represented are dropped."""
    try:
        return _write_all(base, shard, writes)
    except RecordError:
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
