"""A run that is killed goes on where it stopped, and ends with the same tables as one that was left alone."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

from tests.pipelines.engine.line import NAMES, Line, gone, make_input
from tests.pipelines.engine.stages import bytes_of

KILLS = 20
WINDOW = 4
EPISODES = 68


def run_with_kills(line: Line, folder: Path, chance: random.Random) -> int:
    """Run the line, killing it after random times, until a run gets through. Returns the number of kills.

    The times grow, so that a slow machine gets through, too.
    """
    for kills in range(60):
        child = line.start(folder)
        time.sleep(chance.uniform(0.02, 0.6 * 1.2**kills))
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        if line.end() == 0:
            return kills
    raise AssertionError("no progress in 60 runs")


def test_kills_at_random_moments_neither_lose_nor_duplicate_a_row(
    line: Line, undisturbed: Path, tmp_path: Path
) -> None:
    chance = random.Random(20261121)
    kills = lines = 0
    while kills < KILLS:
        folder = tmp_path / f"run{lines}"
        make_input(folder)
        killed = run_with_kills(line, folder, chance)
        for name in NAMES:
            assert bytes_of(folder / name) == bytes_of(undisturbed / name), (lines, name)
        starts = Counter((folder / "log.txt").read_text().split()[2::3])
        assert len(starts) == EPISODES
        assert starts.total() <= EPISODES + killed * WINDOW, "more was repeated than was in flight"
        kills, lines = kills + killed, lines + 1


def test_a_second_run_does_nothing(line: Line, undisturbed: Path, tmp_path: Path) -> None:
    shutil.copytree(undisturbed, tmp_path, dirs_exist_ok=True)
    before = contents(tmp_path)
    line.start(tmp_path)
    assert line.end() == 0
    said = (tmp_path / "errors.txt").read_text().splitlines()[-3:]
    assert said == [
        "shouted: already done, 36 rows",
        "distinct: already done, 34 rows",
        "explored: already done, 68 rows",
    ]
    assert contents(tmp_path) == before


def test_worker_processes_end_with_a_killed_launcher_and_its_work_is_kept(
    line: Line, undisturbed: Path, tmp_path: Path
) -> None:
    for name in ("tasks", "shouted", "distinct"):
        shutil.copytree(undisturbed / name, tmp_path / name)
    child = line.start(tmp_path, "multi_processing", 2, delay_s=0.2)
    log = tmp_path / "log.txt"
    until = time.monotonic() + 60
    while not log.exists() or len(log.read_text().splitlines()) < 12:
        assert time.monotonic() < until, (tmp_path / "errors.txt").read_text()
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    assert line.end() == -signal.SIGKILL
    assert gone(f"worker_process {child} ")
    before = len(log.read_text().splitlines())
    line.start(tmp_path)
    assert line.end() == 0
    assert bytes_of(tmp_path / "explored") == bytes_of(undisturbed / "explored")
    assert len(log.read_text().splitlines()) - before < EPISODES, "nothing was taken from the journal"


def contents(folder: Path) -> dict[Path, bytes]:
    """All files of the tables in a folder."""
    return {path: path.read_bytes() for name in NAMES for path in (folder / name).rglob("*") if path.is_file()}
