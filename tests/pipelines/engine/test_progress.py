"""What is said while a stage runs."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import apache_beam as beam
import msgspec
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from rich.console import Console

from agentmill.pipelines.engine import attempts
from agentmill.pipelines.engine import progress as utilisation
from agentmill.pipelines.engine.async_dofn import AsyncFn, counters
from agentmill.pipelines.engine.chunks import plan
from agentmill.pipelines.engine.operation import AsyncOperation, Operation
from agentmill.pipelines.engine.progress import ProgressSnapshot, ServerLoad, progress_snapshot
from agentmill.pipelines.engine.run import Tracker, conclude, run_stage
from agentmill.pipelines.engine.stage_run import StageRun
from agentmill.pipelines.engine.transform import StageTransform
from agentmill.pipelines.engine.workspace import Plan
from agentmill.pipelines.terminal import progress as meter
from agentmill.pipelines.terminal.progress import (
    BarDisplay,
    BarProgress,
    LineProgress,
    displayed,
    figures,
    progress_for,
    time_left,
)
from agentmill.schemas.errors import UserError
from agentmill.schemas.tables import Manifest
from tests.fake_openai import FakeOpenAi
from tests.pipelines.engine.operations import Distinct, Explore, Shout
from tests.pipelines.engine.stages import order, task, write_table


class Recorder:
    """Keeps the events."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def started(self, name: str, total: int | None, snapshot: ProgressSnapshot) -> None:
        self.events.append(("started", name, total, snapshot.ended))

    def advanced(self, name: str, snapshot: ProgressSnapshot) -> None:
        self.events.append(("advanced", name, snapshot.ended, snapshot))

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
    told = [event[3] for event in recorder.events if event[0] == "advanced" and 0 < event[2] < 16]
    assert {snapshot.in_flight for snapshot in told} <= set(range(1, 9))
    assert all(snapshot.measures == {"success": snapshot.ended} for snapshot in told)


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
    left = attempts.current(tmp_path / "out")
    assert left is not None
    assert Tracker(request.operation, left).snapshot() == ProgressSnapshot(ended=16)


def test_quiet_lines(tmp_path: Path) -> None:
    table = write_table(tmp_path / "tasks", [[task(0), task(1, "world")]])
    stream = io.StringIO()
    run_stage(order(Shout(), table, tmp_path / "out"), progress_for(stream))
    first, last = stream.getvalue().splitlines()
    assert first == "out: started, 2 inputs"
    assert re.fullmatch(r"out: read 2, used 1, dropped 1 \(world_error 1\), written 1 in \d+\.\d s", last)


BEFORE = ProgressSnapshot(
    ended=10, measures={"episodes": 10.0, "success": 1.0, "completion_tokens": 500.0, "cost_usd": 0.5}
)
NOW = ProgressSnapshot(
    ended=30,
    in_flight=8,
    measures={"episodes": 28.0, "success": 7.0, "completion_tokens": 12_500.0, "cost_usd": 1.25},
)


def test_figures_are_those_of_the_table_but_rates_those_of_this_run() -> None:
    assert figures(BEFORE, NOW, 10.0) == ["8 in flight", "25.0 % success", "1,200 tokens/s", "1.25 USD"]
    assert figures(ProgressSnapshot(), ProgressSnapshot(ended=3), 10.0) == []
    wasted = msgspec.structs.replace(NOW, measures={"lost_completion_tokens": 500, "lost_cost_usd": 0.5})
    assert figures(ProgressSnapshot(), wasted, 10.0) == ["8 in flight", "50 tokens/s", "0.50 USD"]
    searched = msgspec.structs.replace(
        NOW, measures={"completion_tokens": 500, "tree_completion_tokens": 2_000, "cost_usd": 0.5, "tree_cost_usd": 3.0}
    )
    assert figures(ProgressSnapshot(), searched, 10.0) == ["8 in flight", "200 tokens/s", "3.00 USD"]
    assert time_left(BEFORE, NOW, 110, 10.0) == ["0:00:40 left"]
    assert time_left(BEFORE, BEFORE, 110, 10.0) == time_left(BEFORE, NOW, None, 10.0) == []


def test_servers_say_how_busy_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utilisation, "POLL_S", 0.0)
    with FakeOpenAi([]) as one, FakeOpenAi([]) as other:
        gauge = ServerLoad({one.url: 8, other.url: 8, "http://127.0.0.1:9/v1": 8})
        one.running, other.running = 6, 2
        assert gauge.now() == 0.5
        other.running = 20
        assert gauge.now() == 14 / 16
        assert gauge.mean() == 11 / 16
    assert figures(BEFORE, msgspec.structs.replace(NOW, busy=0.5), 10.0)[1] == "servers 50 % busy"
    gone = ServerLoad({"http://127.0.0.1:9/v1": 8})
    assert (gone.now(), gone.mean(), ServerLoad({}).now()) == (None, None, None)


def test_a_line_in_between_says_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, clock = io.StringIO(), iter([0.0, 10.0, 31.0])
    monkeypatch.setattr(meter.time, "monotonic", lambda: next(clock))
    lines = LineProgress(stream)
    lines.started("out", 110, BEFORE)
    lines.advanced("out", NOW)
    lines.advanced("out", NOW)
    assert stream.getvalue().splitlines() == [
        "out: started, 110 inputs, 10 done before",
        "out: 30 of 110, 8 in flight, 25.0 % success, 387 tokens/s, 1.25 USD, 0:02:04 left",
    ]


@pytest.mark.parametrize("runs", [1, 2])
@pytest.mark.parametrize("kind", [lambda: Costly(k=1), Shout, Distinct], ids=["waiting", "computing", "unique"])
def test_the_runner_counts_what_the_manifest_says(tmp_path: Path, kind: Callable[[], Operation], runs: int) -> None:
    """Also when a second run, or a bundle that is retried, finds what the first has done."""
    tasks = [task(i, "policy" if i == 3 else "", instruction=f"do thing {i // 2}") for i in range(12)]
    table = write_table(tmp_path / "tasks", [tasks])
    request: StageRun = order(kind(), table, tmp_path / "out")
    chunks = plan([table], 5)
    workspace = attempts.begin(tmp_path / "out", Plan(provenance=request.provenance, chunks=len(chunks)))
    for _ in range(runs):
        pipeline = beam.Pipeline(FnApiRunner())
        _ = pipeline | StageTransform(request.operation, chunks, workspace)
        result = pipeline.run()
        result.wait_until_finish()
    counted = {each.key.metric.name: each.committed for each in result.metrics().query()["counters"]}
    manifest = conclude(request, chunks, workspace, 1.0)
    counts = {name: getattr(manifest.counts, name) for name in ("read", "used", "dropped", "written")}
    reasons = {f"dropped_{reason}": n for reason, n in manifest.reasons.items()}
    assert counted == {**counts, **reasons, **counters(manifest.metrics)}
    assert counted["read"] == 12
    assert counted["dropped"] > 0


def test_dollars_are_counted_in_millionths() -> None:
    assert counters({"episodes": 11.0, "cost_usd": 2.75}) == {"episodes": 11, "cost_microusd": 2_750_000}


def test_who_has_nothing_more_to_do_has_nothing_in_flight(tmp_path: Path) -> None:
    """Of several workers one may be done long before the others."""
    seen: list[int] = []
    table = write_table(tmp_path / "tasks", [[task(i) for i in range(12)]])
    request: StageRun = order(Explore(k=1, delay_s=0.6), table, tmp_path / "out")
    chunks = plan([table], 5)
    workspace = attempts.begin(tmp_path / "out", Plan(provenance=request.provenance, chunks=len(chunks)))
    assert isinstance(request.operation, AsyncOperation)
    worker = AsyncFn(request.operation, workspace)
    worker.start_bundle()
    for chunk in chunks:
        list(worker.process(chunk))
        seen.append(progress_snapshot(workspace.journal, 0.0).in_flight)
    list(worker.finish_bundle())
    worker.teardown()
    assert max(seen) > 0
    assert progress_snapshot(workspace.journal, 0.0).in_flight == 0


class Costly(Explore):
    def measures(self, output: Any) -> Mapping[str, float]:
        return {"episodes": 1, "cost_usd": 0.25}


def bar(stream: io.StringIO, width: int) -> BarDisplay:
    """A bar as on a terminal of that width."""
    return BarDisplay(Console(file=stream, force_terminal=True, width=width))


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("name", ["explored", "evaluation/held_out_environments/base_constrained/trajectories"])
def test_the_bar_fits_a_narrow_terminal(width: int, name: str) -> None:
    stream = io.StringIO()
    shown = bar(stream, width)
    shown.begin(name, 1000, ProgressSnapshot())
    shown._began -= 100
    shown.show(msgspec.structs.replace(NOW, ended=412))
    assert shown._bar is not None
    before = len(stream.getvalue())
    shown._bar.refresh()
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue()[before:]).replace("\r", "").splitlines()
    shown.end()
    assert max(map(len, lines)) <= width
    words = " ".join(" ".join(lines).split())
    assert " 412/1000 " in words
    for figure in ("left", "flight", "25.0", "tokens/s", "USD"):
        assert figure in words, words


def test_a_bar_on_a_terminal(tmp_path: Path) -> None:
    table = write_table(tmp_path / "tasks", [[task(i) for i in range(8)]])
    stream = io.StringIO()
    shown = BarProgress(stream, bar(stream, 120))
    run_stage(order(Explore(k=1, delay_s=0.4, window=4), table, tmp_path / "out"), shown)
    assert "/8" in stream.getvalue()
    assert "4 in flight" in stream.getvalue()
    assert "out: read 8, used 8, dropped 0, written 8" in stream.getvalue()


def test_long_work_is_told_now_and_then_and_short_work_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(meter.time, "monotonic", lambda: clock[0])
    stream = io.StringIO()
    with displayed("counting", 4_000, stream) as advance:
        for _ in range(20):
            clock[0] += 4.0
            advance(100)
    assert stream.getvalue().splitlines() == [
        "counting: 900 of 4,000, 0:02:04 left",
        "counting: 1,700 of 4,000, 0:01:32 left",
    ]
    short = io.StringIO()
    with displayed("counting", None, short) as advance:
        clock[0] += 0.1
        advance(100)
    assert short.getvalue() == ""


@pytest.mark.parametrize("term", ["dumb", "unknown", "xterm"])
def test_a_terminal_that_cannot_go_back_gets_lines(term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", term)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    assert isinstance(progress_for(stream), BarProgress) == (term == "xterm")
