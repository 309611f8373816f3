"""How a run ends early: workers in this process learn it from a flag, others from a file or their parent's end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from agentmill.pipelines.processes.identity import children_of, words_of
from agentmill.schemas.errors import ignored_interrupts_repeated

_POLL_S = 0.3

_WORKER_THREAD = "run_worker"
"""The thread of Beam's local runner that waits for the end of a worker process."""

_RUNNER_GRACE_S = 10.0

_RUNNER_THREADS = (_WORKER_THREAD, "beam_control_read", "read_grpc_client_inputs", "wait_until_finish_read", "cancel")
"""It and those that break with it."""

stopped = threading.Event()
"""Set while a run that was interrupted winds down; workers in other threads then stop at the next record."""


requested = threading.Event()
"""Set once the user, or a scheduler, has interrupted the stage: it ends, even if a worker is lost at the same time."""

lost: list[str] = []
"""What was reported of worker processes that ended by themselves in this attempt."""

_WAKE = signal.SIGRTMIN + 1
"""Wakes the main thread for a lost worker. It is not SIGINT, which only the user sends."""


_loops: set[asyncio.AbstractEventLoop] = set()
"""Event loops in which episodes of this process run."""


# No ``Exception``: the boundary that drops inputs for what plug-ins raise must not catch it.
class Stopped(BaseException):
    """Work was given up because the run was interrupted."""


def check() -> None:
    """Raises ``Stopped`` once the run was interrupted."""
    if stopped.is_set():
        raise Stopped


@contextlib.contextmanager
def interruptible(stop_file: Path) -> Iterator[None]:
    """Tell the workers to stop the moment an interrupt comes, and then let it take its course.

    It cannot wait for the exception to arrive: the runner first waits for its workers. For a worker process that ends
    by itself, which is noted in ``lost``, ``KeyboardInterrupt`` is raised, too, since the runner would wait for it for
    ever; ``requested`` is set for the user's own alone. One that comes in the middle of a destructor is dropped by
    Python, and comes again.
    """
    stopped.clear()
    requested.clear()
    lost.clear()
    # Python lets only the main thread set handlers of signals.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = _Handlers(stop_file)
    handlers.install()
    try:
        with ignored_interrupts_repeated(wake_main):
            yield
    finally:
        handlers.remove()


class _Handlers:
    """What is called for signals and for exceptions that nothing catches while a stage runs."""

    def __init__(self, stop_file: Path) -> None:
        self._stop_file = stop_file
        self._interrupt = signal.getsignal(signal.SIGINT)
        self._uncaught = threading.excepthook

    def install(self) -> None:
        """Put them in place of the earlier ones."""
        signal.signal(signal.SIGINT, self._on_interrupt)
        signal.signal(_WAKE, self._on_wake)
        threading.excepthook = self._on_uncaught

    def remove(self) -> None:
        """Put the earlier ones back."""
        signal.signal(_WAKE, signal.SIG_IGN)  # a worker that is lost now had nothing left to do
        signal.signal(signal.SIGINT, self._interrupt)
        # Threads of an interrupted run break later still, and their tracebacks would be printed.
        if not stopped.is_set():
            threading.excepthook = self._uncaught

    def _end(self) -> None:
        stopped.set()
        with contextlib.suppress(OSError):
            self._stop_file.touch()

    def _on_interrupt(self, signum: int, frame: FrameType | None) -> None:
        requested.set()
        self._end()
        if callable(self._interrupt):
            self._interrupt(signum, frame)
        raise KeyboardInterrupt  # where SIGINT was ignored, as in `command &` of a script

    def _on_wake(self, *_: object) -> None:
        if requested.is_set() or lost:
            self._end()
            raise KeyboardInterrupt

    def _on_uncaught(self, arguments: threading.ExceptHookArgs) -> None:
        name = arguments.thread.name if arguments.thread else ""
        # Beam raises in this thread when a worker process ends with an error, and reports that nowhere else.
        if name == _WORKER_THREAD and not stopped.is_set():
            lose(str(arguments.exc_value))
        elif name not in _RUNNER_THREADS:
            self._uncaught(arguments)


def lose(worker: str) -> None:
    """Give the attempt up for a worker that ended or fell silent: ``lost`` says so, and the main thread is woken."""
    lost.append(worker)
    wake_main()


def wake_main() -> None:
    """Interrupt the main thread, unless the stage has ended or runs in another one."""
    if (requested.is_set() or lost) and callable(signal.getsignal(_WAKE)):
        signal.pthread_kill(threading.main_thread().ident or 0, _WAKE)


@contextlib.contextmanager
def running(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Around the life of an event loop whose episodes have to wait where a worker may ask no model."""
    _loops.add(loop)
    try:
        yield
    finally:
        _loops.discard(loop)


@contextlib.contextmanager
def held_loops() -> Iterator[None]:
    """Keep all episodes of this process where they are."""
    free = threading.Event()
    for loop in list(_loops):
        with contextlib.suppress(RuntimeError):  # it has just been closed
            # A callback that blocks keeps all others of its loop waiting.
            loop.call_soon_threadsafe(free.wait)
    try:
        yield
    finally:
        free.set()


def end_workers(stop_file: Path) -> None:
    """End all worker processes of an attempt that is given up, and wait until the runner has noticed.

    What the runner says of their end belongs to that attempt.
    """
    for pid in children_of(os.getpid()):
        # A worker has the stop file of its attempt on its command line.
        if str(stop_file) in words_of(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    for thread in threading.enumerate():
        if thread.name == _WORKER_THREAD:
            thread.join(timeout=_RUNNER_GRACE_S)


def follow(launcher: int, stop_file: Path) -> None:
    """End this worker process as soon as ``launcher`` is gone or ``stop_file`` is there.

    A worker that outlived its launcher would write into a table that the next run takes over.
    """
    threading.Thread(target=_watch, args=(launcher, stop_file), name="follow-launcher", daemon=True).start()


def _watch(launcher: int, stop_file: Path) -> None:
    while alive(launcher) and not stop_file.exists():
        time.sleep(_POLL_S)
    # An exception would end this thread and not the process.
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
