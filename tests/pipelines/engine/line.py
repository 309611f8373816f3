"""A line of three stages, or a rollout, in processes of their own, for tests that kill or interrupt them.

    python -m tests.pipelines.engine.line

runs one of ``RUNS`` for each line of its standard input (RUN RUNNER WORKERS DELAY_S FOLDER), each time in a forked
child, since imports take longer than the line itself. It says the child's process id, and when that has ended its exit
code. What a run says on standard error goes to FOLDER/errors.txt.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentmill.pipelines.engine.operation import Operation
from agentmill.pipelines.engine.run import run_stage
from agentmill.pipelines.engine.runner import quiet_beam
from agentmill.pipelines.terminal.progress import LineProgress
from agentmill.schemas.tables import Table
from tests.pipelines.engine.operations import Distinct, Grow, Slow
from tests.pipelines.engine.rollouts import run_rollout
from tests.pipelines.engine.stages import order, task, write_table

INTERRUPTED = 130
NAMES = ("shouted", "distinct", "explored")
ROOT = Path(__file__).parents[3]


def make_input(folder: Path) -> None:
    """Forty tasks: some break, some are equal."""
    rows = [task(i, "bug" if i % 11 == 5 else "", instruction=f"do thing {i % 37}") for i in range(40)]
    write_table(folder / "tasks", [rows[:25], rows[25:]])


def run_line(folder: Path, runner: str, workers: int, delay_s: float) -> int:
    """Run the stages one after the other, each on the table of the one before."""
    stages: list[Operation] = [
        Slow(delay_s / 4),
        Distinct(),
        Grow(k=2, delay_s=delay_s, window=4, log=folder / "log.txt"),
    ]
    table = Table.open(folder / "tasks")
    try:
        for name, operation in zip(NAMES, stages, strict=True):
            request = order(operation, table, folder / name, runner={"name": runner, "workers": workers})
            run_stage(request, LineProgress(sys.stderr))
            table = Table.open(folder / name)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


RUNS = {"line": run_line, "rollout": run_rollout}


class Line:
    """The process that forks the runs of a line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(
        self, folder: Path, runner: str = "embedded", workers: int = 1, delay_s: float = 0.02, run: str = "line"
    ) -> int:
        """Start a run; its process id."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{run} {runner} {workers} {delay_s} {folder}\n")
        self._process.stdin.flush()
        return int(self._say())

    def end(self) -> int:
        """Wait for the run to end; its exit code, negative for a signal."""
        return int(self._say())

    def _say(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextmanager
def forking() -> Iterator[Line]:
    """A process that is ready to run lines."""
    command = [sys.executable, "-m", "tests.pipelines.engine.line"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT, env=environment) as process:
        try:
            yield Line(process)
        finally:
            process.terminate()


def serve() -> None:
    """Fork a run for each line of standard input."""
    with quiet_beam():
        import agentmill.pipelines.engine.transform  # noqa: F401 - Beam, before the first fork

    for request in sys.stdin:
        run, runner, workers, delay_s, folder = request.rstrip("\n").split(" ", 4)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                sys.stderr = (Path(folder) / "errors.txt").open("a", buffering=1)
                code = RUNS[run](Path(folder), runner, int(workers), float(delay_s))
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                os._exit(code)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def gone(command: str, within_s: float = 5.0) -> bool:
    """Whether no process with ``command`` in its command line is left after some time."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if not any(command in words for words in command_lines()):
            return True
        time.sleep(0.1)
    return False


def command_lines() -> list[str]:
    """The command lines of all processes."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(entry.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return lines


if __name__ == "__main__":
    serve()
