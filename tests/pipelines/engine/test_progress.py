"""What is said while a stage runs."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from pipelines.engine.progress import BarProgress, LineProgress, progress_for
from pipelines.engine.run import run_stage
from pipelines.engine.watch import Tracker
from pipelines.engine.workspace import Workspace
from schemas.errors import UserError
from schemas.tables import Manifest
from tests.pipelines.engine.operations import Explore, Shout
from tests.pipelines.engine.stages import order, task, write_table


class Recorder:
    """Keeps the events."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def started(self, name: str, total: int | None, done: int) -> None:
        self.events.append(("started", name, total, done))

    def advanced(self, name: str, done: int) -> None:
        self.events.append(("advanced", name, done))

    def finished(self, name: str, manifest: Manifest) -> None:
        self.events.append(("finished", name, manifest.counts.read))

    def skipped(self, name: str, manifest: Manifest) -> None:
        self.events.append(("skipped", name, manifest.counts.read))

    def stopped(self, name: str) -> None:
        self.events.append(("stopped", name))


def test_events_of_a_stage(tmp_path: Path) -> None:
    table = write_table(tmp_path / "tasks", [[task(i) for i in range(12)]])
    recorder = Recorder()
    request = order(Explore(k=2, delay_s=0.3, window=8), table, tmp_path / "out")
    run_stage(request, recorder)
    run_stage(request, recorder)
    assert recorder.events[0] == ("started", "out", 24, 0)
    assert recorder.events[-2:] == [("finished", "out", 24), ("skipped", "out", 24)]
    steps = [event[2] for event in recorder.events if event[0] == "advanced"]
    assert steps == sorted(steps)
    assert any(0 < step < 24 for step in steps)


def test_a_resumed_stage_tells_what_was_done_before(tmp_path: Path) -> None:
    table = write_table(tmp_path / "tasks", [[task(i, "user" if i == 19 else "") for i in range(25)]])
    recorder = Recorder()
    request = order(Shout(), table, tmp_path / "out")
    with pytest.raises(UserError):
        run_stage(request, recorder)
    assert recorder.events[-1] == ("stopped", "out")
    with pytest.raises(UserError):
        run_stage(request, recorder)
    assert ("started", "out", 25, 16) in recorder.events
    assert Tracker(request.operation, Workspace(str(tmp_path / "out"))).done() == 16


def test_quiet_lines(tmp_path: Path) -> None:
    table = write_table(tmp_path / "tasks", [[task(0), task(1, "world")]])
    stream = io.StringIO()
    run_stage(order(Shout(), table, tmp_path / "out"), progress_for(stream))
    first, last = stream.getvalue().splitlines()
    assert first == "out: started, 2 inputs"
    assert re.fullmatch(r"out: read 2, used 1, dropped 1 \(world_error 1\), written 1 in \d+\.\d s", last)


def test_a_stage_that_used_nothing_warns(tmp_path: Path) -> None:
    table = write_table(tmp_path / "tasks", [[task(1, "world")]])
    stream = io.StringIO()
    run_stage(order(Shout(), table, tmp_path / "out"), LineProgress(stream))
    assert stream.getvalue().splitlines()[-1].startswith("warning: out used none of its inputs")


def test_a_bar_on_a_terminal(tmp_path: Path) -> None:
    table = write_table(tmp_path / "tasks", [[task(i) for i in range(8)]])
    stream = io.StringIO()
    progress = BarProgress(stream)
    progress._console = Console(file=stream, force_terminal=True, width=100)
    run_stage(order(Explore(k=1, delay_s=0.4, window=4), table, tmp_path / "out"), progress)
    assert "/8" in stream.getvalue()
    assert "out: read 8, used 8, dropped 0, written 8" in stream.getvalue()
