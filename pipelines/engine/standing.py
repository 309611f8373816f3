"""How a stage stands while it runs, told by its workers through the journal, on every runner alike."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

TABLES = (
    "CREATE TABLE IF NOT EXISTS measured (name TEXT PRIMARY KEY, value REAL)",
    "CREATE TABLE IF NOT EXISTS flying (worker TEXT PRIMARY KEY, inputs INTEGER, at REAL)",
)
_MEASURE = "INSERT INTO measured VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value"
_FLYING = "SELECT coalesce(sum(inputs), 0) FROM flying WHERE at >= ?"


class Standing(msgspec.Struct, frozen=True, kw_only=True):
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
    worker = f"{socket.gethostname()}-{os.getpid()}-{threading.get_ident()}"
    database.execute("INSERT OR REPLACE INTO flying VALUES (?, ?, ?)", (worker, inputs, time.time()))


def standing(journal: Path, since: float) -> Standing:
    """What ``journal`` says, without disturbing those who write it; nothing if there is none.

    Workers that have said nothing ``since`` that time (seconds since the epoch) belong to a run that is gone.
    """
    if not journal.exists():
        return Standing()
    try:
        with contextlib.closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True, timeout=1.0)) as database:
            return Standing(
                ended=database.execute("SELECT count(*) FROM ended").fetchone()[0],
                in_flight=database.execute(_FLYING, (since,)).fetchone()[0],
                measures=dict(database.execute("SELECT name, value FROM measured")),
            )
    except sqlite3.Error:
        return Standing()
