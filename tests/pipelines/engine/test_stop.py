"""An interrupt ends a run on every runner within moments; what was done is kept, and the next run ends it."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.pipelines.engine.line import INTERRUPTED, NAMES, Line, gone
from tests.pipelines.engine.stages import bytes_of

CASES = [
    ("embedded", 1, "shouted"),
    ("multi_processing", 2, "shouted"),
    ("embedded", 1, "explored"),
    ("bundle_retry", 1, "explored"),
    ("multi_threading", 2, "explored"),
    ("multi_processing", 2, "explored"),
]


@pytest.mark.parametrize(("runner", "workers", "stage"), CASES)
def test_interrupt(line: Line, undisturbed: Path, runner: str, workers: int, stage: str, tmp_path: Path) -> None:
    for name in ("tasks", *NAMES[: NAMES.index(stage)]):
        shutil.copytree(undisturbed / name, tmp_path / name)
    errors = tmp_path / "errors.txt"
    child = line.start(tmp_path, runner, workers, delay_s=2.0 if stage == "shouted" else 0.5)
    wait_for(errors, f"{stage}: started")
    time.sleep(0.3)
    began = time.monotonic()
    os.kill(child, signal.SIGINT)
    assert line.end() == INTERRUPTED, errors.read_text()
    assert time.monotonic() - began < 8
    assert gone(f"worker_process {child} ")
    assert errors.read_text().splitlines()[-1] == f"{stage}: stopped"
    assert "Traceback" not in errors.read_text()
    assert not (tmp_path / stage / "manifest.json").exists()
    line.start(tmp_path)
    assert line.end() == 0, errors.read_text()
    assert bytes_of(tmp_path / stage) == bytes_of(undisturbed / stage)


def wait_for(file: Path, text: str) -> None:
    until = time.monotonic() + 30
    while not file.exists() or text not in file.read_text():
        assert time.monotonic() < until, text
        time.sleep(0.02)
