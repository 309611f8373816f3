"""A client of one OpenAI-compatible server: JSON out, bytes back, repeated where the server fails for once.

It is small because it is called for every turn of hundreds of episodes at once. The pauses between tries follow
``Retry-After`` (RFC 9110, 10.2.3) or grow, with jitter. What a server refuses because it is ``BUSY`` is not repeated
here: it concerns all who ask it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from types import SimpleNamespace
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec

from agentmill.schemas.records.record import JsonObject
from agentmill.synthesis.policies.rate_limit import BUSY

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for ``url``; never one for an address of this machine."""
    address = urlsplit(url)
    # A proxy would look for the address on its own machine.
    if address.hostname in LOOPBACK or proxy_bypass(address.netloc.rpartition("@")[2]):
        return None
    return getproxies().get(address.scheme)


PASSING = (408, 409, *BUSY, *range(500, 600))
"""What a server says that may say otherwise a moment later, or of which another server knows nothing."""

CONNECT_TIMEOUT_S = 20.0
KEPT_ALIVE_S = 4.0
"""How long an idle connection is used again: vLLM closes them after 5 s, and what is sent then is lost."""

MOST_BYTES = 64 * 2**20
"""Of one answer; the longest that models give, with ids and log-probabilities of 128k tokens, have a fifth of it."""

CHUNK_BYTES = 2**16

LONGEST_RETRY_AFTER_S = 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 8.0
LAST_DOUBLING = 10
"""No pause doubles after so many tries: who waits for a day tries more often than a float can be doubled."""


class NotConnected(Exception):
    """Nobody answers at the address."""


class Cut(Exception):
    """The connection broke after the request was sent."""


class Oversized(Exception):
    """The answer is longer than ``MOST_BYTES``; the rest was not read."""

    def __init__(self) -> None:
        super().__init__(f"the answer is longer than {MOST_BYTES >> 20} MiB, which are read at most")


class Refused(Exception):
    """The server answered with another status than 2xx; ``response_text`` is the text of the answer.

    ``retry_after_s`` is for how long it does not want to be asked again, if it says so. Of a redirect,
    ``response_text`` is where it leads to: none is followed, since the key and the conversation would go along.
    """

    def __init__(self, status: int, response_text: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"HTTP {status}: {response_text[:500]}")
        self.status = status
        self.response_text = response_text
        self.retry_after_s = retry_after_s


class Client:
    """Posts to ``url``. Made anywhere, used and closed in one event loop.

    ``headers`` are sent with every request, before our own of the same name. ``on_retry()`` is called before each
    repetition. ``on_abandoned(body)`` is called when a request was sent and its response was cancelled or cut off: the
    server may have worked on it. A proxy that the environment names is not for addresses of this machine.
    """

    def __init__(
        self,
        url: str,
        key: str | None,
        max_retries: int,
        *,
        headers: Mapping[str, str] = {},
        on_retry: Callable[[], None] | None = None,
        on_abandoned: Callable[[JsonObject], None] = lambda _: None,
    ) -> None:
        self._url = url
        own = {"authorization": f"Bearer {key or 'none'}", "content-type": "application/json"}
        self._headers = {**own, **{name.lower(): value for name, value in headers.items()}}
        self._max_retries = max_retries
        self._on_retry = on_retry
        self._on_abandoned = on_abandoned
        self._session: aiohttp.ClientSession | None = None

    async def post(self, path: str, body: JsonObject, max_retries: int | None = None) -> bytes:
        """The answer to ``body``. Raises ``Cut`` or ``Refused`` after all retries, ``NotConnected`` and ``Oversized``
        at once.

        It waits for an answer without a limit; the caller sets one, and knows how long to wait for a server.
        """
        left = self._max_retries if max_retries is None else max_retries
        tried = 0
        while True:
            asked_s: float | None = None
            try:
                status, headers, answer = await self._send(path, body)
                if status < 300:
                    return answer
                asked_s = retry_after_s(headers)
                raise Refused(status, words(headers, answer), asked_s)
            except (Cut, Refused) as error:
                # What is wrong with a request stays wrong, and only what passes is worth repeating.
                if tried == left or (isinstance(error, Refused) and not _repeated_here(error.status)):
                    raise
            await asyncio.sleep(pause_s(asked_s, tried))
            tried += 1
            if self._on_retry is not None:
                self._on_retry()

    async def close(self) -> None:
        """Close all connections. Safe to call twice."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _send(self, path: str, body: JsonObject) -> tuple[int, Mapping[str, str], bytes]:
        """Send once: (status, headers, body)."""
        if self._session is None:
            self._session = self._open()
        sent = asyncio.Event()
        try:
            data, url = msgspec.json.encode(body), self._url + path
            async with self._session.post(url, data=data, allow_redirects=False, trace_request_ctx=sent) as response:
                return response.status, response.headers, await bounded(response)
        # Before ClientError, of which both are subclasses: here nothing was sent, so nothing can have been paid for.
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NotConnected(str(error)) from error
        except (asyncio.CancelledError, Oversized):
            # While the connection is still being made, nobody works on the request.
            if sent.is_set():
                self._on_abandoned(body)
            raise
        except aiohttp.ClientError as error:
            if sent.is_set():
                self._on_abandoned(body)
            raise Cut(f"{type(error).__name__}: {error}") from error

    def _open(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            # No limit of aiohttp's own: `max_concurrent` is the only one.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            headers=self._headers,
            trace_configs=[_noting_what_is_sent()],
            proxy=proxy_for(self._url),  # not by trust_env, which would read passwords from ~/.netrc as well
        )


def _noting_what_is_sent() -> aiohttp.TraceConfig:
    """Sets the event that is given with a request as soon as its headers are on their way."""

    async def note(
        session: aiohttp.ClientSession,  # noqa: ARG001
        context: SimpleNamespace,
        sent: aiohttp.TraceRequestHeadersSentParams,  # noqa: ARG001
    ) -> None:
        context.trace_request_ctx.set()

    config = aiohttp.TraceConfig()
    config.on_request_headers_sent.append(note)
    return config


async def fetched(url: str, headers: Mapping[str, str], timeout_s: float, body: JsonObject | None = None) -> bytes:
    """The body at ``url``, or the answer to ``body``, all of it within ``timeout_s``.

    Raises ``NotConnected``, ``Cut``, ``Refused``, ``Oversized``, and ``TimeoutError``.
    """
    try:
        async with (
            asyncio.timeout(timeout_s),
            aiohttp.ClientSession(headers=headers, proxy=proxy_for(url)) as session,
            session.request("GET" if body is None else "POST", url, json=body, allow_redirects=False) as response,
        ):
            answer = await bounded(response)
            if response.status >= 300:
                raise Refused(response.status, words(response.headers, answer), retry_after_s(response.headers))
            return answer
    except aiohttp.ClientConnectorError as error:
        raise NotConnected(str(error)) from error
    except (aiohttp.ClientError, ValueError) as error:
        raise Cut(f"{type(error).__name__}: {error}") from error


async def bounded(response: aiohttp.ClientResponse) -> bytes:
    """The body of an answer, read piece by piece. Raises ``Oversized``."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(CHUNK_BYTES):
        body += chunk
        if len(body) > MOST_BYTES:
            response.close()
            raise Oversized
    return bytes(body)


def words(headers: Mapping[str, str], body: bytes) -> str:
    """What an answer says: where it leads to, if it is a redirect."""
    return headers.get("location") or body.decode(errors="replace")


def pause_s(asked_s: float | None, tried: int, longest_s: float = LONGEST_RETRY_AFTER_S) -> float:
    """Seconds to wait before try ``tried + 2``: what the server asks for, if that is sensible, or else ever longer.

    All who wait would come back at once, so some wait a little more than they were asked to.
    """
    if asked_s is not None and 0 < asked_s <= longest_s:
        return asked_s * random.uniform(1.0, 1.1)
    return min(FIRST_PAUSE_S * 2.0 ** min(tried, LAST_DOUBLING), LONGEST_PAUSE_S) * random.uniform(0.75, 1.0)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """For how many seconds an answer asks not to be asked again; ``None`` if it does not say."""
    milliseconds, value = headers.get("retry-after-ms"), headers.get("retry-after", "")
    try:
        # A header of OpenAI's, finer than the whole seconds of the standard.
        return float(value) if milliseconds is None else float(milliseconds) / 1000
    except ValueError:
        pass
    try:
        return parsedate_to_datetime(value).timestamp() - time.time()
    except (ValueError, OverflowError):
        return None


def _repeated_here(status: int) -> bool:
    return status in PASSING and status not in BUSY
