"""The kernel's lock (``flock``) on a file, which holds the pid of its owner. The lock is gone with this process."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import IO


class Locked(Exception):
    """Another process holds the lock; the text is its pid, or ``unknown``."""


def open_locked(path: Path) -> IO[str]:
    """The file at ``path``, made if missing, opened and locked. Who holds it may remove it. Raises ``Locked``."""
    while True:
        handle = path.open("a+", encoding="utf-8")
        try:
            lock(handle)
            if _is_at(handle, path):
                return handle
        except BaseException:
            handle.close()
            raise
        # The holder has removed it since it was opened: others would lock a new file of the same name.
        handle.close()


def _is_at(handle: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle.fileno()), path.stat())
    except FileNotFoundError:
        return False


def lock(handle: IO[str]) -> None:
    """Lock a file, opened with ``a+``, for as long as it is open. Raises ``Locked``."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        handle.seek(0)
        raise Locked(handle.read().strip() or "unknown") from error
    with contextlib.suppress(OSError):  # the pid is for a message only, so a full device may refuse it
        os.ftruncate(handle.fileno(), 0)
        os.write(handle.fileno(), str(os.getpid()).encode())
