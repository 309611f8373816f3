"""Memory of all sandboxes of a process together: it is reserved before code runs, so that no sum exceeds it.

A session whose code runs has its full limit reserved. One that rests keeps that only until another needs memory: then
the kernel's limit on its interpreter is lowered to what it holds, which is all that stays reserved, and raised again
before its next call. So far more sessions can be open than could all take their limit, and a call that finds no room
waits. Address space is what is counted: resident memory is never more.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import resource
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from pydantic import ByteSize, TypeAdapter, ValidationError

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.machine import machine_bytes
from agentmill.synthesis.sandbox.backend import watch
from agentmill.synthesis.sandbox.limits import MIB, Limits, SandboxFull

logger = logging.getLogger(__name__)

VARIABLE = "AGENTMILL_SANDBOX_MEMORY"
"""The environment variable with the memory of all sandboxes of a run on this machine, such as ``8GiB``."""
PROCESSES = "AGENTMILL_SANDBOX_PROCESSES"
"""How many processes share it: a run sets this for its workers."""
DEFAULT_SHARE = 0.5
"""Of the machine's memory, or of the control group's limit where that is less."""
WAIT_S = 120.0

KEEPER_BYTES = 24 * MIB
"""A keeper and what isolates it."""
FRESH_BYTES = 32 * MIB
"""An interpreter that no foreign code has run in."""
SLACK_BYTES = 4 * MIB
"""What an interpreter that rests may still take: it finishes its answer and reads the next request."""
_PAGE_BYTES = resource.getpagesize()
_LOOK_S = 0.1


class Lender(Protocol):
    """Keeps sandboxes for later, and can do without."""

    def close_idle(self) -> bool:
        """Close one sandbox that nobody uses. Returns whether there was one."""


class Account:
    """What is reserved for one sandbox. ``keeper`` is the process whose only child is the interpreter."""

    def __init__(self, limits: Limits) -> None:
        self.at_rest = KEEPER_BYTES + limits.files_bytes + min(FRESH_BYTES, limits.memory_bytes)
        self.full = KEEPER_BYTES + limits.files_bytes + limits.memory_bytes
        self.reserved = 0
        self.keeper: int | None = None
        self.calls = 0
        """Calls that run now; more than one where a call makes another."""
        self._limit = limits.memory_bytes
        self._narrow = False

    def narrow(self) -> int:
        """Lower the interpreter's limit to what it holds. Returns what has to stay reserved."""
        try:
            pid = self._interpreter()
            if pid is None:
                return self.at_rest
            allowed = min(_address_space(pid) + SLACK_BYTES, self._limit)
            resource.prlimit(pid, resource.RLIMIT_AS, (allowed, self._limit))
            self._narrow = True
            held = max(allowed, _address_space(pid))  # what was taken before the limit came down is more
        except (OSError, ValueError):
            return self.reserved
        return self.full - self._limit + min(held, self._limit)

    def widen(self) -> None:
        """Give the interpreter its limit back."""
        if self._narrow:
            self._narrow = False
            with contextlib.suppress(OSError):
                if (pid := self._interpreter()) is not None:
                    resource.prlimit(pid, resource.RLIMIT_AS, (self._limit, self._limit))

    def renew(self) -> None:
        """The interpreter is a fresh one, with the full limit."""
        self._narrow = False

    def _interpreter(self) -> int | None:
        """Its number on the host, ``None`` if it has ended. Raises ``OSError`` where the kernel does not tell."""
        children = Path(f"/proc/{self.keeper}/task/{self.keeper}/children").read_text().split()
        return int(children[0]) if children else None


class Budget:
    """At most ``total_bytes`` for all sandboxes that are opened with it. For any threads."""

    def __init__(self, total_bytes: int, wait_s: float = WAIT_S) -> None:
        self.total_bytes = total_bytes
        self._wait_s = wait_s
        self._lenders: weakref.WeakSet[Lender] = weakref.WeakSet()
        self.let_go()
        watch(self)

    def let_go(self) -> None:
        """As ``Inherited.let_go``: a fork begins with no sandboxes."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._free = self.total_bytes
        self._open: set[Account] = set()
        self._resting: dict[Account, None] = {}
        """Accounts with more reserved than at rest, those that rest longest first."""
        self._waiting = 0
        self._warned = False

    @property
    def reserved_bytes(self) -> int:
        """What is reserved now."""
        return self.total_bytes - self._free

    def lend(self, lender: Lender) -> None:
        """Ask ``lender`` for its idle sandboxes when memory is short."""
        self._lenders.add(lender)

    def open(self, limits: Limits, wait: bool = True) -> Account:
        """An account for a new sandbox. Raises ``SandboxFull`` if no room comes free in time, or without ``wait`` if
        there is none now; ``UserError`` if there never is."""
        account = Account(limits)
        self._fits([account])
        self._reserve([account], account.at_rest, self._wait_s if wait else 0.0)
        return account

    def close(self, account: Account) -> None:
        """Its sandbox has ended. May be called twice."""
        with self._lock:
            if account in self._open:
                self._open.discard(account)
                self._resting.pop(account, None)
                self._set(account, 0)

    def renew(self, account: Account) -> None:
        """Its interpreter was replaced by a fresh one."""
        with self._lock:
            account.renew()
            if account in self._open:
                self._resting.pop(account, None)
                self._set(account, min(account.reserved, account.at_rest))

    @contextlib.contextmanager
    def running(self, accounts: Sequence[Account]) -> Iterator[None]:
        """The full limit of all ``accounts``, at once, while code runs in them. Raises as ``open``."""
        self.enter(accounts)
        try:
            yield
        finally:
            self.leave(accounts)

    def enter(self, accounts: Sequence[Account]) -> None:
        """The beginning of ``running``; ``leave`` has to follow, unless this raises."""
        enough = True
        with self._lock:
            for account in accounts:
                account.calls += 1
                self._resting.pop(account, None)
                # The common case: nothing was taken away since the last call.
                enough = enough and account.reserved >= account.full
        if not enough:
            try:
                self._fits(accounts)
                self._reserve(accounts, None, self._wait_s)
            except BaseException:
                self.leave(accounts)
                raise

    def leave(self, accounts: Sequence[Account]) -> None:
        """The end of ``running``."""
        with self._lock:
            for account in accounts:
                account.calls -= 1
                if not account.calls and account in self._open:
                    self._resting[account] = None
            if self._waiting:
                self._changed.notify_all()

    def _reserve(self, accounts: Sequence[Account], least: int | None, wait_s: float) -> None:
        """Wait until each of ``accounts`` can have ``least`` bytes, or its full limit."""
        latest = time.monotonic() + wait_s
        with self._lock:
            self._waiting += 1
        try:
            while not self._reserved(accounts, least):
                # Outside of the lock, which other sessions need: to close a sandbox takes time.
                if self._close_idle():
                    continue
                self._warn()
                with self._lock:
                    if time.monotonic() >= latest:
                        raise SandboxFull(self._full())
                    # Not only until it is notified: a pool does not say when a session becomes idle.
                    self._changed.wait(min(_LOOK_S, wait_s))
        finally:
            with self._lock:
                self._waiting -= 1

    def _reserved(self, accounts: Sequence[Account], least: int | None) -> bool:
        """Whether there was room, perhaps by taking from those that rest."""
        with self._lock:
            wanted = {account: account.full if least is None else least for account in accounts}
            # All accounts at once: two calls that each hold one and wait for another would wait for ever.
            need = sum(most - account.reserved for account, most in wanted.items())
            while self._free < need and self._resting:
                resting = next(iter(self._resting))
                del self._resting[resting]
                self._set(resting, min(resting.reserved, resting.narrow()))
            if self._free < need:
                return False
            for account, most in wanted.items():
                self._open.add(account)
                self._set(account, most)
                account.widen()
            return True

    def _set(self, account: Account, reserved: int) -> None:
        self._free += account.reserved - reserved
        account.reserved = reserved
        if self._waiting:
            self._changed.notify_all()

    def _close_idle(self) -> bool:
        return any(lender.close_idle() for lender in list(self._lenders))

    def _fits(self, accounts: Sequence[Account]) -> None:
        need = sum(account.full for account in accounts)
        if need > self.total_bytes:
            raise UserError(
                f"sandboxes of this process may take {_shown(self.total_bytes)} together, but one episode needs "
                f"{_shown(need)}\nset {VARIABLE} to more, for all worker processes together, or use fewer workers",
                ErrorCode.MEMORY_TOO_SMALL,
            )

    def _full(self) -> str:
        return (
            f"no memory for code in a sandbox became free in {self._wait_s:g} s: those of this process hold "
            f"{_shown(self.reserved_bytes)} of {_shown(self.total_bytes)}; set {VARIABLE} to more, or have fewer "
            "episodes in flight"
        )

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "code in sandboxes waits for memory: all %s that they may take together are reserved (%s)",
                _shown(self.total_bytes),
                VARIABLE,
            )


@functools.cache
def shared_budget() -> Budget:
    """The budget of this process. Raises ``UserError`` for a setting that is no size."""
    return Budget(total_from(os.environ.get(VARIABLE), os.environ.get(PROCESSES)))


def total_from(memory: str | None, processes: str | None) -> int:
    """Bytes that this process may use, by the values of ``VARIABLE`` and ``PROCESSES``. Raises ``UserError``."""
    share = int(processes) if processes and processes.isdigit() else 1
    if not memory:
        return int(DEFAULT_SHARE * machine_bytes()) // max(share, 1)
    try:
        total = int(TypeAdapter(ByteSize).validate_python(memory))
    except ValidationError:
        total = 0
    if total <= 0:
        raise UserError(
            f"{VARIABLE} is {memory!r}; expected a size above 0\nwrite it like 8GiB, 512MiB or as bytes",
            ErrorCode.VALUE_MALFORMED,
        )
    return total // max(share, 1)


def _address_space(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * _PAGE_BYTES


def _shown(size: int) -> str:
    return f"{size / MIB:,.0f} MiB"
