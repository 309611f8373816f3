"""The kernel's lock (``flock``) on a file, which holds the pid of its owner. The lock is gone with this process."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import IO


class Locked(Exception):
    """Another process holds the lock; the text is its pid, or ``unknown``."""


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
