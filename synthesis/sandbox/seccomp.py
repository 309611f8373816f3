"""Backend ``seccomp``: for machines without user namespaces. Weaker, so it must be asked for by name.

The same filter and limits, on the host's own file system: no network, no new process, no signal, no change to any
file; but the code **can read whatever the user can read**, and the number of its threads is bounded by memory only.
"""

from __future__ import annotations

import os
import subprocess
import sys

from synthesis.sandbox.backend import ENVIRONMENT, FLAGS, INSIDE, Started, settings_for
from synthesis.sandbox.limits import Limits
from synthesis.sandbox.syscalls import interpreter_filter


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
