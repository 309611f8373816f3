"""The servers of a run directory, written down so that none outlives a run that was killed.

``servers.json`` lists for each server the launcher that started it, the leader of its session and the processes seen
in it, each by its identity. What is killed is proved to be ours: a session whose number is that of a recorded leader
and that still holds a process with a recorded identity.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import msgspec

from pipelines.engine.processes import end_session, identity, is_alive, pid_of, session_members
from schemas.record import Record

FILE = "servers.json"
GRACE_S = 15.0


class ServerRecord(Record):
    """One server: its log, and identities of the processes that belong to it."""

    launcher: str
    leader: str
    members: list[str]
    log: str


class ServerRecords:
    """The records of one run directory, kept by one process."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / FILE
        self._lock = threading.Lock()

    def add(self, leader: int, log: Path) -> None:
        """Record the server whose session ``leader`` leads, or what belongs to it by now."""
        identified, launcher = identity(leader), identity(os.getpid())
        if identified is None or launcher is None:
            return
        members = [member for member in map(identity, session_members(leader)) if member is not None]
        record = ServerRecord(launcher=launcher, leader=identified, members=members, log=str(log))
        with self._lock:
            self._write([*(old for old in self.read() if old.leader != identified), record])

    def remove(self, leader: int) -> None:
        """Forget a server that has ended; what it left of its session, as when it was killed, is ended first."""
        for record in self.read():
            if pid_of(record.leader) == leader:
                _end(record)
        with self._lock:
            self._write([record for record in self.read() if pid_of(record.leader) != leader])

    def read(self) -> list[ServerRecord]:
        """What is recorded; nothing where there is no file, or one that cannot be read."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=list[ServerRecord])
        except (FileNotFoundError, msgspec.DecodeError, RecursionError):
            return []

    def reap(self) -> list[int]:
        """End the sessions of servers whose launcher is gone, and return their leaders' pids."""
        with self._lock:
            records = self.read()
            strays = [record for record in records if not is_alive(record.launcher)]
            reaped = [pid_of(record.leader) for record in strays if _end(record)]
            if strays:
                self._write([record for record in records if record not in strays])
        return reaped

    def _write(self, records: list[ServerRecord]) -> None:
        temporary = self._path.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(records), indent=1))
        temporary.replace(self._path)


def reap_strays(run_dir: Path) -> list[int]:
    """End what an earlier, killed run of ``run_dir`` left running; returns the pids of the sessions' leaders."""
    return ServerRecords(run_dir).reap()


def _end(record: ServerRecord) -> bool:
    leader = pid_of(record.leader)
    known = [record.leader, *record.members]
    ours = any(is_alive(process) and os.getsid(pid_of(process)) == leader for process in known)
    if ours:
        end_session(leader, GRACE_S)
    return ours
