"""A worker ends with its attempt, asks no model where its launcher is silent, and is given up if it is silent."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Never

import pytest

from agentmill.pipelines.engine import execute, liveness
from agentmill.pipelines.engine.liveness import SUPERSEDED, Beat, Watchdog
from agentmill.pipelines.engine.workspace import Workspace, write_note
from agentmill.pipelines.processes.identity import identity
from tests.pipelines.engine.line import ROOT

WORKER = """
import asyncio, os, sys
from pathlib import Path
from agentmill.pipelines.engine import liveness, stop
from agentmill.pipelines.engine.workspace import Workspace

liveness.RENEW_S, liveness.HOLD_S, liveness.FENCE_S = map(float, sys.argv[2:])
folder = Path(sys.argv[1])

async def ask() -> None:
    while True:
        with (folder / "asked").open("a") as file:
            file.write("x")
        await asyncio.sleep(0.01)

workspace = Workspace(str(folder), "attempt", "another:1:1")
loop = asyncio.new_event_loop()
with stop.running(loop):
    liveness.pulse(workspace).take(3)
    loop.run_until_complete(ask())
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = Workspace(str(tmp_path), "attempt", "")
    (made.path / "alive").mkdir(parents=True)
    made.lease.touch()
    return made


@contextmanager
def worker(folder: Path, *seconds: float, code: str = WORKER) -> Iterator[subprocess.Popen[bytes]]:
    """A worker that asks all the time, with its intervals to renew, to hold and to end in seconds."""
    command = [sys.executable, "-c", code, str(folder), *map(str, seconds)]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            while not (folder / "asked").exists():
                assert process.poll() is None
                time.sleep(0.01)
            yield process
        finally:
            process.kill()


def asked(folder: Path) -> int:
    return (folder / "asked").stat().st_size


def test_a_worker_whose_attempt_was_taken_over_ends(workspace: Workspace, tmp_path: Path) -> None:
    with worker(tmp_path, 5, 20, 60) as process:
        workspace.path.rename(tmp_path / "taken-over")
        assert process.wait(timeout=10) == SUPERSEDED


def test_a_worker_that_has_nothing_in_hand_outlives_an_attempt(workspace: Workspace, tmp_path: Path) -> None:
    code = WORKER.replace(".take(3)", ".take(3); liveness.pulse(workspace).release(3)")
    with worker(tmp_path, 5, 20, 60, code=code) as process:
        workspace.path.rename(tmp_path / "over")
        before = asked(tmp_path)
        time.sleep(2.0)  # four times as long as it takes to see
        assert process.poll() is None
        assert asked(tmp_path) > before


def test_a_worker_of_a_silent_launcher_asks_nothing_more_and_ends(workspace: Workspace, tmp_path: Path) -> None:
    with worker(tmp_path, 5, 1.0, 4.0) as process:
        time.sleep(2.0)  # twice the time after which it holds
        held = asked(tmp_path)
        time.sleep(1.0)
        assert asked(tmp_path) == held
        assert process.wait(timeout=10) == SUPERSEDED


def test_a_worker_goes_on_when_its_launcher_is_heard_of_again(workspace: Workspace, tmp_path: Path) -> None:
    with worker(tmp_path, 5, 1.0, 60.0) as process:
        time.sleep(2.0)
        held = asked(tmp_path)
        workspace.lease.touch()
        until = time.monotonic() + 10
        while asked(tmp_path) == held and time.monotonic() < until:
            time.sleep(0.05)
        assert asked(tmp_path) > held
        assert process.poll() is None


def test_a_worker_renews_what_it_says_of_itself(workspace: Workspace, tmp_path: Path) -> None:
    with worker(tmp_path, 0.2, 20, 60) as process:
        (note,) = (workspace.path / "alive").glob(f"*-{process.pid}.json")
        stamps = set()
        until = time.monotonic() + 10
        while len(stamps) < 3 and time.monotonic() < until:
            stamps.add(note.stat().st_mtime_ns)
            time.sleep(0.05)
        assert len(stamps) == 3


@pytest.mark.parametrize(
    ("chunks", "goes_on", "lost"), [([3], False, True), ([], False, False), ([3], True, False)], ids=str
)
def test_a_silent_worker_is_lost_if_it_has_work_and_nothing_else_goes_on(
    workspace: Workspace, chunks: list[int], goes_on: bool, lost: bool
) -> None:
    beat = Beat("there", 7, chunks)
    write_note(workspace.path / "alive/there-7.json", beat)
    done = iter(range(100))
    watchdog = Watchdog(workspace, 0.05, lambda: next(done) if goes_on else 0, lambda *_: None)
    assert watchdog.silent() is None
    time.sleep(0.1)
    found = watchdog.silent()
    assert (found is not None) == lost
    if found is not None:
        assert found[0] == beat
        assert found[1] > 0.05


def test_a_launcher_that_was_stopped_itself_does_not_take_that_time_for_silence(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(liveness.time, "monotonic", lambda: now)
    write_note(workspace.path / "alive/there-7.json", Beat("there", 7, [3]))
    watchdog = Watchdog(workspace, 60.0, lambda: 0, lambda *_: None)
    assert watchdog.silent() is None
    now += 3600.0
    assert watchdog.silent() is None
    for _ in range(60):
        now += 1.0
        found = watchdog.silent()
    assert found is not None
    assert found[1] == 65.0


@pytest.mark.parametrize("error", [ProcessLookupError, PermissionError])
def test_a_worker_that_cannot_be_killed_is_given_up(monkeypatch: pytest.MonkeyPatch, error: type[OSError]) -> None:
    def refuse(*_: int) -> Never:
        raise error

    lost: list[str] = []
    monkeypatch.setattr(execute.os, "kill", refuse)
    monkeypatch.setattr(execute.stop, "lose", lost.append)
    execute.give_up(Beat(socket.gethostname(), 7, [3]), 60.0)
    assert lost == [f"worker 7 on {socket.gethostname()} has been silent for 60 s, with chunk 3"]


def test_a_process_with_the_pid_of_a_worker_that_has_ended_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(execute.os, "kill", lambda pid, _: killed.append(pid))
    monkeypatch.setattr(execute.stop, "lose", lambda _: None)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        own = str(identity(process.pid))
        for known in ("", own, own + "0"):
            execute.give_up(Beat(socket.gethostname(), process.pid, [3], known), 60.0)
    assert killed == [process.pid] * 2


def test_an_interrupt_that_falls_into_a_destructor_comes_again(tmp_path: Path) -> None:
    code = """
import os, signal, sys, time
from pathlib import Path
from agentmill.pipelines.engine import stop

class Held:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

with stop.interruptible(Path(sys.argv[1]) / "stop"):
    held = Held()
    del held
    time.sleep(30)
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=False)
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert "Exception ignored" not in done.stderr
