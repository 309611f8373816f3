"""Trouble on the way to a real model server: what the simulated server would break is broken, the rest is passed on."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from agentmill.pipelines.serving.endpoints import HOST, Endpoint, free_ports, is_healthy
from tests.simulated.answers import Answer, Behaviour
from tests.simulated.server import CHAT, Simulated

POLL_S = 0.2


class Relay(Simulated):
    """Faults as of ``behaviour``, answers of the server behind; ``gone`` is set when that one cannot be reached."""

    def __init__(self, behaviour: Behaviour, behind: Endpoint, session: aiohttp.ClientSession) -> None:
        super().__init__(behaviour)
        self.gone = asyncio.Event()
        self._root = behind.base_url.removesuffix("/v1")
        self._session = session

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Any request to the server."""
        try:
            if request.path == CHAT:
                return await super().handle(request)
            return await self._passed(request.method, request.path, None)
        except aiohttp.ClientError:
            self.gone.set()
            if request.transport is not None:
                request.transport.abort()
            raise

    async def respond(self, made: Answer, request: dict[str, Any]) -> web.StreamResponse:
        """What the server behind says."""
        return await self._passed("POST", CHAT, request)

    async def _passed(self, method: str, path: str, body: dict[str, Any] | None) -> web.StreamResponse:
        data = None if body is None else msgspec.json.encode(body)
        headers = {"content-type": "application/json"}
        async with self._session.request(method, self._root + path, data=data, headers=headers) as answered:
            said = await answered.read()
        self.stats.answers += 1
        return web.Response(status=answered.status, body=said, content_type=answered.content_type)


async def serve(port: int, behaviour: Behaviour, behind: Endpoint, ready: threading.Event, end: asyncio.Event) -> None:
    """Relay on ``port`` of this machine until ``end``; nobody listens there while nobody does behind."""
    patience = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=patience) as session:
        relay = Relay(behaviour, behind, session)
        ended = asyncio.create_task(end.wait())
        while not end.is_set():
            server = web.Server(relay.handle, handler_cancellation=True, access_log=None)
            relay.gone.clear()
            async with await asyncio.get_running_loop().create_server(server, HOST, port, backlog=1024):
                ready.set()
                gone = asyncio.create_task(relay.gone.wait())
                await asyncio.wait([gone, ended], return_when=asyncio.FIRST_COMPLETED)
                gone.cancel()
                await server.shutdown(0.1)
            while not end.is_set() and not await asyncio.to_thread(is_healthy, behind.base_url):
                await asyncio.sleep(POLL_S)


@contextlib.contextmanager
def relaying(behaviour: Behaviour, behind: Endpoint) -> Iterator[Endpoint]:
    """A relay before the server ``behind``, in a thread of this process."""
    (port,) = free_ports(1)
    loop, ready, end = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(port, behaviour, behind, ready, end),))
    thread.start()
    try:
        assert ready.wait(30), "the relay did not come up"
        yield Endpoint(base_url=f"http://{HOST}:{port}/v1", model=behind.model)
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()
