"""A model server of known speed: OpenAI's chat completions on loopback, with slots, service times and faults.

    python -m tests.simulated.server 20001 '{"slots": 64, "token_ms": 2.5, "malformed": 0.05}'

serves as ``Behaviour`` says. ``GET /stats`` tells what was done: answers, the sum of their service times, which is the
work that it was asked for, and the requests in it now.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec
from aiohttp import web

from agentmill.pipelines.serving.endpoints import HOST, Endpoint, free_ports
from agentmill.pipelines.serving.server_process import ServerPlan, ServerRecords
from agentmill.pipelines.serving.servers import run_servers
from tests.simulated.answers import MODEL, Answer, Behaviour, answer, error, identity

ROOT = Path(__file__).parents[2]
CHAT = "/v1/chat/completions"
RETRY_AFTER_S = "0.2"
FOREVER_S = 1e6


class Stats(msgspec.Struct):
    """What a server has done since it began; ``service_s`` is the sum over the ``answers`` it gave."""

    answers: int = 0
    service_s: float = 0.0
    requests: int = 0
    faults: int = 0
    waiting: int = 0
    """Requests that it has, in a slot or before one."""


class Simulated:
    """The server as a handler of requests."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.stats = Stats()
        self._behaviour = behaviour
        self._slots = asyncio.Semaphore(behaviour.slots)
        self._seen: set[int] = set()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Any request to the server."""
        if request.path == CHAT:
            return await self._chat(msgspec.json.decode(await request.read()))
        if request.path == "/v1/models":
            return _json(200, msgspec.json.encode({"object": "list", "data": [{"id": MODEL, "object": "model"}]}))
        if request.path == "/stats":
            return _json(200, msgspec.json.encode(self.stats))
        return _json(200 if request.path == "/health" else 404, b"{}")

    async def _chat(self, request: dict[str, Any]) -> web.StreamResponse:
        self.stats.requests += 1
        self.stats.waiting += 1
        try:
            made = answer(self._behaviour, request)
            if self._strikes(made, request):
                return await self._fail(made)
            return await self.respond(made, request)
        finally:
            self.stats.waiting -= 1

    async def respond(self, made: Answer, request: dict[str, Any]) -> web.StreamResponse:
        """The answer to a request that no fault struck."""
        del request
        holds_after = self._behaviour.holds_after
        if holds_after is not None and self.stats.answers >= holds_after:
            await asyncio.sleep(FOREVER_S)
        async with self._slots:
            await asyncio.sleep(made.service_s)
        self.stats.answers += made.status == 200
        self.stats.service_s += made.service_s
        return _json(made.status, made.body)

    def _strikes(self, made: Answer, request: dict[str, Any]) -> bool:
        if made.fault is None:
            return False
        number = identity(self._behaviour, request)
        again = number in self._seen
        self._seen.add(number)
        return made.stubborn or not again

    async def _fail(self, made: Answer) -> web.StreamResponse:
        self.stats.faults += 1
        if made.fault == "malformed":
            return _json(200, made.body[: len(made.body) // 2])
        if made.fault == "busy":
            return _json(429, error("too many requests", 429), {"retry-after": RETRY_AFTER_S})
        await asyncio.sleep(FOREVER_S)
        return _json(500, error("nobody waited that long", 500))


def _json(status: int, body: bytes, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


async def serve(port: int, behaviour: Behaviour) -> None:
    """Serve on ``port`` of this machine, until killed or for ``behaviour.lifetime_s``."""
    simulated = Simulated(behaviour)
    server = web.Server(simulated.handle, handler_cancellation=True, access_log=None)
    await asyncio.get_running_loop().create_server(server, HOST, port, backlog=1024)
    print("serving", flush=True)
    await asyncio.sleep(behaviour.lifetime_s or FOREVER_S)
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def running(behaviour: Behaviour, folder: Path, restarts: int = 0) -> Iterator[Endpoint]:
    """A server in a process of its own, watched as any server of ours; its log goes into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    records = ServerRecords(folder)
    records.reap()
    with run_servers([plan(behaviour, folder)], records, start_timeout_s=60, restarts=restarts) as (endpoint,):
        yield endpoint


def plan(behaviour: Behaviour, folder: Path) -> ServerPlan:
    """A server on a free port."""
    (port,) = free_ports(1)
    told = msgspec.json.encode(behaviour).decode()
    return ServerPlan(
        command=[sys.executable, "-m", "tests.simulated.server", str(port), told],
        environment={**os.environ, "PYTHONPATH": str(ROOT)},
        port=port,
        model=MODEL,
        log=folder / "server.log",
    )


def stats_of(endpoint: Endpoint) -> Stats:
    """What the server says that it has done."""
    with urlopen(endpoint.base_url.removesuffix("/v1") + "/stats", timeout=30) as response:
        return msgspec.json.decode(response.read(), type=Stats)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=Behaviour)))
