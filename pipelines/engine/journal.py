"""The journal of a stage: results of inputs that have ended, kept until the shard that holds them is written.

One SQLite file in WAL mode per stage, shared by the workers of a host. Only inputs that were used are read back: those
that were dropped are tried again when a killed stage goes on, since what broke them may be gone.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import GenericAlias
from typing import Any

import msgspec

from agentmill.pipelines.engine.operation import SIDES, Result, Unit
from agentmill.pipelines.engine.progress import TABLES, add_measures, note_flying, read_only
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import Record

# A statement of SQLite takes a limited number of variables: 999 in versions before 3.32.
_QUERY_IDS = 500
_BUSY_TIMEOUT_S = 60.0
_BUSY_PAUSE_S = 0.05
_NOTE_S = 0.5
_TABLE = "CREATE TABLE IF NOT EXISTS ended (input_id TEXT PRIMARY KEY, outputs BLOB)"
_DROPPED = b""
"""In place of the outputs of an input that is tried again where its chunk is; without outputs it has ended for good."""
_FULL_BYTES = 2**20
"""A device with less space than this is full: SQLite's log grows by less at a time."""


class Journal:
    """Results by input id, of one thread; another may close it, as Beam does where a run is interrupted."""

    def __init__(self, path: Path, writes: type[Record], sides: Sequence[str] = ()) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._folder = path.parent
        self._sides = tuple(sides)
        self._decoder = msgspec.json.Decoder(entry_type(writes, sides))
        self._encoder = msgspec.json.Encoder()
        # SQLite ends the process where one thread closes what another one still uses.
        self._lock = threading.RLock()
        # Beam may run the bundles of one DoFn in different threads, one after the other.
        # Without an isolation level, Python opens no transactions by itself.
        self._database = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        with self._statements():
            self._switch_to_wal()
            # Safe from a kill. FULL would be safe from a power failure, too, at the price of a flush for each unit.
            self._database.execute("PRAGMA synchronous=NORMAL")
            self._database.execute(_TABLE)
            for table in TABLES:
                self._database.execute(table)
        # The first note is not held back.
        self._noted_at = -_NOTE_S

    def write(self, unit: Unit, results: Iterable[Result], measures: Mapping[str, float] | None = None) -> None:
        """Add the results of a unit, which are on disk, safe from a kill of the process, on return.

        Of an input that was dropped, or has no result, only its end is noted. ``measures`` are those of the unit, for
        who watches.
        """
        outputs = {result.input_id: self._encode(result) for result in results if result.dropped is None}
        rows = [(input_id, outputs.get(input_id, _DROPPED)) for input_id in unit]
        with self._statements():
            # Waits for the write lock up to the time-out; a transaction that takes it later may be refused at once.
            self._database.execute("BEGIN IMMEDIATE")
            # An input that was dropped in an earlier attempt is tried again, and its second end replaces the first.
            self._database.executemany("INSERT OR REPLACE INTO ended VALUES (?, ?)", rows)
            add_measures(self._database, measures or {})
            self._database.execute("COMMIT")

    def note(self, in_flight: int, at_once: bool = False) -> None:
        """Say how many inputs are in flight; not oftener than somebody would look, unless ``at_once``."""
        if at_once or time.monotonic() - self._noted_at >= _NOTE_S:
            self._noted_at = time.monotonic()
            with self._statements():
                note_flying(self._database, in_flight)

    def _switch_to_wal(self) -> None:
        """SQLite does not wait, whatever its time-out, where another worker switches at the same moment; we do."""
        deadline = time.monotonic() + _BUSY_TIMEOUT_S
        while True:
            try:
                self._database.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                # The low byte is the primary code, which extended codes such as SQLITE_BUSY_RECOVERY share.
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(_BUSY_PAUSE_S)

    @contextlib.contextmanager
    def _statements(self) -> Iterator[None]:
        """Around statements: no other thread closes the file meanwhile.

        SQLite reports "disk I/O error" where its log cannot grow, so the device is asked whether it is full.
        """
        try:
            with self._lock:
                yield
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                raise
            if shutil.disk_usage(self._folder).free > _FULL_BYTES:
                raise
            raise UserError(
                f"no space left on the device for {self._folder}: free some and run the same command, it resumes",
                ErrorCode.NO_SPACE,
            ) from error

    def _encode(self, result: Result) -> bytes:
        """What an input gave, as JSON; what would not be read back as it is, is made again, as if it had been dropped.

        Without a word JSON has null for NaN and infinities.
        """
        given = [list(result.outputs), *(list(result.sides.get(side, [])) for side in self._sides)]
        try:
            encoded = self._encoder.encode([result.measures, *given])
            _, *read = self._decoder.decode(encoded)
        except (TypeError, ValueError, OverflowError, RecursionError):
            return _DROPPED
        return encoded if read == given else _DROPPED

    def read(self, input_ids: Sequence[str]) -> dict[str, Result]:
        """The used ones among ``input_ids`` by id. One that cannot be decoded counts as not ended."""
        found: dict[str, Result] = {}
        for start in range(0, len(input_ids), _QUERY_IDS):
            part = input_ids[start : start + _QUERY_IDS]
            marks = ",".join("?" * len(part))
            query = f"SELECT input_id, outputs FROM ended WHERE length(outputs) > 0 AND input_id IN ({marks})"
            with self._lock:
                rows = self._database.execute(query, part).fetchall()
            for input_id, outputs in rows:
                with contextlib.suppress(msgspec.DecodeError):
                    measures, given, *sides = self._decoder.decode(outputs)
                    by_side = dict(zip(self._sides, sides, strict=True))
                    found[input_id] = Result(input_id=input_id, outputs=given, sides=by_side, measures=measures)
        return found

    def release(self, input_ids: Iterable[str]) -> None:
        """Give up the results of inputs whose shard is written; that they have ended, also as dropped, stays known."""
        with self._statements():
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany("UPDATE ended SET outputs = NULL WHERE input_id = ?", ((i,) for i in input_ids))
            self._database.execute("COMMIT")

    def close(self) -> None:
        """Close the file. Safe to call twice, and while another thread uses it, which fails with its next statement."""
        with self._lock:
            self._database.close()


def renew(path: Path, done: Iterable[str] = ()) -> None:
    """Replace a journal by a copy, so that who still has the old one open writes into nothing.

    Inputs that were dropped have not ended in the copy, since they are tried again, but for those of chunks that are
    ``done``. Raises ``UserError`` if it cannot be read, or the device is full.
    """
    fresh, logs = path.with_suffix(".new"), [path.with_name(f"{path.name}-{end}") for end in ("wal", "shm")]
    if not path.exists():
        # The old journal goes only when the copy is whole, so a process that was killed in between left all of it.
        # A log of the old one would be applied to the copy.
        for log in logs:
            log.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            fresh.rename(path)
        return
    fresh.unlink(missing_ok=True)
    try:
        with (
            contextlib.closing(sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S)) as held,
            contextlib.closing(sqlite3.connect(fresh)) as copied,
        ):
            # A copy of the file alone would lack what is still in its log.
            held.backup(copied)
            for table in (_TABLE, *TABLES):  # a full device may have been in the way of some
                copied.execute(table)
            copied.executemany("UPDATE ended SET outputs = NULL WHERE input_id = ?", ((each,) for each in done))
            copied.execute("DELETE FROM ended WHERE outputs = ?", (_DROPPED,))
            copied.execute("DELETE FROM flying")
            copied.commit()
    except sqlite3.DatabaseError as error:
        fresh.unlink(missing_ok=True)
        raise UserError(
            f"{path}, what the run before has kept, cannot be taken over: {error}\n"
            "free space and run the same command, or delete it: what it holds is then made again",
            ErrorCode.JOURNAL_UNREADABLE,
        ) from error
    # The journal before its logs: a kill after that leaves the case above, and the copy is used.
    for old in (path, *logs):
        old.unlink(missing_ok=True)
    fresh.rename(path)


def entry_type(writes: type[Record], sides: Sequence[str]) -> Any:
    """The type of an entry: the measures of an input, its outputs, and what it gave to each of ``sides``."""
    lists = [GenericAlias(list, (record_type,)) for record_type in (writes, *(SIDES[side] for side in sides))]
    return GenericAlias(tuple, (dict[str, float], *lists))


def ended(path: Path) -> int:
    """How many inputs of a journal are not done again by the next attempt; 0 if there is no journal."""
    if not path.exists():
        return 0
    try:
        with contextlib.closing(sqlite3.connect(read_only(path), uri=True, timeout=1.0)) as database:
            kept = "SELECT count(*) FROM ended WHERE outputs IS NULL OR outputs != ?"
            return int(database.execute(kept, (_DROPPED,)).fetchone()[0])
    except sqlite3.Error:
        return 0
