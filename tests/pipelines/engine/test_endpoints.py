"""Addresses that answer badly."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pipelines.engine.endpoints import Endpoint, check_endpoint, is_healthy
from schemas.errors import UserError

BROKEN = [b"", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"]


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """The address of a server that gives one answer, whatever it is asked, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        thread.join()


@pytest.mark.parametrize("answer", BROKEN)
def test_a_server_whose_answer_breaks_off_is_not_healthy(answer: bytes) -> None:
    with answering(answer) as url:
        assert not is_healthy(url)
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") as url:
        assert is_healthy(url)


@pytest.mark.parametrize("answer", BROKEN)
def test_an_address_whose_answer_breaks_off_is_refused(answer: bytes) -> None:
    with answering(answer) as url, pytest.raises(UserError, match="cannot be reached"):
        check_endpoint(Endpoint(base_url=url, model="m"), None)
