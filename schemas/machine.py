"""What this machine has and allows: memory, and open files."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
from pathlib import Path


def machine_bytes(groups: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")) -> int:
    """Physical memory, or the least limit of the control groups that this process is in."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError):
        for line in groups.read_text().splitlines():
            number, names, path = line.split(":", 2)
            if number != "0" and "memory" not in names.split(","):
                continue
            top, name = (mounted, "memory.max") if number == "0" else (mounted / "memory", "memory.limit_in_bytes")
            inner = top / path.lstrip("/")
            for folder in (inner, *inner.parents):
                if folder.is_relative_to(top):
                    limits += _limit_in(folder / name)
    return min(limits)


def _limit_in(file: Path) -> list[int]:
    with contextlib.suppress(OSError):
        text = file.read_text().strip()
        return [int(text)] if text.isdigit() else []
    return []


OPEN_FILES = 4096


@functools.cache
def allow_open_files(wanted: int = OPEN_FILES) -> None:
    """Raise the limit that many systems set to 1,024 to ``wanted``, or to as many as a process may allow itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < possible:
        resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
