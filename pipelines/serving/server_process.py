"""One model server as a supervised process with a log, that can be waited for, started again and stopped."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import msgspec

from agentmill.pipelines.processes.identity import (
    end_session,
    identity,
    is_alive,
    is_held_by_others,
    pid_of,
    session_members,
)
from agentmill.pipelines.processes.supervise import supervised
from agentmill.pipelines.serving.endpoints import HOST, Endpoint, health_error
from agentmill.schemas.records.manifest import disk_errors
from agentmill.schemas.records.record import Record

FILE = "servers.json"
GRACE_S = 15.0


class ServerRecord(Record):
    """One server: its log, identities of the processes that belong to it, and whether it has answered."""

    launcher: str
    leader: str
    members: list[str]
    log: str
    ready: bool = False


class ServerRecords:
    """The records of one run directory, kept by one process."""

    _lock: ClassVar[threading.Lock] = threading.Lock()  # of all: each model of a run has its own object, and one file

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / FILE

    def add(self, leader: int, log: Path, ready: bool = False) -> None:
        """Record the server whose session ``leader`` leads, or what belongs to it by now."""
        identified, launcher = identity(leader), identity(os.getpid())
        if identified is None or launcher is None:
            return
        members = [member for member in map(identity, session_members(leader)) if member is not None]
        record = ServerRecord(launcher=launcher, leader=identified, members=members, log=str(log), ready=ready)
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
        # By a rename: a kill leaves the old records or the new ones, by which the next run finds strays.
        temporary = self._path.with_suffix(".tmp")
        with disk_errors(self._path):
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(records), indent=1))
            temporary.replace(self._path)


def reap_strays(run_dir: Path) -> list[int]:
    """End what an earlier, killed run of ``run_dir`` left running; returns the pids of the sessions' leaders."""
    return ServerRecords(run_dir).reap()


def _end(record: ServerRecord) -> bool:
    leader = pid_of(record.leader)
    known = [record.leader, *record.members]
    # The leader's pid may be in use again; the session is ours only while a process that we know is in it.
    ours = any(is_alive(process) and _session_of(pid_of(process)) == leader for process in known)
    if ours:
        end_session(leader, GRACE_S)
    return ours


def _session_of(pid: int) -> int | None:
    # Members of a server end together, so one that was alive a moment ago may be gone.
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


POLL_S = 0.2
# Longer than the time that the supervisor gives the server itself.
STOP_S = 20.0
LOG_LINES = 8
LINE_LENGTH = 300
HUNG_S = 120.0
"""A server that takes connections and does not answer whether it is healthy for so long hangs."""
STACKS_S = 10.0
"""How long the processes of a server have to write the stacks of their threads."""
ERRORS = 2
ERROR = re.compile(r"(^|[\s.])\w+(Error|Exception): |\berror: ")
"""An exception at the end of a traceback, or a complaint about the command line."""

logger = logging.getLogger(__name__)


class ServerError(Exception):
    """A model server did not start, or died for good. The message ends with the last lines of its log."""


@dataclass(frozen=True)
class ServerPlan:
    """What is to run, where it will listen, and where its output goes."""

    command: list[str]
    environment: dict[str, str]
    port: int
    model: str
    log: Path

    @property
    def endpoint(self) -> Endpoint:
        """Where it can be asked."""
        return Endpoint(base_url=f"http://{HOST}:{self.port}/v1", model=self.model)


class ServerProcess:
    """A server under ``agentmill.pipelines.processes.supervise``, recorded in the run directory while it lives.

    It is started again at most ``restarts`` times.
    """

    def __init__(self, plan: ServerPlan, records: ServerRecords, restarts: int = 0) -> None:
        self.plan = plan
        self._records = records
        self._restarts_left = restarts
        self._process: subprocess.Popen[bytes] | None = None
        self._temporary = ""
        self._log_start = 0

    def start(self) -> None:
        """Start it and record it; it is not ready yet. Raises ``UserError`` where the device is full."""
        with disk_errors(Path(tempfile.gettempdir())):
            self._temporary = tempfile.mkdtemp(prefix="agentmill-")
        with disk_errors(self.plan.log):
            self.plan.log.parent.mkdir(parents=True, exist_ok=True)
            log = self.plan.log.open("ab")
        self._log_start = log.tell()
        with log:
            # A session of its own: a Ctrl-C reaches the launcher alone, which ends its servers in order.
            self._process = subprocess.Popen(
                supervised(self.plan.command, self._temporary),
                env={**self.plan.environment, "PYTHONFAULTHANDLER": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._records.add(self._process.pid, self.plan.log)

    def start_again(self, why: str) -> None:
        """Start it anew; of one that hangs, the stacks are in its log. Raises ``ServerError`` after all restarts."""
        if self._restarts_left == 0:
            raise ServerError(f"the server of {self.plan.model} {why} again.\n{self._end_of_log()}")
        self._restarts_left -= 1
        logger.warning("the server of %s %s; starting it again (log: %s)", self.plan.model, why, self.plan.log)
        self._write_stacks()
        # Also where it has died: what is left of its session may hold the port and the memory.
        self.stop()
        self.start()

    def wait_ready(self, timeout_s: float, stopping: threading.Event | None = None) -> None:
        """Wait until it is healthy, or until ``stopping``. One that hangs is started again.

        Raises ``ServerError`` if it ends before, or is not ready in ``timeout_s`` seconds after a start.
        """
        started = time.monotonic()
        silent_since: float | None = None
        stopping = stopping or threading.Event()
        while (error := self._unready()) is not None:
            now = time.monotonic()
            # While it loads, it refuses connections.
            silent_since = (silent_since or now) if isinstance(error, TimeoutError) else None
            if not self.is_alive():
                raise ServerError(f"the server of {self.plan.model} ended while it started.\n{self.last_words()}")
            if silent_since is not None and now - silent_since > HUNG_S:
                self.start_again(f"takes connections and has not answered for {HUNG_S:g} s")
                started, silent_since = time.monotonic(), None
            elif now - started > timeout_s:
                waited = f"was not ready within {timeout_s:g} s (`server.start_timeout_s`)"
                last = str(error) or "it takes connections and does not answer"
                raise ServerError(f"the server of {self.plan.model} {waited}: {last}.\n{self._end_of_log()}")
            if stopping.wait(POLL_S):
                return
        if self._process is not None:
            self._records.add(self._process.pid, self.plan.log, ready=True)

    def _unready(self) -> Exception | None:
        """Why it cannot be asked yet. A server of somebody else on its port is not taken for it."""
        error = health_error(self.plan.endpoint.base_url)
        process = self._process
        if error is None and process is not None and is_held_by_others(self.plan.port, process.pid):
            return ConnectionError(f"another process listens on port {self.plan.port}")
        return error

    def is_alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End it and all its children. Does nothing if it has ended. Raises ``UserError`` where the device is full."""
        process, self._process = self._process, None
        try:
            if process is not None:
                _end_process(process)
                self._records.remove(process.pid)
        finally:
            # Of a supervisor that was killed, or never started because the device was full.
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _end_of_log(self) -> str:
        """The last lines of the log, taken before the stacks of a server that runs are added to it."""
        last_words = self.last_words()
        return f"{last_words}\n  (then the stacks of its threads)" if self._write_stacks() else last_words

    def _write_stacks(self) -> bool:
        """Have each Python process of a server that runs write the stacks of its threads to the log, and end."""
        process = self._process
        if process is None or process.poll() is not None:
            return False
        for pid in session_members(process.pid):
            if pid != process.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STACKS_S)
        return True

    def last_words(self) -> str:
        """The path of the log, and its telling lines since the last start."""
        log = self.plan.log.read_bytes()[self._log_start :].decode(errors="replace")
        return "\n".join([f"From its log {self.plan.log}:", *(f"  {line}" for line in telling_lines(log))])


def _end_process(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            # Killed, it cannot end its session; ``ServerRecords.remove`` does that.
            process.kill()
            process.wait()


def telling_lines(log: str) -> list[str]:
    """The last errors that a log names, each with the line after it; without any, its last lines."""
    lines = [line[:LINE_LENGTH] for line in log.splitlines() if line.strip()]
    errors = [index for index, line in enumerate(lines) if ERROR.search(line)][-ERRORS:]
    if not errors:
        return lines[-LOG_LINES:]
    chosen = sorted({after for index in errors for after in (index, index + 1) if after < len(lines)})
    return [lines[index] for index in chosen]
