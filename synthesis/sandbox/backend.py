"""What every backend does: it starts a keeper (``agentmill.synthesis.sandbox.inside``) apart from the host."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any, Protocol

import msgspec

from agentmill.synthesis.sandbox.limits import Limits
from agentmill.synthesis.sandbox.syscalls import interpreter_filter

INSIDE = Path(__file__).with_name("inside.py")

FLAGS = ("-s", "-S", "-B")
"""Beside ``-P``: neither the user's packages, nor ``site``; no compiled files are written."""

ENVIRONMENT = {"PYTHONHASHSEED": "0", "LANG": "C.UTF-8", "MALLOC_ARENA_MAX": "1"}
"""All of it. Further arenas would take 64 MiB of address space per thread."""


LAST_WORDS_TIMEOUT_S = 5.0


class Started(msgspec.Struct, frozen=True):
    """A keeper's process. ``pidfd`` stands for the process whose death ends all that runs in the sandbox."""

    process: subprocess.Popen[bytes]
    pid: int
    """Of the keeper, in the numbers of the host."""
    pidfd: int
    settings: dict[str, Any]
    """The first message to the keeper."""


class Backend(Protocol):
    """A way to isolate."""

    def start(self, control: int, limits: Limits) -> Started:
        """A keeper that is served through the file descriptor ``control``. Raises ``SandboxUnavailable``."""


def rlimits(limits: Limits) -> dict[str, int]:
    """The limits of an interpreter that the kernel keeps per process."""
    return {
        "RLIMIT_AS": limits.memory_bytes,
        "RLIMIT_CPU": limits.cpu_s,
        "RLIMIT_FSIZE": limits.files_bytes,
        # A core dump would write the interpreter's memory to the host's disk.
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_SIGPENDING": 64,
    }


def settings_for(limits: Limits, program: bytes, **more: Any) -> dict[str, Any]:
    """The settings of a keeper. ``uid``: who it becomes, if anyone; ``files``: how ``/tmp`` is mounted, if it is."""
    return {
        "uid": None,
        "files": None,
        "filter": program.hex(),
        "rlimits": rlimits(limits),
        "output_bytes": limits.output_bytes,
        "value_bytes": limits.value_bytes,
        **more,
    }


def last_words(process: subprocess.Popen[bytes]) -> str:
    """The last words of a process that has ended, or that is ended now."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # with what it has forked, which may wait for it for ever
    try:
        _, errors = process.communicate(timeout=LAST_WORDS_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return "nothing"
    return " ".join((errors or b"").decode(errors="replace").split())[-400:] or f"exit code {process.returncode}"


def close_all(*descriptors: int) -> None:
    """Close file descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


class Seccomp:
    """Limits and a system call filter, without namespaces."""

    def start(self, control: int, limits: Limits) -> Started:
        """As ``Backend.start``."""
        settings = settings_for(limits, interpreter_filter(writable=False))
        process = subprocess.Popen(
            [sys.executable, "-P", *FLAGS, str(INSIDE), str(control)],
            pass_fds=(control,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
            cwd="/",
            start_new_session=True,  # an interrupt from the keyboard is for the host
        )
        return Started(process, process.pid, os.pidfd_open(process.pid), settings)


class Inherited(Protocol):
    """What must not be used by a fork as it is."""

    def let_go(self) -> None:
        """In the fork: close descriptors, renew locks; whatever others share is left as it is."""


_known: weakref.WeakSet[Inherited] = weakref.WeakSet()


def watch(each: Inherited) -> None:
    """Have forks let go of it."""
    _known.add(each)


def _let_go() -> None:
    for each in list(_known):
        with contextlib.suppress(OSError):  # closed by another thread during the fork
            each.let_go()
    _known.clear()


# A fork has copies of all descriptors, and would keep sandboxes open whose owner has ended.
os.register_at_fork(after_in_child=_let_go)
