"""Commands on a terminal of their own, of a given width."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.pipelines.cli.tables import PROGRAM

CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
CTRL_C = b"\x03"


def on_terminal(
    arguments: Sequence[str | Path], width: int, seen: str = "", key: bytes = b"", environment: Mapping[str, str] = {}
) -> tuple[int, str]:
    """Exit code and all that a command writes to its terminal; ``key`` is pressed once it has written ``seen``."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [str(PROGRAM), *map(str, arguments)],
        env={**inherited, "PYTHONSAFEPATH": "1", "TERM": "xterm-256color", **environment},
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(its)
    written, pressed, deadline = b"", not key, time.monotonic() + 120
    while (process.poll() is None or select.select([ours], [], [], 0)[0]) and time.monotonic() < deadline:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                written += os.read(ours, 65_536)
            except OSError:  # nobody has the terminal open any more
                break
        if not pressed and seen in CONTROL.sub("", written.decode(errors="replace")):
            os.write(ours, key)
            pressed = True
    code = process.wait(30)
    os.close(ours)
    return code, written.decode()


def lines_of(written: str) -> list[str]:
    """What stands in the lines of a terminal, each as last written over."""
    return [line.rpartition("\r")[2] for line in CONTROL.sub("", written).replace("\r\n", "\n").split("\n")]
