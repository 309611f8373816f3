"""What a program prints under different hash seeds; code that depends on the order of a set says different things."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def printed(program: str) -> set[str]:
    """The different outputs of ``program`` under two hash seeds, which run at the same time."""
    with ThreadPoolExecutor() as both:
        return set(both.map(lambda seed: _printed(program, seed), ("1", "2")))


def _printed(program: str, seed: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
