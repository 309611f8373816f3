"""The benchmarks fit the code that they measure: each can be imported. They are run by hand, not by the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))


def test_each_can_be_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "".join(f"import {name}\n" for name in NAMES)],
        cwd=ROOT / "benchmarks",
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'benchmarks'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert NAMES
    assert done.returncode == 0, done.stderr
