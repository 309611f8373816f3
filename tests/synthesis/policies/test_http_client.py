"""The client repeats what may pass, pauses as it is told, and says apart what stays."""

from __future__ import annotations

import asyncio
import socket
import time
from email.utils import formatdate

import pytest

from agentmill.synthesis.policies.http_client import Client, Cut, NotConnected, Refused, pause_s, retry_after_s
from tests import fake_openai as fake
from tests.fake_openai import FakeOpenAi, Reply

QUICK = {"retry-after-ms": "1"}


async def posted(client: Client) -> bytes:
    try:
        return await client.post("/chat/completions", {"messages": []})
    finally:
        await client.close()


async def test_repetitions_are_told_and_counted() -> None:
    told: list[int] = []
    with FakeOpenAi([fake.status(500, QUICK), fake.status(504, QUICK), fake.text("a")]) as server:
        client = Client(server.url, None, max_retries=2, on_retry=lambda: told.append(len(server.requests)))
        answer = await posted(client)
    assert b'"content": "a"' in answer
    assert told == [1, 2]


@pytest.mark.parametrize(
    ("reply", "error", "requests"),
    [
        (fake.status(500, QUICK, "overloaded"), Refused, 3),
        (fake.status(400, QUICK), Refused, 1),
        (fake.status(404, QUICK), Refused, 1),
        (fake.status(429, QUICK), Refused, 1),
        (fake.status(503, QUICK), Refused, 1),
    ],
)
async def test_only_what_may_pass_is_repeated(reply: Reply, error: type[Exception], requests: int) -> None:
    with FakeOpenAi([reply]) as server, pytest.raises(error, match=f"HTTP {reply.status}: .*no|overloaded"):
        await posted(Client(server.url, None, max_retries=2))
    assert len(server.requests) == requests


async def test_a_connection_that_breaks_is_told_apart_from_one_that_is_not_made() -> None:
    with FakeOpenAi([fake.cut()]) as server, pytest.raises(Cut, match="payload"):
        await posted(Client(server.url, None, max_retries=0))
    began = time.monotonic()
    with pytest.raises(NotConnected, match=r"127\.0\.0\.1"):
        await posted(Client(server.url, None, max_retries=8))
    assert time.monotonic() - began < 5


async def test_only_what_was_sent_may_have_been_worked_on() -> None:
    """A server that is to accept nobody lets further ones wait for a connection."""
    abandoned: list[object] = []
    with socket.socket() as server, socket.socket() as first, socket.socket() as second:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await posted(Client(url, None, max_retries=0, on_abandoned=abandoned.append))
    assert not abandoned
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(8)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await posted(Client(url, None, max_retries=0, on_abandoned=abandoned.append))
    assert abandoned == [{"messages": []}]


async def test_a_closed_client_opens_again() -> None:
    with FakeOpenAi([fake.text("a")]) as server:
        client = Client(server.url, "secret", max_retries=0)
        await posted(client)
        await posted(client)
    assert server.keys == ["secret", "secret"]


@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        ({"retry-after": "7"}, 7, 7.7),
        ({"retry-after": "0.25", "retry-after-ms": "40"}, 0.04, 0.044),
        ({"retry-after": "3600"}, 1.5, 2.0),
        ({"retry-after": "-1"}, 1.5, 2.0),
        ({"retry-after": "soon"}, 1.5, 2.0),
        ({"retry-after": "Mon, 01 Jan 99999999999 00:00:00 GMT"}, 1.5, 2.0),
        ({}, 1.5, 2.0),
    ],
)
def test_pauses_follow_the_server_where_it_is_sensible(headers: dict[str, str], least: float, most: float) -> None:
    assert least <= pause_s(retry_after_s(headers), 2) <= most


def test_a_pause_may_end_at_a_date() -> None:
    assert 17 <= pause_s(retry_after_s({"retry-after": formatdate(time.time() + 20, usegmt=True)}), 0) <= 22


def test_pauses_grow_up_to_a_limit() -> None:
    assert [pause_s(None, tried) / bound <= 1 for tried, bound in ((0, 0.5), (1, 1.0), (4, 8.0), (20, 8.0))] == [
        True
    ] * 4
    assert pause_s(None, 20) >= 6
