"""How tests are divided among processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("xdist")

TESTS = Path(__file__).resolve().parent
MODULE = """
import os
import pytest

pytestmark = {marks}

@pytest.mark.parametrize("number", range(3))
def test_it(number):
    with open({log!r}, "a") as log:
        log.write(f"{name} {{os.environ['PYTEST_XDIST_WORKER']}}\\n")
"""
MARKS = {"a": [], "b": [], "c": ["slow"], "d": [], "e": ["model"], "f": ["model"]}


def test_files_are_not_divided_and_slow_ones_come_first(tmp_path: Path) -> None:
    log = tmp_path / "log"
    shutil.copy(TESTS / "conftest.py", tmp_path / "conftest.py")
    for name, marks in MARKS.items():
        given = "[" + ", ".join(f"pytest.mark.{mark}" for mark in marks) + "]"
        (tmp_path / f"test_{name}.py").write_text(MODULE.format(marks=given, name=name, log=str(log)))
    options = ["-n", "2", "-c", str(TESTS.parent / "pyproject.toml"), "--rootdir", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", "-q", *options, str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(TESTS.parent)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout
    lines = [line.split() for line in log.read_text().splitlines()]
    workers = {name: {worker for each, worker in lines if each == name} for name in MARKS}
    assert [len(found) for found in workers.values()] == [1] * len(MARKS)
    assert workers["e"] == workers["f"]
    first = {worker: name for name, worker in reversed(lines)}
    assert set(first.values()) == {"e", "c"}
