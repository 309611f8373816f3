"""A Beam worker process of this machine that ends with its launcher.

    python -P -m pipelines.engine.worker_process LAUNCHER STOP_FILE

Where it waits for work when the launcher goes, nothing else would end it; what it writes after that would fall into a
table that the next run has taken over. Everything else is Beam's own worker.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from pipelines.engine import stop


def main(launcher: int, stop_file: Path) -> None:
    """Work until the runner has no more to do, ``launcher`` is gone or ``stop_file`` is there.

    An interrupt from the terminal reaches the launcher as well, which then says when to stop.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop.follow(launcher, stop_file)

    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
