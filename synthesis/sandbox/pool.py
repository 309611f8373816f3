"""Warm sandboxes of one process. What a session leaves behind is gone before the next one gets its sandbox."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from synthesis.sandbox.backend import Backend
from synthesis.sandbox.errors import SandboxError, SandboxUnavailable
from synthesis.sandbox.limits import Limits
from synthesis.sandbox.session import Session

IDLE = 8
"""Sandboxes that are kept for later."""


class Pool:
    """Gives out sessions, any number at a time, and keeps up to ``idle`` that are given back. For any threads."""

    def __init__(self, backend: Backend, limits: Limits = Limits(), idle: int = IDLE) -> None:
        self.limits = limits
        self._backend = backend
        self._most = idle
        self._idle: list[Session] = []
        self._lock = threading.Lock()
        self._closed = False

    def take(self) -> Session:
        """A fresh session. Raises ``SandboxUnavailable``."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return Session(self._backend, self.limits)

    def give(self, session: Session) -> None:
        """Take a session back: its interpreter is killed, its files are removed, and a new interpreter is started."""
        try:
            session.restart()
        except (SandboxError, SandboxUnavailable):
            session.close()
            return
        with self._lock:
            if not self._closed and len(self._idle) < self._most:
                self._idle.append(session)
                return
        session.close()

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A fresh session for a while."""
        session = self.take()
        try:
            yield session
        finally:
            self.give(session)

    def close(self) -> None:
        """Close the idle sessions; those given back later are closed then."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for session in idle:
            session.close()


_pools: dict[tuple[int, Backend, Limits], Pool] = {}
_lock = threading.Lock()


def shared(backend: Backend, limits: Limits) -> Pool:
    """The pool of this process for these limits."""
    key = (os.getpid(), backend, limits)
    with _lock:
        if key not in _pools:
            if not _pools:
                atexit.register(_close_all)
            _pools[key] = Pool(backend, limits)
        return _pools[key]


def _close_all() -> None:
    for (process, _, _), pool in _pools.items():
        if process == os.getpid():
            pool.close()
