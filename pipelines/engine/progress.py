"""What is shown of a stage while it runs. Events come from the launcher; nothing here touches a worker."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from pipelines.engine.standing import Standing
from schemas.tables import Manifest

_QUIET_S = 30.0


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


class LineProgress:
    """Quiet lines for logs: one at the start and the end of a stage, and one each half minute between."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._total: int | None = None
        self._before = Standing()
        self._began = self._spoke = 0.0

    def started(self, name: str, total: int | None, standing: Standing) -> None:
        """As ``StageProgress``."""
        self._begin(total, standing)
        resumed = f", {standing.ended} done before" if standing.ended else ""
        self._say(f"{name}: started{'' if total is None else f', {total} inputs'}{resumed}")

    def advanced(self, name: str, standing: Standing) -> None:
        """As ``StageProgress``."""
        if time.monotonic() - self._spoke >= _QUIET_S:
            self._spoke = time.monotonic()
            seconds = self._spoke - self._began
            told = [f"{standing.ended}{'' if self._total is None else f' of {self._total}'}"]
            told += figures(self._before, standing, seconds) + time_left(self._before, standing, self._total, seconds)
            self._say(f"{name}: {', '.join(told)}")

    def finished(self, name: str, manifest: Manifest) -> None:
        """As ``StageProgress``."""
        self._say(f"{name}: {summary(manifest)} in {manifest.seconds:.1f} s")
        if manifest.counts.used == 0:
            self._say(f"warning: {name} used none of its inputs; what follows from it has nothing to work on")

    def skipped(self, name: str, manifest: Manifest) -> None:
        """As ``StageProgress``."""
        self._say(f"{name}: already done, {manifest.counts.written} rows")

    def stopped(self, name: str) -> None:
        """As ``StageProgress``."""
        self._say(f"{name}: stopped")

    def _begin(self, total: int | None, standing: Standing) -> None:
        self._total, self._before = total, standing
        self._began = self._spoke = time.monotonic()

    def _say(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class BarProgress(LineProgress):
    """A bar with an estimate of the time left, on a terminal."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._console = Console(file=stream)
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def started(self, name: str, total: int | None, standing: Standing) -> None:
        """As ``StageProgress``."""
        self._begin(total, standing)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}", table_column=Column()),  # on a narrow terminal this one wraps
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task(name, total=total, completed=standing.ended, figures="")
        self._bar.start()

    def advanced(self, name: str, standing: Standing) -> None:
        """As ``StageProgress``."""
        del name
        if self._bar is not None and self._task is not None:
            told = figures(self._before, standing, time.monotonic() - self._began)
            self._bar.update(self._task, completed=standing.ended, figures=", ".join(told))

    def finished(self, name: str, manifest: Manifest) -> None:
        """As ``StageProgress``."""
        self._close()
        super().finished(name, manifest)

    def stopped(self, name: str) -> None:
        """As ``StageProgress``."""
        self._close()
        super().stopped(name)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def progress_for(stream: TextIO) -> StageProgress:
    """A bar on a terminal, quiet lines elsewhere."""
    return BarProgress(stream) if stream.isatty() else LineProgress(stream)


def figures(before: Standing, now: Standing, seconds: float) -> list[str]:
    """What can be told of a stage ``seconds`` after it stood as ``before``: the figures that its measures allow."""
    measures, told = now.measures, [f"{now.in_flight} in flight"] if now.in_flight else []
    if now.busy is not None:
        told.append(f"servers {100 * now.busy:.0f} % busy")
    if measures.get("episodes"):
        told.append(f"{100 * measures.get('success', 0) / measures['episodes']:.1f} % success")
    tokens = spent(measures, "completion_tokens") - spent(before.measures, "completion_tokens")
    if tokens and seconds > 0:
        told.append(f"{tokens / seconds:,.0f} tokens/s")
    if cost := spent(measures, "cost_usd"):
        told.append(f"{cost:,.2f} USD")
    return told


def spent(measures: Mapping[str, float], what: str) -> float:
    """What was spent, on what was dropped, too."""
    return measures.get(what, 0) + measures.get(f"lost_{what}", 0)


def time_left(before: Standing, now: Standing, total: int | None, seconds: float) -> list[str]:
    """``["0:02:10 left"]`` if all goes on as in the ``seconds`` so far; nothing if that cannot be told."""
    ended = now.ended - before.ended
    if total is None or not ended:
        return []
    return [f"{timedelta(seconds=round(seconds * (total - now.ended) / ended))} left"]


def summary(manifest: Manifest) -> str:
    """``read 12, used 10, dropped 2 (unsolvable 2), written 10``."""
    counts = manifest.counts
    reasons = ", ".join(f"{reason} {n}" for reason, n in sorted(manifest.reasons.items(), key=lambda entry: -entry[1]))
    dropped = f"dropped {counts.dropped}" + (f" ({reasons})" if reasons else "")
    return f"read {counts.read}, used {counts.used}, {dropped}, written {counts.written}"
