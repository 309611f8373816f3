"""How busy model servers are: the share of the sequences they can work on at once that they do work on.

Asked of the servers themselves (``/metrics`` of vLLM, in Prometheus' text format), by who watches a stage.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Mapping

from pipelines.engine.endpoints import FAILURES, fetch, root

POLL_S = 2.0
TIMEOUT_S = 1.0
RUNNING = re.compile(rb"^vllm:num_requests_running(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)


class Gauge:
    """Servers by base URL, each with the number of its ``slots``: sequences it can work on at once."""

    def __init__(self, slots: Mapping[str, int]) -> None:
        self._slots = slots
        self._read: list[float] = []
        self._read_at = -POLL_S

    def now(self) -> float | None:
        """The share of slots that are busy, in [0, 1], asked anew every ``POLL_S``; ``None`` if no server tells."""
        if self._slots and time.monotonic() - self._read_at >= POLL_S:
            told = {url: running(url) for url in self._slots}
            busy = {url: min(count, self._slots[url]) for url, count in told.items() if count is not None}
            if busy:
                self._read.append(sum(busy.values()) / sum(self._slots[url] for url in busy))
            self._read_at = time.monotonic()
        return self._read[-1] if self._read else None

    def mean(self) -> float | None:
        """The mean of what was read."""
        return statistics.fmean(self._read) if self._read else None


def running(base_url: str) -> float | None:
    """The sequences that a server works on; ``None`` if it does not say."""
    try:
        told = RUNNING.findall(fetch(f"{root(base_url)}/metrics", TIMEOUT_S))
    except FAILURES:
        return None
    return sum(map(float, told)) if told else None
