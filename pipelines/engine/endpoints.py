"""Addresses of model servers: ports, health, and which models are served there."""

from __future__ import annotations

import itertools
import json
import random
import socket
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any

from schemas.errors import UserError, near_match
from schemas.record import Record
from synthesis.policies.limits import BUSY
from synthesis.policies.proxy import proxy_for

HOST = "127.0.0.1"
PORTS = range(20000, 30000)
"""Where free ports are looked for: below those that Linux gives to outgoing connections."""


class Endpoint(Record):
    """Where a model is served: ``base_url`` ends in ``/v1``, ``model`` is its name there."""

    base_url: str
    model: str


def free_ports(count: int) -> list[int]:
    """``count`` different ports that nobody listens on now. Raises ``UserError`` if there are not as many."""
    free = list(itertools.islice(filter(is_free, random.sample(PORTS, len(PORTS))), count))
    if len(free) < count:
        raise UserError(f"no {count} free ports on {HOST} between {PORTS.start} and {PORTS.stop - 1}")
    return free


def is_free(port: int) -> bool:
    """Whether a server could listen on ``port`` of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def is_healthy(base_url: str, timeout_s: float = 2.0) -> bool:
    """Whether a server of ours answers ``/health`` with 200."""
    try:
        fetch(f"{root(base_url)}/health", None, timeout_s)
    except (OSError, HTTPException):
        return False
    return True


def check_endpoint(
    endpoint: Endpoint, api_key: str | None, timeout_s: float = 10.0, headers: Mapping[str, str] | None = None
) -> None:
    """See that an address given by the user answers, and serves the model.

    Raises ``UserError`` if it cannot be reached, refuses, or says that it serves other models. A server that has no
    list of models, or is too busy to show it, is believed.
    """
    try:
        body = fetch(f"{endpoint.base_url}/models", api_key, timeout_s, headers)
    except urllib.error.HTTPError as error:
        if error.code == 404 or error.code in BUSY:
            return
        raise UserError(f"the endpoint {endpoint.base_url} answers HTTP {error.code}; is the API key right?") from error
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise UserError(
            f"the endpoint {endpoint.base_url} cannot be reached ({reason}); start the server or correct `endpoints`."
        ) from error
    served = _model_names(body)
    if served and endpoint.model not in served:
        known = ", ".join(sorted(served)[:8])
        hint = near_match(endpoint.model, served)
        raise UserError(f"the endpoint {endpoint.base_url} does not serve {endpoint.model!r}; it has: {known}.{hint}")


def root(base_url: str) -> str:
    """Where a server has what is not part of the API."""
    return base_url.removesuffix("/v1")


def fetch(url: str, key: str | None, timeout_s: float, headers: Mapping[str, str] | None = None) -> bytes:
    """The body at ``url``; a proxy that the environment names is passed by for addresses of this machine."""
    own = {"Authorization": f"Bearer {key}"} if key else {}
    given = {name.capitalize(): value for name, value in (headers or {}).items()}  # as urllib writes them
    request = urllib.request.Request(url, headers={**own, **given})
    proxy = proxy_for(url)
    handler = urllib.request.ProxyHandler({request.type: proxy} if proxy else {})
    with urllib.request.build_opener(handler).open(request, timeout=timeout_s) as response:
        body: bytes = response.read()
    return body


def _model_names(body: bytes) -> set[str]:
    try:
        listed: Any = json.loads(body)
        return {entry["id"] for entry in listed["data"]}
    except (ValueError, KeyError, TypeError):
        return set()
