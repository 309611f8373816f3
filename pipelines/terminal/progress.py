"""How far one piece of work is: a bar that goes away on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from agentmill.pipelines.engine.progress import ProgressSnapshot, StageProgress
from agentmill.schemas.errors import printable
from agentmill.schemas.tables import Manifest

_QUIET_S = 30.0
_POLL_S = 0.5
_DUMB = ("dumb", "unknown")
"""Values of ``TERM`` of terminals on which nothing can be written over."""


class ProgressDisplay(Protocol):
    """Shows one piece of work at a time."""

    def begin(self, name: str, total: int | None, snapshot: ProgressSnapshot) -> None:
        """Work on ``total`` things, where that is known, goes on from ``snapshot``."""

    def show(self, snapshot: ProgressSnapshot) -> None:
        """How far it is now."""

    def end(self) -> None:
        """It is over, one way or another."""


class LineDisplay:
    """A line each half minute, without a control character; nothing of work that takes less."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._name = ""
        self._total: int | None = None
        self._before = ProgressSnapshot()
        self._began = self._spoke = 0.0

    def begin(self, name: str, total: int | None, snapshot: ProgressSnapshot) -> None:
        """As ``ProgressDisplay``."""
        self._name, self._total, self._before = name, total, snapshot
        self._began = self._spoke = time.monotonic()

    def show(self, snapshot: ProgressSnapshot) -> None:
        """As ``ProgressDisplay``."""
        now = time.monotonic()
        if now - self._spoke >= _QUIET_S:
            self._spoke = now
            seconds = now - self._began
            texts = [f"{snapshot.ended:,}{'' if self._total is None else f' of {self._total:,}'}"]
            texts += figures(self._before, snapshot, seconds) + time_left(self._before, snapshot, self._total, seconds)
            print(f"{self._name}: {', '.join(texts)}", file=self._stream, flush=True)

    def end(self) -> None:
        """As ``ProgressDisplay``."""


class BarDisplay:
    """A bar with an estimate of the time left."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._total: int | None = None
        self._before = ProgressSnapshot()
        self._began = 0.0

    def begin(self, name: str, total: int | None, snapshot: ProgressSnapshot) -> None:
        """As ``ProgressDisplay``."""
        self._total, self._before, self._began = total, snapshot, time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold")),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            # Where it is narrow, these wrap.
            TextColumn("{task.fields[texts]}", markup=False, table_column=Column()),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task(name, total=total, completed=snapshot.ended, texts="")
        self._bar.start()

    def show(self, snapshot: ProgressSnapshot) -> None:
        """As ``ProgressDisplay``."""
        if self._bar is not None:
            seconds = time.monotonic() - self._began
            texts = time_left(self._before, snapshot, self._total, seconds) + figures(self._before, snapshot, seconds)
            self._bar.update(self._task, completed=snapshot.ended, texts=", ".join(texts))

    def end(self) -> None:
        """As ``ProgressDisplay``."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def is_screen(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal on which lines can be written over."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in _DUMB


def screen(stream: TextIO) -> Console:
    """A console for what is drawn on a terminal: text as it is, and without any style under ``NO_COLOR``."""
    return Console(
        file=stream,
        # Of a dumb terminal, rich takes the width to be 80.
        width=None if is_screen(stream) else os.get_terminal_size(stream.fileno()).columns or None,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        markup=False,
        emoji=False,
        highlight=False,
    )


def display_for(stream: TextIO) -> ProgressDisplay:
    """A bar on a terminal, lines elsewhere."""
    return BarDisplay(screen(stream)) if is_screen(stream) else LineDisplay(stream)


@contextmanager
def displayed(name: str, total: int | None, stream: TextIO | None = None) -> Iterator[Callable[[int], None]]:
    """Tell on ``stream``, by default stderr, how far work is that may take long, if it does.

    Call what it gives with the number of things that have ended since the last call; each call is cheap.
    """
    count = _Count(name, total, display_for(stream or sys.stderr))
    try:
        yield count
    finally:
        count.display.end()


class _Count:
    """Counts what has ended, and lets a meter begin once that takes longer than a moment."""

    def __init__(self, name: str, total: int | None, display: ProgressDisplay) -> None:
        self.display = display
        self._name, self._total = name, total
        self._ended, self._begun, self._printed_at = 0, False, time.monotonic()

    def __call__(self, ended: int = 1) -> None:
        self._ended += ended
        now = time.monotonic()
        if now - self._printed_at < _POLL_S:
            return
        self._printed_at = now
        if self._begun:
            self.display.show(ProgressSnapshot(ended=self._ended))
        else:
            self._begun = True
            self.display.begin(self._name, self._total, ProgressSnapshot(ended=self._ended))


def figures(before: ProgressSnapshot, now: ProgressSnapshot, seconds: float) -> list[str]:
    """What can be shown of a stage ``seconds`` after it stood as ``before``: the figures that its measures allow."""
    measures, texts = now.measures, [f"{now.in_flight} in flight"] if now.in_flight else []
    if now.busy is not None:
        texts.append(f"servers {100 * now.busy:.0f} % busy")
    if measures.get("episodes"):
        texts.append(f"{100 * measures.get('success', 0) / measures['episodes']:.1f} % success")
    tokens = spent(measures, "completion_tokens") - spent(before.measures, "completion_tokens")
    if tokens and seconds > 0:
        texts.append(f"{tokens / seconds:,.0f} tokens/s")
    if cost := spent(measures, "cost_usd"):
        texts.append(f"{cost:,.2f} USD")
    return texts


def spent(measures: Mapping[str, float], what: str) -> float:
    """What was spent, on what was dropped, too."""
    return (cost(measures, what) or 0) + (cost(measures, f"lost_{what}") or 0)


def cost(measures: Mapping[str, float], what: str) -> float | None:
    """What was measured of a cost, of search trees that of whole trees and not only of the runs that they gave."""
    return measures.get(f"tree_{what}", measures.get(what))


def time_left(before: ProgressSnapshot, now: ProgressSnapshot, total: int | None, seconds: float) -> list[str]:
    """``["0:02:10 left"]`` if all goes on as in the ``seconds`` so far; nothing if that is not known."""
    ended = now.ended - before.ended
    if total is None or ended <= 0:
        return []
    return [f"{timedelta(seconds=round(seconds * max(0, total - now.ended) / ended))} left"]


class LineProgress:
    """Quiet lines for logs: one at the start and the end of a stage, and one each half minute between."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._display: ProgressDisplay = LineDisplay(stream)

    def started(self, name: str, total: int | None, snapshot: ProgressSnapshot) -> None:
        """As ``StageProgress``."""
        self._display.begin(name, total, snapshot)
        resumed = f", {snapshot.ended} done before" if snapshot.ended else ""
        self._print_line(f"{name}: started{'' if total is None else f', {total} inputs'}{resumed}")

    def advanced(self, name: str, snapshot: ProgressSnapshot) -> None:
        """As ``StageProgress``."""
        del name
        self._display.show(snapshot)

    def finished(self, name: str, manifest: Manifest) -> None:
        """As ``StageProgress``."""
        self._display.end()
        self._print_line(f"{name}: {summary(manifest)} in {manifest.seconds:.1f} s")

    def skipped(self, name: str, manifest: Manifest) -> None:
        """As ``StageProgress``."""
        self._print_line(f"{name}: already done, {manifest.counts.written} rows")

    def stopped(self, name: str) -> None:
        """As ``StageProgress``."""
        self._display.end()
        self._print_line(f"{name}: stopped")

    def retried(self, name: str, why: str, attempt: int) -> None:
        """As ``StageProgress``."""
        self._print_line(f"{name}: {why}; attempt {attempt}")

    def _print_line(self, line: str) -> None:
        print(printable(line), file=self._stream, flush=True)


class BarProgress(LineProgress):
    """A bar while a stage runs and a line at its end, on a terminal; ``display`` is the bar."""

    def __init__(self, stream: TextIO, display: BarDisplay) -> None:
        super().__init__(stream)
        self._display = display

    def started(self, name: str, total: int | None, snapshot: ProgressSnapshot) -> None:
        """As ``StageProgress``."""
        self._display.begin(name, total, snapshot)


def progress_for(stream: TextIO) -> StageProgress:
    """A bar on a terminal, quiet lines elsewhere."""
    return BarProgress(stream, BarDisplay(screen(stream))) if is_screen(stream) else LineProgress(stream)


def summary(manifest: Manifest) -> str:
    """``read 12, used 10, dropped 2 (unsolvable 2), written 10``."""
    counts = manifest.counts
    reasons = ", ".join(f"{reason} {n}" for reason, n in sorted(manifest.reasons.items(), key=lambda entry: -entry[1]))
    dropped = f"dropped {counts.dropped}" + (f" ({reasons})" if reasons else "")
    return f"read {counts.read}, used {counts.used}, {dropped}, written {counts.written}"
