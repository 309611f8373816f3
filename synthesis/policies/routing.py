"""Which endpoint an episode asks: the least loaded at its first turn, and then always the same one.

The prefix cache of that endpoint holds the turns before. An episode moves on only when its endpoint fails, or is
silent: takes requests and answers none of them.
"""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

REST_S = 5.0
"""A server that refuses at once has the fewest requests in flight; for so long it gets no new episode."""

REMEMBERED = 10_000
"""Episodes whose endpoint is known; nobody says when one ends, so the one asked about the longest ago is forgotten."""


class Router:
    """Deals the episodes of one worker process among ``endpoints``. For one event loop."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._endpoints = list(endpoints)
        self._in_flight: Counter[str] = Counter()
        self._episodes: Counter[str] = Counter()
        self._homes: OrderedDict[str, str] = OrderedDict()
        self._failed_at: dict[str, float] = {}
        self._answered_at: dict[str, float] = {}
        self._silent: set[str] = set()

    def route(self, episode_id: str, without: Collection[str] = ()) -> str:
        """The endpoint of an episode, which is its own from now on; none of ``without``, which just failed.

        Least loaded is the endpoint with the fewest requests in flight, and among equals that with the fewest episodes.
        An episode leaves a silent endpoint that rests, if there is one that does not.
        """
        home = before = None if self._homes.get(episode_id) in without else self._homes.get(episode_id)
        if home is None or (home in self._silent and self._rests(home)):
            left = [url for url in self._endpoints if url not in without]
            home = min(left, key=lambda url: (self._rests(url), url != before, *self._load(url)))
            self._settle(episode_id, home)
        # The order is that of last use, so that popitem forgets the oldest.
        self._homes.move_to_end(episode_id)
        return home

    @contextmanager
    def busy(self, endpoint: str) -> Iterator[None]:
        """Around a request; if it ends well, the endpoint has answered."""
        self._in_flight[endpoint] += 1
        try:
            yield
            self._answered_at[endpoint] = time.monotonic()
            self._silent.discard(endpoint)
        finally:
            self._in_flight[endpoint] -= 1

    def failed(self, endpoint: str) -> None:
        """Let new episodes keep away from ``endpoint`` for ``REST_S``."""
        self._failed_at[endpoint] = time.monotonic()

    def timed_out(self, episode_id: str, waited_s: float) -> None:
        """Note that an episode's endpoint let it wait for so long; one that answered nobody meanwhile has failed.

        One that answered others was slow with this one request. After its rest a silent one gets one request at a time
        until it answers, since each may be lost, and minutes with it.
        """
        home = self._homes.get(episode_id)
        if home is not None and time.monotonic() - self._answered_at.get(home, -math.inf) >= waited_s:
            self.failed(home)
            self._silent.add(home)

    def _rests(self, endpoint: str) -> bool:
        tested = endpoint in self._silent and self._in_flight[endpoint] > 0
        return tested or time.monotonic() - self._failed_at.get(endpoint, -math.inf) < REST_S

    def _load(self, endpoint: str) -> tuple[int, int]:
        return self._in_flight[endpoint], self._episodes[endpoint]

    def _settle(self, episode_id: str, endpoint: str) -> None:
        before = self._homes.pop(episode_id, None)
        if before is None and len(self._homes) == REMEMBERED:
            _, before = self._homes.popitem(last=False)
        if before is not None:
            self._episodes[before] -= 1
        self._homes[episode_id] = endpoint
        self._episodes[endpoint] += 1
