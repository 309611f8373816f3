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

_WORKER_THREAD = "run_worker"
"""The thread of Beam's local runner that waits for the end of a worker process."""

_RUNNER_THREADS = (_WORKER_THREAD, "beam_control_read", "read_grpc_client_inputs")
"""It and those that break with it."""

stopped = threading.Event()
"""Set while a run that was interrupted winds down; workers in other threads then stop at the next record."""


lost: list[str] = []
"""What was said of worker processes that ended by themselves in the run that winds down."""


class Stopped(BaseException):
    """Work was given up because the run was interrupted."""


def check() -> None:
    """Raises ``Stopped`` once the run was interrupted."""
    if stopped.is_set():
        raise Stopped


@contextlib.contextmanager
def interruptible(stop_file: Path) -> Iterator[None]:
    """Tell the workers to stop the moment an interrupt comes, and then let it take its course.

    It cannot wait for the exception to arrive: the runner first waits for its workers. A worker process that ends by
    itself is such an interrupt, too, and is noted in ``lost``, since the runner would wait for it for ever.
    """
    stopped.clear()
    lost.clear()
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
        name = arguments.thread.name if arguments.thread else ""
        if name == _WORKER_THREAD and not stopped.is_set():
            lost.append(str(arguments.exc_value))
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        elif name not in _RUNNER_THREADS:
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
