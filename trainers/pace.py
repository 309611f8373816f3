"""How often a training tells where it is, and how it tells what is left: often on a terminal, seldom in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TypeVar

from agentmill.trainers.command import say

TERMINAL_S = 5.0
LOG_S = 30.0

T = TypeVar("T")


class Pace:
    """When the next line is due; ``left`` is told of the time since it was made."""

    def __init__(self) -> None:
        self._began = self._spoke = time.monotonic()

    def due(self) -> bool:
        """Whether it is time for a line; the next one then waits its turn."""
        now = time.monotonic()
        if now - self._spoke < (TERMINAL_S if sys.stderr.isatty() else LOG_S):
            return False
        self._spoke = now
        return True

    def left(self, done: int, remaining: int) -> str:
        """``", 0:02:10 left"`` if the ``remaining`` ones take as long as those ``done``; nothing at the end."""
        if not done or not remaining:
            return ""
        return f", {timedelta(seconds=round((time.monotonic() - self._began) / done * remaining))} left"


def paced(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """``items``, with a line now and then on how many of the ``total`` there have been."""
    pace = Pace()
    for number, item in enumerate(items):
        if pace.due():
            say(f"{what}: {number:,} of {total:,}{pace.left(number, total - number)}")
        yield item
