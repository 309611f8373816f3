"""One command line that is run again and again while faults inject it: its processes, what it says, how it ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentmill.pipelines.processes.identity import children_of, words_of
from agentmill.pipelines.processes.supervise import PR_SET_CHILD_SUBREAPER

POLL_S = 0.02
_MAIN = "from agentmill.pipelines.cli.main import main; main()"
TRACEBACK = "Traceback (most recent call last)"


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """Be the parent of processes whose own parent ends (prctl(2)), so that none that is left is overlooked."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


class Command:
    """A run of ``agentmill run`` in a process group of its own; what it says goes to the file ``log``.

    Its temporary files are in ``temporary``. ``inside`` is put before the command line: ``nsenter`` with options.
    """

    def __init__(self, arguments: Sequence[str], log: Path, temporary: Path, inside: Sequence[str] = ()) -> None:
        self.log = log
        self._others = descendants()
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                [*inside, sys.executable, "-P", "-c", _MAIN, *arguments],
                env={**os.environ, "TMPDIR": str(temporary)},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        self.began = time.monotonic()

    @property
    def pid(self) -> int:
        """The process that was started, which leads its group."""
        return self.process.pid

    def printed(self, line: str) -> bool:
        """Whether it has printed something that opens like ``line``."""
        return any(each.startswith(line) for each in self.output().splitlines())

    def output(self) -> str:
        """All that it has printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def wait(self, seconds: float) -> int | None:
        """Its exit code, negative for a signal; ``None`` if it has not ended after ``seconds``."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(timeout=seconds)
        return None

    def left(self, seconds: float, apart_from: Sequence[int] = ()) -> list[int]:
        """The processes that are left ``seconds`` after its end, ``apart_from`` some that are meant to be."""
        until = time.monotonic() + seconds
        while True:
            found = [pid for pid in self.processes() if pid not in apart_from]
            if not found or time.monotonic() > until:
                return found
            time.sleep(POLL_S)

    def processes(self) -> list[int]:
        """All live processes that come from this one, but for those that were there before."""
        return [pid for pid in descendants() if pid not in self._others]

    def workers(self) -> list[int]:
        """Its live worker processes."""
        return [pid for pid in self.processes() if "agentmill.pipelines.engine.worker_process" in words_of(pid)]

    def end(self, apart_from: Sequence[int] = ()) -> None:
        """Kill all that is left of it."""
        while found := self.left(0.0, apart_from):
            for pid in found:
                kill(pid, signal.SIGKILL)
            time.sleep(POLL_S)
        self.process.wait()


def descendants() -> list[int]:
    """The live processes that come from this one, adopted ones included."""
    return children_of(os.getpid())


def kill(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, which may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
