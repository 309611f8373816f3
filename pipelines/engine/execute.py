"""Letting Beam do a stage, and finding out what went wrong if it could not."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Sequence
from typing import Any

from pipelines.engine import stop
from pipelines.engine.chunks import Chunk
from pipelines.engine.order import StageOrder
from pipelines.engine.runner import quiet_beam
from pipelines.engine.workspace import Workspace
from schemas.errors import UserError

_POLL_S = 0.2


class StageFailed(Exception):
    """A stage could not be finished for no fault of the user; what it had done stays and is taken up again."""


def execute(order: StageOrder, chunks: Sequence[Chunk], workspace: Workspace) -> None:
    """Run the pipeline to its end. Raises what a worker left word of, or ``StageFailed``."""
    with quiet_beam():
        import apache_beam as beam
        from apache_beam.runners.worker import sdk_worker

        from pipelines.engine.transform import StageTransform

        vars(sdk_worker)["print"] = say_unless_stopped

        runner = order.runner.beam_runner(workspace.path / "workers.log", workspace.stop_file)
        pipeline = beam.Pipeline(runner, order.runner.beam_options())
        _ = pipeline | StageTransform(order.operation, chunks, workspace)
        try:
            result = pipeline.run()
            if order.runner.remote:
                await_worker(result, order, workspace)
            result.wait_until_finish()
        except StageFailed:
            raise
        except (Exception, KeyboardInterrupt) as error:
            if stop.lost:
                raise worker_lost(order) from None
            if stop.stopped.is_set():
                raise KeyboardInterrupt from None
            if isinstance(error, KeyboardInterrupt):
                raise
            raise explained(error, order, workspace) from error


def say_unless_stopped(*words: object, **options: Any) -> None:
    """For Beam's workers in this process: they print what breaks, and after an interrupt their channels do."""
    if not stop.stopped.is_set():
        print(*words, **options)


def await_worker(result: Any, order: StageOrder, workspace: Workspace) -> None:
    """Wait for the first worker: a pool that cannot start any says nothing. Raises ``StageFailed``."""
    from apache_beam.runners.runner import PipelineState

    until = time.monotonic() + order.runner.start_timeout_s
    while not workspace.started():
        if PipelineState.is_terminal(result.state):
            return
        if time.monotonic() > until:
            result.cancel()
            raise StageFailed(
                f"stage {order.name}: no worker started within {order.runner.start_timeout_s:.0f} s\n"
                f"see that the workers of {order.runner.name} have this Python, agentmill and {order.folder}"
            )
        time.sleep(_POLL_S)


def worker_lost(order: StageOrder) -> StageFailed:
    """What is said of a worker process that ended by itself."""
    return StageFailed(
        f"stage {order.name} failed: {stop.lost[0]} (-9: killed, as for want of memory)\n"
        f"what is done stays; run the same command, perhaps with fewer runner.workers than {order.runner.workers}"
    )


def explained(error: Exception, order: StageOrder, workspace: Workspace) -> Exception:
    """The exception that says what went wrong, from what a worker left word of or else from ``error`` itself."""
    failure = workspace.failure()
    if failure is not None and failure.user:
        return UserError(failure.text)
    if "no space left on" in str(error).lower():
        return UserError(f"no space left on the device for {order.folder}: free some and run the same command")
    trace = failure.trace if failure else "".join(traceback.format_exception(error))
    with contextlib.suppress(OSError):
        (workspace.path / "failure.txt").write_text(trace, encoding="utf-8")
    text = failure.text if failure else f"{type(error).__name__}: {' '.join(str(error).split()):.300}"
    return StageFailed(f"stage {order.name} failed: {text}\nwhat is done stays; see {workspace.path / 'failure.txt'}")
