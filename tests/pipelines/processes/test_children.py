"""Trainings as child processes: what they refuse keeps its code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agentmill.pipelines.processes.children import run_module
from agentmill.pipelines.processes.identity import identity
from agentmill.pipelines.processes.supervise import supervised
from tests.errors import user_error


def test_a_mistake_that_a_child_finds_keeps_its_code(tmp_path: Path) -> None:
    with user_error("not-an-adapter", "python -m agentmill.trainers.merge", tmp_path):
        run_module("agentmill.trainers.merge", [str(tmp_path), "--out", str(tmp_path / "out")])


def test_arguments_that_a_child_does_not_know_have_a_code(tmp_path: Path) -> None:
    with user_error("training-refused", "--no-such-option"):
        run_module("agentmill.trainers.merge", [str(tmp_path), "--no-such-option"])


DETACHED = "subprocess.Popen(['sleep', '77'], start_new_session=True, stdout=subprocess.DEVNULL).pid"


@pytest.mark.parametrize("stopped", [True, False])
def test_what_a_stopped_command_has_detached_ends_with_it(stopped: bool, tmp_path: Path) -> None:
    wait = "; time.sleep(60)" if stopped else ""
    command = [sys.executable, "-c", f"import subprocess, time; print({DETACHED}, flush=True){wait}"]
    process = subprocess.Popen(supervised(command, str(tmp_path / "t")), stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    with process.stdout:
        pid = int(process.stdout.readline())
    try:
        assert identity(pid)
        if stopped:
            process.terminate()
        assert process.wait(30) == 0
        assert (identity(pid) is None) is stopped
    finally:
        subprocess.run(["kill", "-9", str(pid)], check=False, capture_output=True)
