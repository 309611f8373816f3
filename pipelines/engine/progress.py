"""How far a stage is while it runs, reported by its workers through the journal, on every runner alike."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sqlite3
import statistics
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from agentmill.pipelines.serving.endpoints import FAILURES, fetch, root
from agentmill.schemas.records.manifest import Manifest

TABLES = (
    "CREATE TABLE IF NOT EXISTS measured (name TEXT PRIMARY KEY, value REAL)",
    "CREATE TABLE IF NOT EXISTS flying (worker TEXT PRIMARY KEY, inputs INTEGER, at REAL)",
)
_MEASURE = "INSERT INTO measured VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value"
_FLYING = "SELECT coalesce(sum(inputs), 0) FROM flying WHERE at >= ?"


class ProgressSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """How many inputs have ended and are in flight, and the measures of what was used, summed.

    ``busy`` is the share of the servers' slots in use, in [0, 1], where they tell.
    """

    ended: int = 0
    in_flight: int = 0
    measures: Mapping[str, float] = {}
    busy: float | None = None


def add_measures(database: sqlite3.Connection, measures: Mapping[str, float]) -> None:
    """Add what inputs that have ended came to."""
    database.executemany(_MEASURE, list(measures.items()))


def note_flying(database: sqlite3.Connection, inputs: int) -> None:
    """Note how many inputs this worker has in flight."""
    # Workers of the threading runner share one process.
    worker = f"{socket.gethostname()}-{os.getpid()}-{threading.get_ident()}"
    database.execute("INSERT OR REPLACE INTO flying VALUES (?, ?, ?)", (worker, inputs, time.time()))


def read_only(path: Path) -> str:
    """The address by which SQLite reads a file and makes none, whatever ``#``, ``?`` or ``%`` its path has."""
    return f"{path.absolute().as_uri()}?mode=ro"


def progress_snapshot(journal: Path, since: float) -> ProgressSnapshot:
    """What ``journal`` says, without disturbing those who write it; nothing if there is none.

    Workers that have said nothing ``since`` that time (seconds since the epoch) belong to a run that is gone.
    """
    if not journal.exists():
        return ProgressSnapshot()
    try:
        with contextlib.closing(sqlite3.connect(read_only(journal), uri=True, timeout=1.0)) as database:
            return ProgressSnapshot(
                ended=database.execute("SELECT count(*) FROM ended").fetchone()[0],
                in_flight=database.execute(_FLYING, (since,)).fetchone()[0],
                measures=dict(database.execute("SELECT name, value FROM measured")),
            )
    except sqlite3.Error:
        # It may be locked, or not have all of its tables yet; the next look sees more.
        return ProgressSnapshot()


POLL_S = 2.0
TIMEOUT_S = 1.0
RUNNING = re.compile(rb"^vllm:num_requests_running(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)


class ServerLoad:
    """Servers by base URL, each with the number of its ``slots``: sequences it can work on at once."""

    def __init__(self, slots: Mapping[str, int]) -> None:
        self._slots = slots
        self._read: list[float] = []
        self._read_at = -POLL_S

    def now(self) -> float | None:
        """The share of slots that are busy, in [0, 1], asked anew every ``POLL_S``; ``None`` if no server tells."""
        if self._slots and time.monotonic() - self._read_at >= POLL_S:
            counts = {url: running(url) for url in self._slots}
            busy = {url: min(count, self._slots[url]) for url, count in counts.items() if count is not None}
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
        counts = RUNNING.findall(fetch(f"{root(base_url)}/metrics", TIMEOUT_S))
    except FAILURES:
        return None
    return sum(map(float, counts)) if counts else None


class StageProgress(Protocol):
    """What receives the progress of stages. Calls come from one thread at a time."""

    def started(self, name: str, total: int | None, snapshot: ProgressSnapshot) -> None:
        """Stage ``name`` starts with ``total`` inputs, where known; ``snapshot`` is what an earlier run has done."""

    def advanced(self, name: str, snapshot: ProgressSnapshot) -> None:
        """How far the stage is now."""

    def finished(self, name: str, manifest: Manifest) -> None:
        """The table is written."""

    def skipped(self, name: str, manifest: Manifest) -> None:
        """The table was there already."""

    def stopped(self, name: str) -> None:
        """The stage failed or was interrupted."""

    def retried(self, name: str, why: str, attempt: int) -> None:
        """The stage starts once more, for the ``attempt``-th time, with what is done."""
