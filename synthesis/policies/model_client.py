"""The client of a model behind an OpenAI-compatible API, at one address or at several: retries, limits and costs."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import ClassVar, Protocol, TypeVar

import msgspec

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Usage
from agentmill.synthesis.policies.completion import RESPONSE_FORMAT, Api, completed, usage_in
from agentmill.synthesis.policies.cost import Spending, tokens_of
from agentmill.synthesis.policies.http_client import PASSING, Client, Cut, NotConnected, Oversized, Refused, pause_s
from agentmill.synthesis.policies.policy import (
    ContextOverflow,
    Denied,
    OverBudget,
    PolicyError,
    PolicySettings,
    Rejected,
    Unreachable,
    api_key,
    header_values,
)
from agentmill.synthesis.policies.rate_limit import BUSY, Gate
from agentmill.synthesis.policies.routing import Router

MALFORMED_TRIES = 3
PAUSE_S = (0.5, 1.5)
REFUSED = "refused"
"""The reason of a request that the server takes for wrong: 400, 403, 422 and the like."""

NOT_OURS = (401, 402, 404)
"""What a server says of the key, the account or the model, whatever was asked."""

OVERFLOW_PHRASES = (
    "context_length_exceeded",
    "context length",
    "context size",
    "prompt is too long",
    "exceed context limit",
    "exceeds the maximum number of tokens",
    "model token limit",
    "maximum prompt length",
    "range of input length",
    "`inputs` must have less than",
    "`inputs` tokens + `max_new_tokens` must be",
)
"""What servers say of a prompt that is longer than the context, in lower case: OpenAI, vLLM and llama.cpp, then
Anthropic, Gemini, Kimi, xAI, Qwen and TGI."""


class Disconnected(PolicyError):
    """A server took the request and broke the connection."""

    def __init__(self, detail: str) -> None:
        super().__init__("disconnected", detail)


class Used(Protocol):
    """An answer, with what it cost."""

    @property
    def usage(self) -> Usage:
        """Tokens and seconds, as far as the server counts them."""


A = TypeVar("A", bound=Used)
Read = Callable[[bytes, float], A]
"""Makes an answer of what a server sent and the seconds that took. Raises ``PolicyError`` (``malformed``)."""


class ModelClient:
    """Asks a served model, by ``api``.

    An episode goes to the least loaded endpoint, stays there, and goes to another only when that one fails. The client
    repeats what fails for once (5xx, a broken connection), as ``Retry-After`` says or with growing, jittered pauses; an
    answer takes at most ``turn_timeout_s``, not counting how long ``limits`` hold it back. A server that is started
    again is waited for, up to ``patience_s``; a provider that refuses for now, up to ``limits.patience_s``.
    """

    name: str
    api: ClassVar[Api]

    def __init__(self, settings: PolicySettings) -> None:
        if not settings.endpoints or settings.model is None:
            raise UserError(
                f"policy {settings.policy!r} needs `model` and at least one address in `endpoints`.",
                ErrorCode.NEEDS_ANOTHER_KEY,
            )
        self.model: str | None = settings.name or settings.model
        self.revision = settings.revision
        self.sampling = settings.sampling
        self.spending: Spending | None = None
        self._settings = settings
        self._served = settings.model
        self._router = Router(settings.endpoints)
        self.gate = Gate(settings.limits)
        key = api_key(settings.api_key_variable)
        self._accepted_at: dict[bytes, float] = {}
        self._rejected_at: dict[bytes, float] = {}
        self._examining = asyncio.Lock()
        client = partial(
            Client,
            key=key,
            max_retries=settings.max_retries,
            headers=header_values(settings.headers),
            on_retry=self._count_retry,
            on_abandoned=self._count_abandoned,
        )
        self._clients = {url: client(self.api.base(url)) for url in settings.endpoints}
        if settings.budget is not None or settings.ledger is not None:
            entry = settings.entry or settings.name or settings.model
            self.spending = Spending(entry, settings.budget, settings.ledger, settings.step)

    async def answer(self, episode_id: str, body: JsonObject, read: Read[A]) -> tuple[A, Usage]:
        """What the model answers to ``body``, as ``read`` reads it, and its usage with the cost if prices are known.

        Raises ``ContextOverflow``, ``Unreachable``, ``Denied``, or ``PolicyError`` with the reason ``timeout``,
        ``disconnected``, ``rate_limited`` (429), ``server_error`` (5xx), ``refused`` (another 4xx), ``oversized`` or
        ``malformed``, after all retries; ``Rejected`` where the server refuses every such request, whatever the
        conversation (also for its length, as where the limit of an answer is above the context), and ``UserError``
        where the key, the account or the model is refused, and for a redirect.
        """
        expected = self.api.estimate(body)
        async with self.gate.entered(tokens_of(expected)), self._reserved(expected):
            try:
                answer = await self._patiently(episode_id, body, read)
            except (ContextOverflow, Unreachable):
                # Nothing was computed, so nothing counts against the tokens of a minute.
                self.gate.charge(0, -tokens_of(expected))
                raise
            counted = tokens_of(answer.usage)
            if counted:
                # The estimate was charged when the request started.
                self.gate.charge(0, counted - tokens_of(expected))
            self._spend(*completed(answer.usage, expected))
        if self._settings.prices is None or not counted:
            return answer, answer.usage
        return answer, msgspec.structs.replace(answer.usage, cost_usd=self._settings.prices.cost_usd(answer.usage))

    async def close(self) -> None:
        """Close all connections, and the ledger."""
        for client in self._clients.values():
            await client.close()
        if self.spending is not None:
            self.spending.close()

    @contextlib.asynccontextmanager
    async def _reserved(self, expected: Usage) -> AsyncIterator[None]:
        """Around a request that may cost ``expected``. Raises ``OverBudget`` if nothing of the budget is left."""
        if self.spending is None:
            yield
            return
        tokens, usd = tokens_of(expected), self._cost_usd(expected) or 0.0
        reason = await self.spending.reserve(tokens, usd)
        if reason is not None:
            raise OverBudget(reason)
        try:
            yield
        finally:
            self.spending.release(tokens, usd)

    def _check_budget(self) -> None:
        """Before a request is repeated that may have been paid for already."""
        reason = self.spending.exhausted() if self.spending is not None else None
        if reason is not None:
            raise OverBudget(reason)

    async def _patiently(self, episode_id: str, body: JsonObject, read: Read[A]) -> A:
        """Ask until the answer's time is over; who is being started again or refuses for now, until patience is."""
        started, timeout_s = time.monotonic(), self._settings.turn_timeout_s
        refusals: list[float] = []
        while True:
            try:
                async with asyncio.timeout(timeout_s):
                    answer = await self._ask(episode_id, body, read, started)
                self.gate.answered()
                self._accepted_at[self.api.kind_of(body)] = time.monotonic()
                return answer
            except TimeoutError as error:
                self._router.timed_out(episode_id, timeout_s)
                raise PolicyError("timeout", f"no answer within {timeout_s:g} s") from error
            except OverBudget:
                raise
            except Denied as error:
                refusals.append(time.monotonic())
                wait_s = await self._pause_s(error, refusals, body)
            except (Unreachable, Disconnected):
                if time.monotonic() - started >= self._settings.patience_s:
                    raise
                wait_s = random.uniform(*PAUSE_S)
            except PolicyError as error:
                # A refusal of this one conversation is an answer: the provider serves others.
                self.gate.answered()
                if error.reason == REFUSED or isinstance(error, ContextOverflow):
                    await self._check_others_pass(error, body, started)
                raise
            await asyncio.sleep(wait_s)
            self._check_budget()
            self.gate.charge(1, 0)

    async def _pause_s(self, error: Denied, refusals: Sequence[float], body: JsonObject) -> float:
        """For how long to wait after the ``refusals`` of a turn, given by when they came.

        Raises ``Denied`` where patience with the provider would be over by then, and ``PolicyError`` where that with
        the turn would be, others being answered: then it is what was asked that is refused, and for ever.
        """
        patience_s = self._settings.limits.patience_s
        # However long: who asks for an hour is not to be asked earlier, and patience decides whether it is waited for.
        wait_s = pause_s(error.retry_after_s, len(refusals) - 1, math.inf)
        asked_again_at = refusals[-1] + wait_s
        if asked_again_at - self.gate.refused(refusals[-1]) > patience_s:
            if error.retry_after_s is not None or await self._failure(self.api.short_request(body)) is not None:
                raise error
            self.gate.answered()
            raise PolicyError(error.reason, error.detail) from error
        if asked_again_at - refusals[0] > patience_s:
            raise PolicyError(error.reason, error.detail) from error
        if error.retry_after_s is not None:
            self.gate.shut(error.retry_after_s)
        return wait_s

    async def _check_others_pass(self, error: PolicyError, body: JsonObject, asked_at: float) -> None:
        """Raises ``Rejected`` if the server would refuse any conversation with the parameters of ``body``.

        It is asked once more with one word, unless it has answered a request of this kind since ``asked_at``, or has
        been found to refuse all. Conversations grow too long all the time, so it is asked so after ``ContextOverflow``
        only while it has never answered: a limit of answers that is too high shows at once.
        """
        kind = self.api.kind_of(body)
        since = -math.inf if isinstance(error, ContextOverflow) else asked_at
        # One probe for all: hundreds of episodes may be refused at the same moment.
        async with self._examining:
            if kind in self._accepted_at and self._accepted_at[kind] >= since:
                return
            if self._rejected_at.get(kind, -math.inf) < asked_at:
                failure = await self._failure(self.api.same_parameters(body))
                if failure is None:
                    self._accepted_at[kind] = time.monotonic()
                if failure is None or not (failure.reason == REFUSED or isinstance(failure, ContextOverflow)):
                    return
                self._rejected_at[kind] = time.monotonic()
            served = f"{self._settings.entry or self.model} at {', '.join(self._clients)}"
            ours = RESPONSE_FORMAT in body and RESPONSE_FORMAT not in self.sampling
            hint = "; if it takes no such `response_format`, set `sampling: {response_format: null}`" if ours else ""
            raise Rejected(REFUSED, f"{served} refuses every request: {error.detail}{hint}") from error

    async def _failure(self, probe: JsonObject) -> PolicyError | None:
        """Why ``probe``, a request of one word, is not answered; ``None`` if it is.

        Then it is what was asked that is refused, and for ever, such as more tokens than are allowed in a minute.
        """
        try:
            async with asyncio.timeout(self._settings.turn_timeout_s):
                await self._post("probe", probe)
        except TimeoutError:
            self._router.timed_out("probe", self._settings.turn_timeout_s)
            return PolicyError("timeout", "no answer")
        except PolicyError as error:
            return error
        self._spend(self.api.estimate(probe), True)
        return None

    async def _ask(self, episode_id: str, body: JsonObject, read: Read[A], started: float) -> A:
        """Ask until an answer can be read, at most ``MALFORMED_TRIES`` times."""
        tries = MALFORMED_TRIES
        while True:
            text = await self._post(episode_id, body)
            tries -= 1
            try:
                return read(text, time.monotonic() - started)
            except Denied:
                raise
            except PolicyError:
                usage = usage_in(text)
                self._spend(usage or self.api.estimate(body), usage is None)
                if tries == 0:
                    raise
                self._check_budget()
            self.gate.charge(1, tokens_of(self.api.estimate(body)))

    async def _post(self, episode_id: str, body: JsonObject) -> bytes:
        """The answer of the episode's own endpoint, or of another one if that fails; the last is tried patiently."""
        failed: list[str] = []
        busy: Refused | None = None
        while True:
            url = self._router.route(episode_id, failed)
            last = len(failed) + 1 == len(self._clients)
            # With others left a server gets one more try: going on elsewhere is faster than waiting.
            retries = None if last else min(1, self._settings.max_retries)
            try:
                with self._router.busy(url):
                    return await self._clients[url].post(self.api.path, body, max_retries=retries)
            except (NotConnected, Cut) as error:
                failed.append(url)
                if last:
                    raise (self._refusal(busy, failed) if busy else _broken(error, failed)) from error
            except Oversized as error:
                raise PolicyError("oversized", f"{url}: {error}") from error
            except Refused as error:
                failed.append(url)
                if error.status in BUSY:
                    # The shortest wait of all: one endpoint that is free again is enough.
                    busy = min(busy or error, error, key=lambda each: each.retry_after_s or 0.0)
                if error.status not in PASSING:
                    raise self._refusal(error, failed) from error
                if last:
                    raise self._refusal(busy or error, failed) from error
            self._router.failed(url)
            self.gate.charge(1, 0)

    def _refusal(self, error: Refused, tried: list[str]) -> PolicyError | UserError:
        return _refusal(error, tried, self.api.advice)

    def _count_retry(self) -> None:
        self._check_budget()
        self.gate.charge(1, 0)

    def _count_abandoned(self, body: JsonObject) -> None:
        """Nobody says what a request cost whose answer did not come; the provider may well count it."""
        if self.spending is not None:
            self._spend(self.api.estimate(body), True)

    def _spend(self, usage: Usage, estimated: bool) -> None:
        if self.spending is not None:
            self.spending.add(usage, self._cost_usd(usage), estimated)

    def _cost_usd(self, usage: Usage) -> float | None:
        return None if self._settings.prices is None else self._settings.prices.cost_usd(usage)


def _broken(error: NotConnected | Cut, tried: list[str]) -> PolicyError:
    detail = f"{', '.join(tried)}: {error}"
    return Unreachable(detail) if isinstance(error, NotConnected) else Disconnected(detail)


def _refusal(error: Refused, tried: list[str], advice: str) -> PolicyError | UserError:
    response_text = " ".join(error.response_text.split())[:500]
    if 300 <= error.status < 400:
        return UserError(
            f"{tried[-1]} redirects to {response_text}, which is not followed: the API key would go along\n"
            "if that is the server that is meant, put its address into `endpoints`",
            ErrorCode.ENDPOINT_REDIRECTS,
        )
    # Servers have no common code for it, only words.
    if error.status in (400, 413, 422) and any(phrase in response_text.lower() for phrase in OVERFLOW_PHRASES):
        return ContextOverflow(response_text)
    if error.status in NOT_OURS:
        elsewhere = error.status == 404 and not tried[-1].endswith("/v1")
        what = "the address (most end in /v1), the key," if elsewhere else "the key,"
        return UserError(
            f"{tried[-1]} refuses {what} the account or the model: HTTP {error.status}: {response_text}\n{advice}",
            ErrorCode.ENDPOINT_REFUSES,
        )
    reason = "server_error" if error.status >= 500 else REFUSED
    if error.status == 429:
        reason = "rate_limited"
    detail = f"HTTP {error.status}: {response_text}"
    if error.status not in BUSY:
        return PolicyError(reason, detail)
    wait = "" if error.retry_after_s is None else f"; it asks for {error.retry_after_s:,.0f} s"
    return Denied(reason, f"{', '.join(tried)} refuses for now ({detail}{wait})", error.retry_after_s)
