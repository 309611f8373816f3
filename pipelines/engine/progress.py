"""What is shown of a stage while it runs. Events come from the launcher; nothing here touches a worker."""

from __future__ import annotations

import time
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

from schemas.tables import Manifest

_QUIET_S = 30.0


class StageProgress(Protocol):
    """Who is told of the progress of stages. Calls come from one thread at a time."""

    def started(self, name: str, total: int | None, done: int) -> None:
        """Stage ``name`` starts with ``total`` inputs, where known; ``done`` of them by an earlier run."""

    def advanced(self, name: str, done: int) -> None:
        """``done`` inputs have ended so far."""

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
        self._spoke = 0.0

    def started(self, name: str, total: int | None, done: int) -> None:
        """As ``StageProgress``."""
        self._total, self._spoke = total, time.monotonic()
        resumed = f", {done} done before" if done else ""
        self._say(f"{name}: started{'' if total is None else f', {total} inputs'}{resumed}")

    def advanced(self, name: str, done: int) -> None:
        """As ``StageProgress``."""
        if time.monotonic() - self._spoke >= _QUIET_S:
            self._spoke = time.monotonic()
            self._say(f"{name}: {done}{'' if self._total is None else f' of {self._total}'}")

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

    def _say(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class BarProgress(LineProgress):
    """A bar with an estimate of the time left, on a terminal."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._console = Console(file=stream)
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def started(self, name: str, total: int | None, done: int) -> None:
        """As ``StageProgress``."""
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task(name, total=total, completed=done)
        self._bar.start()

    def advanced(self, name: str, done: int) -> None:
        """As ``StageProgress``."""
        del name
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done)

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


def summary(manifest: Manifest) -> str:
    """``read 12, used 10, dropped 2 (unsolvable 2), written 10``."""
    counts = manifest.counts
    reasons = ", ".join(f"{reason} {n}" for reason, n in sorted(manifest.reasons.items(), key=lambda entry: -entry[1]))
    dropped = f"dropped {counts.dropped}" + (f" ({reasons})" if reasons else "")
    return f"read {counts.read}, used {counts.used}, {dropped}, written {counts.written}"
