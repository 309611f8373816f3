"""How a run ends early: workers in this process learn it from a flag, others from a file or their parent's end."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

_POLL_S = 0.3

stopped = threading.Event()
"""Set while a run that was interrupted winds down; workers in other threads then stop at the next record."""


class Stopped(BaseException):
    """Work was given up because the run was interrupted."""


def check() -> None:
    """Raises ``Stopped`` once the run was interrupted."""
    if stopped.is_set():
        raise Stopped


@contextlib.contextmanager
def interruptible(stop_file: Path) -> Iterator[None]:
    """Tell the workers to stop the moment an interrupt comes, and then let it take its course.

    It cannot wait for the exception to arrive: the runner first waits for its workers. What the runner's threads say
    about workers that vanish is not shown.
    """
    stopped.clear()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous, hook = signal.getsignal(signal.SIGINT), threading.excepthook

    def handle(signum: int, frame: FrameType | None) -> None:
        stopped.set()
        with contextlib.suppress(OSError):
            stop_file.touch()
        if callable(previous):
            previous(signum, frame)

    def report(arguments: threading.ExceptHookArgs) -> None:
        if not stopped.is_set():
            hook(arguments)

    signal.signal(signal.SIGINT, handle)
    threading.excepthook = report
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        if not stopped.is_set():
            threading.excepthook = hook


def follow(launcher: int, stop_file: Path) -> None:
    """End this worker process as soon as ``launcher`` is gone or ``stop_file`` is there.

    A worker that outlived its launcher would write into a table that the next run takes over.
    """
    threading.Thread(target=_watch, args=(launcher, stop_file), name="follow-launcher", daemon=True).start()


def _watch(launcher: int, stop_file: Path) -> None:
    while alive(launcher) and not stop_file.exists():
        time.sleep(_POLL_S)
    os._exit(1)


def alive(process: int) -> bool:
    """Whether a process with this id runs."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
