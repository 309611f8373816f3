"""Addresses of model servers: ports, health, and which models are served there."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.synthesis.policies.http_client import Cut, NotConnected, Oversized, Refused, fetched
from agentmill.synthesis.policies.rate_limit import BUSY

HOST = "127.0.0.1"
FAILURES = (Cut, NotConnected, Oversized, Refused, TimeoutError, OSError)
"""What asking an address may end in."""

PORTS = range(20000, 30000)
"""Where free ports are looked for: below those that Linux gives to outgoing connections."""


class Endpoint(Record):
    """Where a model is served: ``base_url`` ends in ``/v1``, ``model`` is its name there."""

    base_url: str
    model: str


def free_ports(count: int) -> list[int]:
    """``count`` different ports that nobody listens on now. Raises ``UserError`` if there are not as many."""
    # At random: two runs that start at the same moment would both find the first ones free.
    free = list(itertools.islice(filter(is_free, random.sample(PORTS, len(PORTS))), count))
    if len(free) < count:
        raise UserError(
            f"no {count} free ports on {HOST} between {PORTS.start} and {PORTS.stop - 1}", ErrorCode.PORT_IN_USE
        )
    return free


def is_free(port: int) -> bool:
    """Whether a server could listen on ``port`` of this machine."""
    with socket.socket() as probe:
        # Else connections of a server that has just ended (TIME_WAIT) would keep its port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def is_healthy(base_url: str, timeout_s: float = 2.0) -> bool:
    """Whether a server of ours answers ``/health`` with 200."""
    return health_error(base_url, timeout_s) is None


def health_error(base_url: str, timeout_s: float = 2.0) -> Exception | None:
    """Why a server of ours is not healthy: ``TimeoutError`` where it takes the connection and does not answer."""
    try:
        fetch(f"{root(base_url)}/health", timeout_s)
    except FAILURES as error:
        return error
    return None


def check_endpoint(
    endpoint: Endpoint, api_key: str | None, timeout_s: float = 10.0, headers: Mapping[str, str] | None = None
) -> None:
    """See that an address given by the user answers, and serves the model.

    Raises ``UserError`` if it cannot be reached, refuses, redirects, or says that it serves other models. A server that
    has no list of models, or is too busy to show it, is believed. A model that is not in its list, which may be another
    name of one that is, is asked for one token.
    """
    url = endpoint.base_url
    own = {"authorization": f"Bearer {api_key}"} if api_key else {}
    given = {name.lower(): value for name, value in (headers or {}).items()}
    sent = {**own, **given}
    try:
        response_text = fetch(f"{url}/models", timeout_s, sent)
    except Refused as error:
        if error.status == 404 or error.status in BUSY:
            return
        if 300 <= error.status < 400:
            raise UserError(
                f"{url} redirects to {error.response_text:.200}, which is not followed: the API key would go along\n"
                "if that is the server that is meant, put its address into `endpoints`",
                ErrorCode.ENDPOINT_REDIRECTS,
            ) from error
        advice = "is the API key right?" if error.status in (401, 403) else "is the address right, and the server well?"
        raise UserError(
            f"the endpoint {url} answers HTTP {error.status}; {advice}", ErrorCode.ENDPOINT_REFUSES
        ) from error
    except FAILURES as error:
        reason = f"no whole answer within {timeout_s:g} s" if isinstance(error, TimeoutError) else error
        raise UserError(
            f"the endpoint {url} cannot be reached ({reason}); start the server or correct `endpoints`.",
            ErrorCode.ENDPOINT_UNREACHABLE,
        ) from error
    served = _model_names(response_text)
    if served and endpoint.model not in served and not _answers(endpoint, timeout_s, sent):
        known = ", ".join(sorted(served)[:8])
        hint = near_match(endpoint.model, served)
        raise UserError(
            f"the endpoint {url} does not serve {endpoint.model!r}; it has: {known}.{hint}", ErrorCode.MODEL_NOT_SERVED
        )


def _answers(endpoint: Endpoint, timeout_s: float, headers: Mapping[str, str]) -> bool:
    """Whether an endpoint answers in the name of its model; it is asked for one token.

    One that is too busy, or takes longer, as while it loads the model, is believed.
    """
    body = {"model": endpoint.model, "messages": [{"role": "user", "content": "."}]}
    for limit in ("max_tokens", "max_completion_tokens"):  # newer models of OpenAI refuse the former
        try:
            fetch(f"{endpoint.base_url}/chat/completions", timeout_s, headers, {**body, limit: 1})
        except TimeoutError:
            return True
        except FAILURES as error:
            if isinstance(error, Refused) and error.status == 400:
                continue
            return isinstance(error, Refused) and error.status in BUSY
        return True
    return False


def root(base_url: str) -> str:
    """Where a server has what is not part of the API."""
    return base_url.removesuffix("/v1")


def fetch(
    url: str, timeout_s: float, headers: Mapping[str, str] | None = None, body: JsonObject | None = None
) -> bytes:
    """What ``agentmill.synthesis.policies.http_client.fetched`` gets from ``url``. Raises one of ``FAILURES``."""
    with ThreadPoolExecutor(1) as pool:  # this thread may have an event loop of its own
        return pool.submit(asyncio.run, fetched(url, headers or {}, timeout_s, body)).result()


def _model_names(response_text: bytes) -> set[str]:
    try:
        listed: Any = json.loads(response_text)
        return {entry["id"] for entry in listed["data"] if isinstance(entry["id"], str)}
    except (ValueError, KeyError, TypeError, RecursionError):
        return set()
