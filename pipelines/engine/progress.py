"""What is shown of a stage while it runs. Events come from the launcher; nothing here touches a worker."""

from __future__ import annotations

from typing import Protocol, TextIO

from pipelines.engine.meter import BarMeter, LineMeter, Meter, is_screen, screen
from pipelines.engine.standing import Standing
from schemas.printable import printable
from schemas.tables import Manifest


class StageProgress(Protocol):
    """Who is told of the progress of stages. Calls come from one thread at a time."""

    def started(self, name: str, total: int | None, standing: Standing) -> None:
        """Stage ``name`` starts with ``total`` inputs, where known; ``standing`` is what an earlier run has done."""

    def advanced(self, name: str, standing: Standing) -> None:
        """How the stage stands now."""

    def finished(self, name: str, manifest: Manifest) -> None:
        """The table is written."""

    def skipped(self, name: str, manifest: Manifest) -> None:
        """The table was there already."""

    def stopped(self, name: str) -> None:
        """The stage failed or was interrupted."""

    def retried(self, name: str, why: str, attempt: int) -> None:
        """The stage starts once more, for the ``attempt``-th time, with what is done."""


class LineProgress:
    """Quiet lines for logs: one at the start and the end of a stage, and one each half minute between."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._meter: Meter = LineMeter(stream)

    def started(self, name: str, total: int | None, standing: Standing) -> None:
        """As ``StageProgress``."""
        self._meter.begin(name, total, standing)
        resumed = f", {standing.ended} done before" if standing.ended else ""
        self._say(f"{name}: started{'' if total is None else f', {total} inputs'}{resumed}")

    def advanced(self, name: str, standing: Standing) -> None:
        """As ``StageProgress``."""
        del name
        self._meter.show(standing)

    def finished(self, name: str, manifest: Manifest) -> None:
        """As ``StageProgress``."""
        self._meter.end()
        self._say(f"{name}: {summary(manifest)} in {manifest.seconds:.1f} s")

    def skipped(self, name: str, manifest: Manifest) -> None:
        """As ``StageProgress``."""
        self._say(f"{name}: already done, {manifest.counts.written} rows")

    def stopped(self, name: str) -> None:
        """As ``StageProgress``."""
        self._meter.end()
        self._say(f"{name}: stopped")

    def retried(self, name: str, why: str, attempt: int) -> None:
        """As ``StageProgress``."""
        self._say(f"{name}: {why}; attempt {attempt}")

    def _say(self, line: str) -> None:
        print(printable(line), file=self._stream, flush=True)


class BarProgress(LineProgress):
    """A bar while a stage runs and a line at its end, on a terminal; ``meter`` is the bar."""

    def __init__(self, stream: TextIO, meter: BarMeter) -> None:
        super().__init__(stream)
        self._meter = meter

    def started(self, name: str, total: int | None, standing: Standing) -> None:
        """As ``StageProgress``."""
        self._meter.begin(name, total, standing)


def progress_for(stream: TextIO) -> StageProgress:
    """A bar on a terminal, quiet lines elsewhere."""
    return BarProgress(stream, BarMeter(screen(stream))) if is_screen(stream) else LineProgress(stream)


def summary(manifest: Manifest) -> str:
    """``read 12, used 10, dropped 2 (unsolvable 2), written 10``."""
    counts = manifest.counts
    reasons = ", ".join(f"{reason} {n}" for reason, n in sorted(manifest.reasons.items(), key=lambda entry: -entry[1]))
    dropped = f"dropped {counts.dropped}" + (f" ({reasons})" if reasons else "")
    return f"read {counts.read}, used {counts.used}, {dropped}, written {counts.written}"
