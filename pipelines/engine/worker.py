"""What every worker of a stage does: count, and leave word of what ended it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import apache_beam as beam
import msgspec
from apache_beam.metrics.metric import Metrics

from pipelines.engine.liveness import Pulse, pulse
from pipelines.engine.operation import Operation
from pipelines.engine.shard import ShardResult
from pipelines.engine.workspace import Failure, Workspace
from schemas.errors import UserError
from schemas.extras import missing_extra


class StageFn(beam.DoFn):
    """Base of the functions of a stage."""

    def __init__(self, operation: Operation, workspace: Workspace) -> None:
        self.operation = operation
        self.workspace = workspace
        self._pulse: Pulse | None = None

    def setup(self) -> None:
        """Report that this worker has started, and begin to give signs of life."""
        self._pulse = pulse(self.workspace)
        with suppress(OSError):
            self.workspace.report()

    def take(self, chunk: int) -> None:
        """Say that this worker works on a chunk, until its result is ``counted`` or it is ``released``."""
        if self._pulse is not None:
            self._pulse.take(chunk)

    def release(self, chunk: int) -> None:
        """Say that this worker has done a chunk."""
        if self._pulse is not None:
            self._pulse.release(chunk)

    @contextmanager
    def boundary(self) -> Iterator[None]:
        """Record what ends the stage where the launcher finds it: exceptions do not cross every runner whole."""
        try:
            yield
        except Exception as error:
            mistake = error if isinstance(error, UserError) else missing_extra(error)
            text = f"{type(error).__name__}: {error}" if mistake is None else str(mistake)
            failure = Failure(user=mistake is not None, text=text, trace=traceback.format_exc())
            with suppress(OSError, UserError):
                self.workspace.fail(failure)
            raise

    def counted(self, result: ShardResult) -> ShardResult:
        """``result``, added to the runner's own counters; one that was there before too, so that they tell the table.

        Counters of a bundle that fails are lost with it, while its results are found again when it is retried.
        """
        self.release(result.chunk.index)
        counts: dict[str, int] = msgspec.to_builtins(result.counts)
        reasons = {f"dropped_{reason}": n for reason, n in result.reasons.items()}
        for name, n in {**counts, **reasons, **counters(result.metrics)}.items():
            Metrics.counter(self.operation.name, name).inc(n)
        return result


def counters(metrics: Mapping[str, float]) -> dict[str, int]:
    """Metrics as counters, which are integers: dollars are counted in millionths, as ``cost_microusd``."""
    micro = {name.removesuffix("_usd") + "_microusd": round(1e6 * n) for name, n in metrics.items() if _is_usd(name)}
    return {**{name: round(n) for name, n in metrics.items() if not _is_usd(name)}, **micro}


def _is_usd(name: str) -> bool:
    return name.endswith("_usd")
