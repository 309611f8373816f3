"""Limits on how fast a model behind somebody else's endpoint is asked: what its provider allows, kept on our side.

Requests and tokens are spread evenly over the minute, since many providers count by the second. The pace is a debt
that is paid off with time (the generic cell rate algorithm, ITU-T I.371): a request may start when no debt is left,
and then adds its own. What a request costs in tokens is known only afterwards, so an estimate is charged, and settled
by what the server counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable

from pydantic import Field

from agentmill.schemas.config import Config

BUSY = (429, 502, 503, 529)
"""What a server says, or a gateway before it, that takes no request at all for now: RFC 6585, RFC 9110, and 529."""


class Limits(Config):
    """What a provider allows; the workers of a run share it evenly.

    A turn that is refused for ``patience_s`` while others are answered is dropped.
    """

    requests_per_minute: float | None = Field(default=None, gt=0, description="requests per minute; null: no limit")
    tokens_per_minute: float | None = Field(
        default=None, gt=0, description="tokens of prompts and answers per minute; null: no limit"
    )
    max_concurrent: int | None = Field(default=None, ge=1, description="requests at a time; null: no limit")
    patience_s: float = Field(
        default=600.0,
        ge=0,
        description="seconds that a provider may refuse all requests (429, 502, 503, 529) before the step stops",
    )

    def share(self, workers: int) -> Limits:
        """The part of one of ``workers`` worker processes; each may have at least one request in flight."""
        return Limits(
            requests_per_minute=self.requests_per_minute and self.requests_per_minute / workers,
            tokens_per_minute=self.tokens_per_minute and self.tokens_per_minute / workers,
            max_concurrent=self.max_concurrent and max(1, self.max_concurrent // workers),
            patience_s=self.patience_s,
        )


class Gate:
    """Lets requests start, first come, first served, as ``limits`` allow. For one event loop."""

    def __init__(self, limits: Limits) -> None:
        self._requests = Debt(limits.requests_per_minute)
        self._tokens = Debt(limits.tokens_per_minute)
        self._slots = (
            contextlib.nullcontext() if not limits.max_concurrent else asyncio.Semaphore(limits.max_concurrent)
        )
        self._turnstile = asyncio.Lock()
        self._opens_at = 0.0
        self._refused_since: float | None = None
        self._refused_s = 0.0

    @contextlib.asynccontextmanager
    async def entered(self, tokens: int) -> AsyncIterator[None]:
        """Around a request that will cost about ``tokens``; waits until it may start."""
        async with self._slots:
            # One at a time, or all who wait would find the debt paid at the same moment.
            async with self._turnstile:
                # A loop, since the gate may be shut again while one waits.
                while (left_s := self._opens_at - time.monotonic()) > 0:
                    await asyncio.sleep(left_s)
                for debt in (self._requests, self._tokens):
                    await debt.paid()
                self.charge(1, tokens)
            yield

    def charge(self, requests: int, tokens: int) -> None:
        """Add what was not foreseen: a repeated request, or the tokens by which an estimate was wrong."""
        self._requests.add(requests)
        self._tokens.add(tokens)

    def shut(self, seconds: float) -> None:
        """Let nothing start for so long, as the provider asks."""
        self._opens_at = max(self._opens_at, time.monotonic() + seconds)

    def answered(self) -> None:
        """Note that the provider has answered somebody."""
        self._refused_s, self._refused_since = self.refused_s(), None

    def refused(self, at: float) -> float:
        """Note that it refused somebody ``at`` a time of the monotonic clock; since when it has answered nobody."""
        if self._refused_since is None:
            self._refused_since = at
        return self._refused_since

    def refused_s(self) -> float:
        """For how long in all it has answered nobody, each time from its first refusal on."""
        return self._refused_s + (0.0 if self._refused_since is None else time.monotonic() - self._refused_since)


def refused_s(policies: Iterable[object]) -> float:
    """For how long in all the providers of ``policies`` have answered nobody; those without a ``gate`` have none."""
    gates: set[Gate] = {policy.gate for policy in policies if hasattr(policy, "gate")}
    return sum(gate.refused_s() for gate in gates)


class Debt:
    """An amount that is paid off at ``per_minute``; never any if that is ``None``. For one event loop."""

    def __init__(self, per_minute: float | None) -> None:
        self._unit_s = 60.0 / per_minute if per_minute else 0.0
        self._paid_at = 0.0
        self._lowered = asyncio.Event()

    def add(self, amount: int) -> None:
        """Owe more, or less; what was paid too much does not make up for what is owed later."""
        self._paid_at = max(self._paid_at, time.monotonic()) + amount * self._unit_s
        if amount < 0:
            self._lowered.set()

    async def paid(self) -> None:
        """Wait until nothing is owed."""
        while (left_s := self._paid_at - time.monotonic()) > 0:
            # Not a mere sleep: an estimate that was too high is lowered while one waits.
            self._lowered.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._lowered.wait()
