"""Processes of this machine, told apart exactly: a pid is used again, a pid with its boot and start time is not.

Reads ``/proc`` (Linux only); see proc(5) for the fields of ``stat``.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")


def identity(pid: int) -> str | None:
    """``boot:pid:start`` of a live process, ``start`` in clock ticks since boot; ``None`` if there is none."""
    fields = _stat(pid)
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
        _signal_all(leader, signal.SIGKILL)
        time.sleep(0.02)


def _signal_all(leader: int, number: signal.Signals) -> None:
    for pid in session_members(leader):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


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
