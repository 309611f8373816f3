"""Runs one server and takes it along when its parent dies, even by SIGKILL.

``python -m agentmill.pipelines.processes.supervise PARENT FOLDER COMMAND…`` leads a session of its own, in which the
command and all its children live; PARENT is a pid, and FOLDER is theirs for temporary files. When the parent is gone,
when it is signalled to stop (SIGTERM, SIGINT, SIGHUP) or when the command ends, it ends the whole session, politely at
first, and removes FOLDER: vLLM leaves sockets behind, and torch the folders of its compiler. A command that it stops
takes along what it started in other sessions. It exits as the command did, and with 0 if it was signalled.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from agentmill.pipelines.processes.identity import end_children, end_session

GRACE_S = 10.0
POLL_S = 0.2
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def supervised(command: Sequence[str], temporary: str) -> list[str]:
    """The command line by which this process has ``command`` supervised, with ``temporary`` for its files."""
    module = "agentmill.pipelines.processes.supervise"
    return [sys.executable, "-P", "-m", module, str(os.getpid()), temporary, *command]


def main(argv: list[str]) -> int:
    """Supervise ``argv[2:]``, with temporary files in ``argv[1]``, on behalf of the process ``argv[0]``."""
    parent, temporary, command = int(argv[0]), argv[1], argv[2:]
    signals: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        signals.append(number)

    # Before the command starts: a signal in between would end this process and leave the command's children.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    # Processes of the command whose own parent ends become our children, so that none stays a zombie.
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    environment = {**os.environ, "TMPDIR": temporary}
    server = subprocess.Popen(command, env=environment, preexec_fn=_die_with_supervisor)
    # An orphan gets another parent, whatever ended its own.
    while server.poll() is None and not signals and os.getppid() == parent:
        time.sleep(POLL_S)
    # Before the session is ended: later it would be the code of our own signal.
    code = server.poll()
    end_session(os.getpid(), GRACE_S)
    if code is None:
        # Those with a session of their own were adopted. A command that ends by itself leaves them on purpose.
        end_children(os.getpid())
    _collect()
    shutil.rmtree(temporary, ignore_errors=True)
    return 0 if code is None else code


def _collect() -> None:
    """Collect the children that have ended, adopted ones too, so that none is left behind as a zombie."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _die_with_supervisor() -> None:
    """In the child: SIGKILL when the supervisor itself is killed (see prctl(2)), and no core files."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Else each process that is made to write its stacks could leave its memory as a file.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
