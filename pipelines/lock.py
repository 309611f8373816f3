"""One run directory, one run at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from schemas.errors import UserError

LOCK = ".lock"


def in_use(run_dir: Path) -> bool:
    """Whether another process holds ``run_dir`` now."""
    try:
        with (run_dir / LOCK).open(encoding="utf-8") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Hold ``run_dir``, made if missing, for as long as this process lives at most.

    The lock is the kernel's (``flock``), so it is gone with the process, however that ends. Raises ``UserError`` if
    another process holds it, or if the directory cannot be made.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        handle = (run_dir / LOCK).open("a+", encoding="utf-8")
    except OSError as error:
        raise UserError(f"run_dir {run_dir}: {error.strerror}; give another one with run_dir=…") from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            handle.seek(0)
            owner = handle.read().strip() or "unknown"
            raise UserError(
                f"run_dir {run_dir} is in use by process {owner}; wait for it, or give another one with run_dir=…"
            ) from error
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield
