"""A Beam worker process of this machine that ends with its launcher.

    python -P -m agentmill.pipelines.engine.worker_process LAUNCHER STOP_FILE

Where it waits for work when the launcher goes, nothing else would end it; what it writes after that would fall into a
table that the next run has taken over. Everything else is Beam's own worker.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from pathlib import Path
from typing import TextIO, cast

from agentmill.pipelines.engine import stop


class Log:
    """A stream that loses what cannot be written.

    Beam reports what broke a worker after it has logged it: with a full device the report would never come.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what can be written."""
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Write what is buffered, if that can be."""
        with contextlib.suppress(OSError):
            self._stream.flush()


def main(launcher: int, stop_file: Path) -> None:
    """Work until the runner has no more to do, ``launcher`` is gone or ``stop_file`` is there.

    A signal to the process group reaches the launcher as well, which then says when to stop.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # not ignored, which processes that are started here would inherit
    sys.stdout = sys.stderr = cast(TextIO, Log(sys.stderr))
    stop.follow(launcher, stop_file)

    # After ``follow``: Beam takes seconds to import, and the launcher may end in these.
    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
