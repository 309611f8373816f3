"""Processes of this machine, distinguished exactly: a pid is used again, a pid with its boot and start time is not.

Reads ``/proc`` (Linux only); see proc(5) for the fields of ``stat`` and of ``net/tcp``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.file_lock import Locked, lock

PROC = Path("/proc")


def identity(pid: int) -> str | None:
    """``boot:pid:start`` of a live process, ``start`` in clock ticks since boot; ``None`` if there is none."""
    fields = _stat(pid)
    # A zombie has ended; only its exit code was not asked for yet.
    if fields is None or fields[0] in "ZX":
        return None
    boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{pid}:{fields[19]}"


def is_alive(identified: str) -> bool:
    """Whether the very process that ``identity`` described is still there."""
    return identity(pid_of(identified)) == identified


def pid_of(identified: str) -> int:
    """The pid in an identity."""
    return int(identified.split(":")[1])


def session_members(leader: int) -> list[int]:
    """The live processes in the session that ``leader`` leads or led, without the one that asks."""
    found = []
    for pid in _pids():
        fields = _stat(pid)
        if fields is not None and int(fields[3]) == leader and fields[0] not in "ZX" and pid != os.getpid():
            found.append(pid)
    return found


def children_of(ancestor: int) -> list[int]:
    """The live processes that come from ``ancestor``: its children, theirs, and so on."""
    parents = {pid: int(fields[1]) for pid in _pids() if (fields := _stat(pid)) is not None and fields[0] not in "ZX"}
    found: list[int] = []
    new = [ancestor]
    while new:
        new = [pid for pid, parent in parents.items() if parent in new]
        found += new
    return found


def is_held_by_others(port: int, leader: int) -> bool:
    """Whether others than those in the session of ``leader`` listen on ``port``; not where it cannot be seen."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    try:
        return bool(sockets) and not any(sockets & _open_files(pid) for pid in [leader, *session_members(leader)])
    except PermissionError:
        return False


def _listening(port: int) -> Iterator[str]:
    """The inodes of the sockets that listen on ``port``."""
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (PROC / "net" / name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _open_files(pid: int) -> set[str]:
    """What the file descriptors of a process lead to; none of one that is gone. Raises ``PermissionError``."""
    found = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for entry in (PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.add(str(entry.readlink()))
    return found


def words_of(pid: int) -> str:
    """The command line of a process; empty for one that is gone."""
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def end_session(leader: int, grace_s: float) -> None:
    """End all others in the session of ``leader``: SIGTERM, then SIGKILL to what is left after ``grace_s``."""
    _signal_all(leader, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while session_members(leader) and time.monotonic() < deadline:
        time.sleep(0.05)
    while session_members(leader):
        # Again and again, since a process may start another between the look and the signal.
        _signal_all(leader, signal.SIGKILL)
        time.sleep(0.02)


def end_children(ancestor: int) -> None:
    """End all processes that come from ``ancestor``, by SIGKILL."""
    while children := children_of(ancestor):
        _signal(children, signal.SIGKILL)
        time.sleep(0.02)


def _signal_all(leader: int, number: signal.Signals) -> None:
    _signal(session_members(leader), number)


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _stat(pid: int) -> list[str] | None:
    """The fields of ``stat`` from the state on; the name before it may hold spaces and brackets."""
    try:
        return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def _pids() -> Iterator[int]:
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            yield int(folder.name)


LOCK = ".lock"


def in_use(run_dir: Path) -> bool:
    """Whether another process holds ``run_dir`` now."""
    try:
        with (run_dir / LOCK).open(encoding="utf-8") as handle:
            # Shared, so that two who ask at the same time do not take each other for the owner.
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


@contextlib.contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Hold ``run_dir``, made if missing, for as long as this process lives at most.

    The lock is the kernel's (``flock``), so it is gone with the process, however that ends. Raises ``UserError`` if
    another process holds it, or if the directory cannot be made.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        # Not "w", which would erase the pid of the process that holds the lock.
        handle = (run_dir / LOCK).open("a+", encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"run_dir {run_dir}: {error.strerror}; give another one with run_dir=…", ErrorCode.NOT_WRITABLE
        ) from error
    with handle:
        try:
            lock(handle)
        except Locked as owner:
            raise UserError(
                f"run_dir {run_dir} is in use by process {owner}; wait for it, or give another one with run_dir=…",
                ErrorCode.RUN_IN_USE,
            ) from owner
        yield
