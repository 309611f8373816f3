"""Whichever process of a rollout is killed, the same command ends it, with the table of a run that was left alone.

``AGENTMILL_KILLS`` says how many are killed at random moments (``make soak`` asks for many).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentmill.pipelines.processes.identity import pid_of
from agentmill.pipelines.serving.server_process import ServerRecords
from agentmill.schemas.tables import Counts, Table
from tests.pipelines.engine.line import Line
from tests.pipelines.engine.rollouts import ATTEMPTS, EXPLORED, TASKS, make_rollout_input, timeless_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

KILLS = int(os.environ.get("AGENTMILL_KILLS", "5"))
EPISODES = TASKS * ATTEMPTS


def drivers(driver: int, _folder: Path) -> list[int]:
    return [driver]


def workers(driver: int, _folder: Path) -> list[int]:
    """The worker processes of ``driver``."""
    mark = f"worker_process\0{driver}\0".encode()
    return [int(entry.parent.name) for entry in Path("/proc").glob("[0-9]*/cmdline") if mark in read(entry)]


def servers(_driver: int, folder: Path) -> list[int]:
    """The model server and its supervisor."""
    return [pid_of(member) for record in ServerRecords(folder / "server").read() for member in record.members]


TARGETS: list[Callable[[int, Path], list[int]]] = [servers, drivers, workers]


def read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def kills(line: Line, folder: Path, chance: random.Random, targets: Iterator[Callable[[int, Path], list[int]]]) -> int:
    """Run the rollout to its end, killing one of its processes now and then. Returns how many were killed.

    The pauses grow, so that a slow machine gets through, too.
    """
    killed = 0
    for starts in range(60):
        driver = line.start(folder, "multi_processing", 2, delay_s=0.02, run="rollout")
        while alive(driver):
            time.sleep(chance.uniform(0.2, 2.0 * 1.2**starts))
            found = next(targets)(driver, folder)
            if found and alive(driver):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(found), signal.SIGKILL)
                    killed += 1
        if line.end() == 0:
            return killed
    raise AssertionError((folder / "errors.txt").read_text()[-2000:])


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_whatever_is_killed_the_table_is_the_same(line: Line, tmp_path: Path) -> None:
    calm = tmp_path / "calm"
    make_rollout_input(calm)
    line.start(calm, delay_s=0.0, run="rollout")
    assert line.end() == 0, (calm / "errors.txt").read_text()
    expected = timeless_rows(calm)
    chance, targets = random.Random(20261121), itertools.cycle(TARGETS)
    killed = runs = 0
    while killed < KILLS:
        folder = tmp_path / f"run{runs}"
        make_rollout_input(folder)
        killed += kills(line, folder, chance, targets)
        assert timeless_rows(folder) == expected
        counts = Table.open(folder / EXPLORED).manifest.counts
        assert counts == Counts(read=EPISODES, used=EPISODES, dropped=0, written=EPISODES)
        runs += 1
