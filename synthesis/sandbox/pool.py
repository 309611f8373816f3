"""Warm sandboxes of one process. What a session leaves behind is gone before the next one gets its sandbox."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress

from agentmill.synthesis.sandbox.backend import Backend, watch
from agentmill.synthesis.sandbox.limits import Limits, SandboxError, SandboxFull, SandboxUnavailable
from agentmill.synthesis.sandbox.memory import Budget, shared_budget
from agentmill.synthesis.sandbox.session import Session

IDLE = 8
"""Sandboxes that are kept for later."""

MOST = 256
"""Sessions that are out at a time: one for each episode that a process has in flight, and 3 GiB of memory at rest."""

WAIT_S = 120.0
"""How long one more is waited for."""

_LOOK_S = 1.0
_POLL_S = 0.1


class Pool:
    """Gives out at most ``most`` sessions at a time, and keeps up to ``idle`` that are given back. For any threads.

    Who holds a session while it takes another must take that from another pool: those who all hold one and wait for
    one more would wait in vain.
    """

    def __init__(
        self,
        backend: Backend,
        limits: Limits = Limits(),
        idle: int = IDLE,
        most: int = MOST,
        wait_s: float = WAIT_S,
        budget: Budget | None = None,
    ) -> None:
        self.limits = limits
        self._budget = shared_budget() if budget is None else budget
        self._backend = backend
        self._most_idle, self._most_out, self._wait_s = idle, most, wait_s
        self._closed = False
        self.let_go()
        watch(self)
        self._budget.lend(self)

    def let_go(self) -> None:
        """As ``Inherited.let_go``: a fork begins with an empty pool."""
        self._idle: list[Session] = []
        # Weak, so that a session that is forgotten does not take up a place for ever.
        self._out: weakref.WeakSet[Session] = weakref.WeakSet()
        self._starting = 0
        self._changed = threading.Condition()

    def take(self, wait: bool = True) -> Session:
        """A fresh session, as soon as one may be had.

        Raises ``SandboxUnavailable``; ``SandboxError`` if one does not start though others did; ``SandboxFull`` if none
        is given back in time, or without ``wait`` if none may be had now.
        """
        with self._changed:
            self._wait_for_room(self._wait_s if wait else 0.0)
            if self._idle:
                session = self._idle.pop()
                self._out.add(session)
                return session
            # Counted before it exists: starting takes place outside of the lock, and others must not take its place.
            self._starting += 1
        try:
            session = Session(self._backend, self.limits, self._budget, wait)
            with self._changed:
                self._out.add(session)
        finally:
            with self._changed:
                self._starting -= 1
                self._changed.notify()
        return session

    def give(self, session: Session) -> None:
        """Take a session back: its interpreter is killed, its files are removed, and a new interpreter is started."""
        usable = False
        try:
            with suppress(SandboxError, SandboxUnavailable):
                session.restart()
                usable = True
        finally:  # whatever was raised: its place is free
            with self._changed:
                self._out.discard(session)
                kept = usable and not self._closed and len(self._idle) < self._most_idle
                if kept:
                    self._idle.append(session)
                self._changed.notify()
            if not kept:
                session.close()

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A fresh session for a while."""
        session = self.take()
        try:
            yield session
        finally:
            self.give(session)

    @asynccontextmanager
    async def async_session(self) -> AsyncIterator[Session]:
        """As ``session``, but the event loop goes on while one is waited for, and while it is given back."""
        session = await self._async_take()
        try:
            yield session
        finally:
            # A thread of its own: those of the loop may all run code that waits for the memory of this session.
            executor = ThreadPoolExecutor(1)
            given = asyncio.get_running_loop().run_in_executor(executor, self.give, session)
            executor.shutdown(wait=False)
            await asyncio.shield(given)

    def close(self) -> None:
        """Close the idle sessions; those given back later are closed then."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
        for session in idle:
            session.close()

    def close_idle(self) -> bool:
        """As ``Lender.close_idle``."""
        with self._changed:
            session = self._idle.pop() if self._idle else None
        if session is not None:
            session.close()
        return session is not None

    async def _async_take(self) -> Session:
        latest = time.monotonic() + self._wait_s
        while True:
            try:
                return self.take(wait=False)
            except SandboxFull:
                if time.monotonic() >= latest:
                    raise
            await asyncio.sleep(min(_POLL_S, self._wait_s))

    def _wait_for_room(self, wait_s: float) -> None:
        latest = time.monotonic() + wait_s
        while len(self._out) + self._starting >= self._most_out:
            if time.monotonic() >= latest:
                raise SandboxFull(f"{self._most_out} sessions are out, and none was given back in {self._wait_s:g} s")
            self._changed.wait(min(_LOOK_S, wait_s))  # a session that is lost, not given back, sends no notice


_pools: dict[tuple[Backend, Limits, str], Pool] = {}
_lock = threading.Lock()


def shared(backend: Backend, limits: Limits, purpose: str) -> Pool:
    """The pool of this process for these limits and this purpose."""
    key = (backend, limits, purpose)
    with _lock:
        if key not in _pools:
            if not _pools:
                atexit.register(_close_all)
            _pools[key] = Pool(backend, limits)
        return _pools[key]


def _close_all() -> None:
    for pool in _pools.values():
        pool.close()


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
