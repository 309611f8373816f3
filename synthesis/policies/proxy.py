"""The proxy of the environment, for everything that asks a model server."""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for ``url``; never one for an address of this machine."""
    address = urlsplit(url)
    if address.hostname in LOOPBACK or proxy_bypass(address.netloc.rpartition("@")[2]):
        return None
    return getproxies().get(address.scheme)
