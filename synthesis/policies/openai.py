"""Policies that are models behind an OpenAI-compatible API, at one address or at several."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import time
from urllib.parse import urlsplit

from httpx2 import ConnectError
from openai import APIConnectionError, APIStatusError, AsyncOpenAI, DefaultAsyncHttpxClient

from schemas.errors import UserError
from schemas.record import JsonObject
from synthesis.policies.completion import read_turn, request_body
from synthesis.policies.policy import ContextOverflow, Conversation, PolicyError, Turn, Unreachable
from synthesis.policies.settings import PolicySettings, api_key

logging.getLogger("httpx2").setLevel(logging.WARNING)  # it would log a line for each of thousands of requests

PATH = "/chat/completions"
MALFORMED_TRIES = 3
PAUSE_S = (0.5, 1.5)
PASSING = (408, 409, 429, *range(500, 600))
"""What a server says that may say otherwise a moment later, or of which another server knows nothing."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")
OVERFLOW_PHRASES = ("context_length_exceeded", "maximum context length", "context length", "context size")


class Disconnected(PolicyError):
    """A server took the request and broke the connection."""

    def __init__(self, detail: str) -> None:
        super().__init__("disconnected", detail)


class OpenAiPolicy:
    """Asks a served model for each turn.

    An episode goes to one endpoint, chosen by its id, and to another only when that one fails. The client repeats what
    a server refuses for now (429, 5xx, a broken connection), as ``Retry-After`` says or with growing, jittered pauses;
    a whole turn takes at most ``turn_timeout_s``. A server that is started again is waited for, up to ``patience_s``.
    """

    name = "openai"

    def __init__(self, settings: PolicySettings) -> None:
        if not settings.endpoints or settings.model is None:
            raise UserError(f"policy {settings.policy!r} needs `model` and at least one address in `endpoints`.")
        self.model = settings.name or settings.model
        self.revision = settings.revision
        self.sampling = settings.sampling
        self._served = settings.model
        self._timeout_s = settings.turn_timeout_s
        self._patience_s = settings.patience_s
        self._clients = {url: _client(url, settings) for url in settings.endpoints}

    async def act(self, conversation: Conversation) -> Turn:
        """The model's next turn.

        Raises ``ContextOverflow``, ``Unreachable``, or ``PolicyError`` with the reason ``timeout``, ``disconnected``,
        ``rate_limited`` (429), ``server_error`` (5xx), ``refused`` (another 4xx) or ``malformed``, after all retries.
        """
        body = self.body(conversation)
        started = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await self._ask(conversation, body, started)
            except TimeoutError as error:
                raise PolicyError("timeout", f"no turn within {self._timeout_s:g} s") from error
            except (Unreachable, Disconnected):
                if time.monotonic() - started >= self._patience_s:
                    raise
            await asyncio.sleep(random.uniform(*PAUSE_S))

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.close()

    def body(self, conversation: Conversation) -> JsonObject:
        """The request for one turn. Raises ``PolicyError`` for a constrained one: the API has no words for it."""
        if conversation.choices is not None:
            raise PolicyError("unsupported", f"policy {self.name!r} cannot choose among given answers; `vllm` can")
        return request_body(conversation, self._served, self.sampling)

    async def _ask(self, conversation: Conversation, body: JsonObject, started: float) -> Turn:
        """Ask until an answer can be read, at most ``MALFORMED_TRIES`` times."""
        tries = MALFORMED_TRIES
        while True:
            text = await self._post(conversation.episode_id, body)
            tries -= 1
            try:
                return read_turn(text, conversation, time.monotonic() - started)
            except PolicyError:
                if tries == 0:
                    raise

    async def _post(self, episode_id: str, body: JsonObject) -> str:
        """The answer of the episode's own endpoint, or of the next one if that fails; the last is tried patiently."""
        *brief, last = sorted(self._clients, key=lambda url: hashlib.sha256(f"{episode_id} {url}".encode()).digest())
        for url in brief:
            try:
                return await self._clients[url].with_options(max_retries=1).post(PATH, body=body, cast_to=str)
            except APIConnectionError:
                continue
            except APIStatusError as error:
                if error.status_code not in PASSING:
                    raise _refusal(error) from error
        try:
            return await self._clients[last].post(PATH, body=body, cast_to=str)
        except APIConnectionError as error:
            detail = f"{', '.join([*brief, last])}: {error.__cause__ or error}"
            raise Unreachable(detail) if isinstance(error.__cause__, ConnectError) else Disconnected(detail) from error
        except APIStatusError as error:
            raise _refusal(error) from error


def _client(url: str, settings: PolicySettings) -> AsyncOpenAI:
    """A client for one endpoint; a proxy that the environment names is not for addresses of this machine."""
    http_client = DefaultAsyncHttpxClient(trust_env=urlsplit(url).hostname not in LOOPBACK)
    return AsyncOpenAI(
        base_url=url,
        api_key=api_key(settings.api_key_variable) or "none",
        max_retries=settings.max_retries,
        timeout=settings.turn_timeout_s,
        http_client=http_client,
    )


def _refusal(error: APIStatusError) -> PolicyError:
    said = error.response.text[:500]
    if error.status_code in (400, 413, 422) and any(phrase in said for phrase in OVERFLOW_PHRASES):
        return ContextOverflow(said)
    reason = "server_error" if error.status_code >= 500 else "refused"
    if error.status_code == 429:
        reason = "rate_limited"
    return PolicyError(reason, f"HTTP {error.status_code}: {said}")
