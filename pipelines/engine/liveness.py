"""Signs of life between a launcher and its workers: files of their attempt whose times are renewed.

A worker that the launcher has not heard of for too long is given up; a worker that has not heard of its launcher asks
no model any more and then ends, and one whose attempt was taken over ends at once. Clocks are never compared: each
side sees with its own whether a file has changed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from agentmill.pipelines.engine.stop import held_loops
from agentmill.pipelines.engine.workspace import Workspace, read_note, write_note
from agentmill.pipelines.processes.identity import identity

RENEW_S = 5.0
"""How often both sides renew their files."""

HOLD_S = 20.0
"""A worker asks no model once its launcher has been silent for so long."""

FENCE_S = 60.0
"""A worker ends once its launcher has been silent for so long."""

SUPERSEDED = 75
"""The exit code of a worker that was fenced."""

MOST_BETWEEN_LOOKS_S = 5.0
"""More time than this between two looks is one in which the process that looks was itself stopped, as by Ctrl-Z."""

_POLL_S = 0.5


class Beat(msgspec.Struct, frozen=True):
    """What a worker reports of itself: where it is, and the chunks that it has taken and not done.

    ``process`` is its identity, empty where that cannot be had.
    """

    host: str
    pid: int
    chunks: list[int]
    process: str = ""


class Age:
    """How long ago something changed, in seconds in which this process could see it."""

    def __init__(self) -> None:
        self._value: object = None
        self._looked = time.monotonic()
        self._age = 0.0

    def of(self, value: object) -> float:
        """The time since ``value`` was another one, as far as looks were at most ``MOST_BETWEEN_LOOKS_S`` apart."""
        now = time.monotonic()
        # What was stopped together with this process is not silent.
        self._age += min(now - self._looked, MOST_BETWEEN_LOOKS_S)
        self._looked = now
        if value != self._value:
            self._value, self._age = value, 0.0
        return self._age


class Pulse:
    """The signs of life of one worker process, renewed by a thread until the process ends."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._file = workspace.path / "alive" / f"{socket.gethostname()}-{os.getpid()}.json"
        self._process = identity(os.getpid()) or ""
        self._chunks: set[int] = set()
        self._lock = threading.Lock()
        self._launcher = Age()
        self._renewed = -RENEW_S
        threading.Thread(target=self._beat, name="pulse", daemon=True).start()

    def take(self, chunk: int) -> None:
        """Say that this worker works on ``chunk``."""
        with self._lock:
            self._chunks.add(chunk)
        self._write()

    def release(self, chunk: int) -> None:
        """Say that ``chunk`` is done."""
        with self._lock:
            self._chunks.discard(chunk)
        self._write()

    def _write(self) -> None:
        with self._lock, contextlib.suppress(Exception):  # of a full device, or a folder that is gone: see _beat
            beat = Beat(socket.gethostname(), os.getpid(), sorted(self._chunks), self._process)
            write_note(self._file, beat)

    def _beat(self) -> None:
        while self._look():
            time.sleep(_POLL_S)

    def _look(self) -> bool:
        """Renew, and end or wait if the launcher is gone. Returns whether the attempt goes on.

        Once it is over, a worker that has nothing of it in hand may work for another one.
        """
        if not self._workspace.path.is_dir():
            if self._chunks:
                # An exception would end this thread and not the process.
                os._exit(SUPERSEDED)
            return False
        if time.monotonic() - self._renewed > RENEW_S:
            self._renewed = time.monotonic()
            # If the folder is gone, the next look finds that out.
            with contextlib.suppress(OSError):
                os.utime(self._file)
        if self._silence() > HOLD_S:
            with held_loops():
                while self._silence() > HOLD_S:
                    if self._silence() > FENCE_S or not self._workspace.path.is_dir():
                        os._exit(SUPERSEDED)
                    time.sleep(_POLL_S)
        return True

    def _silence(self) -> float:
        return self._launcher.of(stamp(self._workspace.lease))


# Beam makes several functions in one process; one thread gives the signs of life of all.
_pulses: dict[str, Pulse] = {}


def pulse(workspace: Workspace) -> Pulse | None:
    """The signs of life of this process in an attempt; ``None`` in the launcher itself, which needs none."""
    if identity(os.getpid()) == workspace.launcher:
        return None
    if workspace.attempt not in _pulses:
        _pulses[workspace.attempt] = Pulse(workspace)
    return _pulses[workspace.attempt]


class Watchdog:
    """The launcher's side: renews the lease, and tells ``lose`` of a worker that is silent while nothing goes on."""

    def __init__(
        self, workspace: Workspace, stall_timeout_s: float, done: Callable[[], int], lose: Callable[[Beat, float], None]
    ) -> None:
        self._workspace = workspace
        self._timeout_s = stall_timeout_s
        self._done = done
        self._lose = lose
        self._ages: dict[Path, Age] = {}
        self._progress = Age()
        self._over = threading.Event()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch in a thread of its own."""
        thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        # Before the thread, which renews only what is there.
        self._workspace.lease.touch()
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _watch(self) -> None:
        renewed = time.monotonic()
        while not self._over.wait(_POLL_S):
            if time.monotonic() - renewed > RENEW_S:
                renewed = time.monotonic()
                with contextlib.suppress(OSError):
                    os.utime(self._workspace.lease)
            silent = self.silent()
            if silent is not None:
                self._lose(*silent)
                return

    def silent(self) -> tuple[Beat, float] | None:
        """A worker that has chunks and has been silent for too long, and how long, if nothing has got done either."""
        idle = self._progress.of(self._done())
        for file in sorted((self._workspace.path / "alive").glob("*.json")):
            age = self._ages.setdefault(file, Age()).of(stamp(file))
            beat = read_note(file, Beat) if min(age, idle) > self._timeout_s else None
            if beat is not None and beat.chunks:
                return beat, age
        return None


def stamp(path: Path) -> int:
    """The time of a file, in nanoseconds; 0 where it cannot be had."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
