"""The most memory that this process held: of the GPU where there is one, else of the machine."""

from __future__ import annotations

import ctypes
import os
import resource
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

SAMPLE_S = 0.005

STATUS = Path("/proc/self/statm")
"""Where Linux has the number of pages in memory; other systems have the peak only."""


def peak_bytes() -> int:
    """The peak since the process began."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    # Linux counts it in KiB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def held_bytes() -> int:
    """What the process holds now."""
    if torch.cuda.is_available():
        return int(torch.cuda.memory_allocated())
    if not STATUS.exists():
        return peak_bytes()
    return int(STATUS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def release_freed() -> None:
    """Return freed memory to the system, which glibc keeps in pieces otherwise; without glibc nothing happens."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def synchronize() -> float:
    """The time, once the GPU has done all that it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.monotonic()


class PeakMemory:
    """A context: ``bytes`` is the peak within it, ``before`` what was held when it began.

    The peak of the whole process may be that of loading the model, so memory is looked at while the context lasts. On a
    GPU torch counts it, and the peak since the process began is what there is.
    """

    def __init__(self) -> None:
        self.before = self.bytes = held_bytes()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        if not torch.cuda.is_available():
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if torch.cuda.is_available():
            self.bytes = peak_bytes()
            return
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.bytes = max(self.bytes, held_bytes())
