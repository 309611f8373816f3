"""Letting Beam do a stage, and finding out what went wrong if it could not."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from agentmill.pipelines.engine import stop
from agentmill.pipelines.engine.chunks import Chunk
from agentmill.pipelines.engine.liveness import Beat, Watchdog
from agentmill.pipelines.engine.runner import quiet_beam
from agentmill.pipelines.engine.stage_run import StageRun
from agentmill.pipelines.engine.workspace import Workspace
from agentmill.pipelines.processes.identity import is_alive
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, printable

_POLL_S = 0.2
_CANCEL_S = 5.0


class StageFailed(Exception):
    """A stage could not be finished for no fault of the user; what it had done stays and is taken up again."""


class WorkerLost(Exception):
    """A worker ended or fell silent while it had work; what was done stays, and another attempt may do the rest."""


def execute(run: StageRun, chunks: Sequence[Chunk], workspace: Workspace, done: Callable[[], int]) -> None:
    """Run the pipeline to its end. Raises what a worker left word of, ``WorkerLost`` or ``StageFailed``.

    ``done`` tells how far the stage is, as a number that grows.
    """
    with quiet_beam():
        import apache_beam as beam
        from apache_beam.runners.worker import sdk_worker

        from agentmill.pipelines.engine.transform import StageTransform

        # Beam has no setting for it; a name in its module goes before the builtin.
        vars(sdk_worker)["print"] = say_unless_stopped

        runner = run.runner.beam_runner(workspace.path / "workers.log", workspace.stop_file)
        with temporary_files_in(workspace.path):
            pipeline = beam.Pipeline(runner, run.runner.beam_options())
        _ = pipeline | StageTransform(run.operation, chunks, workspace)
        result = None
        watchdog = Watchdog(workspace, run.runner.stall_timeout_s, done, give_up)
        try:
            with watchdog.watching():
                result = pipeline.run()
                if run.runner.remote:
                    await_worker(result, run, workspace)
                result.wait_until_finish()
        except StageFailed:
            # From ``await_worker``, which has explained it already.
            raise
        except (Exception, KeyboardInterrupt) as error:
            # Whatever broke while the run was being interrupted broke for that reason.
            if stop.requested.is_set():
                raise KeyboardInterrupt from None
            if stop.lost:
                cancel(result)
                # The interrupt that wakes the main thread is not the user's, so it must not end the run.
                raise WorkerLost(stop.lost[0]) from None
            if isinstance(error, KeyboardInterrupt):
                raise
            raise explained(error, run, workspace) from error


def cancel(result: Any) -> None:
    """Cancel a job elsewhere, without waiting long for a service that may be gone; a local one has ended."""
    if result is not None:
        thread = threading.Thread(target=result.cancel, name="cancel", daemon=True)
        thread.start()
        thread.join(_CANCEL_S)


@contextlib.contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """Let temporary files be made in ``folder``: Beam leaves some behind where it is killed."""
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


def give_up(worker: Beat, silent_s: float) -> None:
    """End a worker that is silent, if it is on this machine, and with it the attempt."""
    # A pid of another machine would name a process of this one, and that of a process that ended may be used again.
    if worker.host == socket.gethostname() and (not worker.process or is_alive(worker.process)):
        # A worker of another user cannot be killed; that it is given up must be known all the same.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(worker.pid, signal.SIGKILL)
    chunks = ", ".join(map(str, worker.chunks[:4]))
    stop.lose(f"worker {worker.pid} on {worker.host} has been silent for {silent_s:.0f} s, with chunk {chunks}")


def say_unless_stopped(*words: object, **options: Any) -> None:
    """For Beam's workers in this process: they print what breaks, and after an interrupt their channels do."""
    if not stop.stopped.is_set():
        print(*(printable(str(word)) for word in words), **options)


def await_worker(result: Any, run: StageRun, workspace: Workspace) -> None:
    """Wait for the first worker: a pool that cannot start any says nothing. Raises ``StageFailed``."""
    from apache_beam.runners.runner import PipelineState

    until = time.monotonic() + run.runner.start_timeout_s
    while not workspace.started():
        if PipelineState.is_terminal(result.state):
            return
        if time.monotonic() > until:
            result.cancel()
            raise StageFailed(
                f"step {run.name}: no worker started within {run.runner.start_timeout_s:.0f} s\n"
                f"see that the workers of {run.runner.name} have this Python, agentmill and {run.folder}"
            )
        time.sleep(_POLL_S)


def worker_lost(run: StageRun, error: WorkerLost, attempts: int) -> StageFailed:
    """The error of a stage that lost a worker in each of its ``attempts``."""
    return StageFailed(
        f"step {run.name} failed in {attempts} attempts: {error} (-9: killed, as for want of memory)\n"
        f"what is done stays; run the same command, perhaps with fewer runner.workers than {run.runner.workers}"
    )


def explained(error: Exception, run: StageRun, workspace: Workspace) -> Exception:
    """The exception that says what went wrong, from what a worker left word of or else from ``error`` itself."""
    failure = workspace.failure()
    if failure is not None and failure.code is not None:
        return UserError(failure.text, failure.code)
    # Errors of workers arrive as text, so there is no ``errno`` to look at.
    if "no space left on" in str(error).lower():
        return UserError(
            f"no space left on the device for {run.folder}: free some and run the same command", ErrorCode.NO_SPACE
        )
    trace = failure.trace if failure else "".join(traceback.format_exception(error))
    # Where the trace cannot be written, the error is still worth its line.
    with contextlib.suppress(OSError):
        (workspace.path / "failure.txt").write_text(trace, encoding="utf-8")
    text = failure.text if failure else f"{type(error).__name__}: {' '.join(str(error).split()):.300}"
    return StageFailed(f"step {run.name} failed: {text}\nwhat is done stays; see {workspace.path / 'failure.txt'}")
