"""What a figure was measured on. Every benchmark prints it first: ``print(describe("pyarrow", …))``."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def describe(*packages: str) -> str:
    """Processor, cores, memory and load, and the versions of Python and ``packages``, in two lines."""
    load = os.getloadavg()[0]
    hardware = f"{_processor()}, {len(os.sched_getaffinity(0))} cores, {_memory_gib():.0f} GiB, load {load:.1f}"
    versions = [f"{name} {_version(name)}" for name in ("agentmill", *packages)]
    return f"{hardware}\nPython {platform.python_version()}, {', '.join(versions)}"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    print(describe())
