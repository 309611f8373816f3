"""Addresses that answer badly."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from agentmill.pipelines.serving import endpoints
from agentmill.pipelines.serving.endpoints import Endpoint, check_endpoint, is_healthy
from tests.errors import user_error
from tests.fake_openai import MODEL, FakeOpenAi, Reply, text

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
    with answering(answer) as url, user_error("endpoint-unreachable"):
        check_endpoint(Endpoint(base_url=url, model="m"), None)


def test_a_redirect_is_not_followed_and_the_key_stays_here() -> None:
    with FakeOpenAi([]) as other, FakeOpenAi([], listing=302) as server:
        server.listing_headers = {"location": f"{other.url}/models"}
        with user_error("endpoint-redirects", f"{other.url}/models") as error:
            check_endpoint(Endpoint(base_url=server.url, model=MODEL), "key")
        assert len(str(error.value).splitlines()) == 2
        assert other.asked == []
        assert server.asked == ["/v1/models"]


def test_an_answer_without_an_end_is_read_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentmill.synthesis.policies.http_client.MOST_BYTES", 2**20)
    with pouring(pause_s=0.0) as (url, sent), user_error("endpoint-unreachable", "1 MiB"):
        check_endpoint(Endpoint(base_url=url, model="m"), None)
    assert sum(sent) < 32 * 2**20  # what the sockets hold besides


def test_an_answer_that_comes_drop_by_drop_is_waited_for_no_longer_than_said() -> None:
    began = time.monotonic()
    with pouring(pause_s=0.1) as (url, _), user_error("endpoint-unreachable", "1"):
        check_endpoint(Endpoint(base_url=url, model="m"), None, timeout_s=1.0)
    assert time.monotonic() - began < 10


@contextmanager
def pouring(pause_s: float) -> Iterator[tuple[str, list[int]]]:
    """The address of a server whose answer does not end, and the bytes that it has sent: at once, or in drops."""
    sent: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            piece = b" " * (1 if pause_s else 2**16)
            with connection, suppress(OSError):
                connection.recv(10_000)
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while True:
                    connection.sendall(piece)
                    sent.append(len(piece))
                    time.sleep(pause_s)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1", sent
        thread.join()


@pytest.mark.parametrize(
    "script",
    [
        [text("a")],
        [Reply(status=429)],
        [Reply(status=400), text("a")],
        [Reply(hang_s=3.0)],
    ],
)
def test_a_model_that_is_not_listed_may_answer_by_another_name(script: list[Reply]) -> None:
    with FakeOpenAi(script) as server:
        check_endpoint(Endpoint(base_url=server.url, model="alias"), None, timeout_s=1.0)
    limits = [{"max_tokens", "max_completion_tokens"} & body.keys() for body in server.requests]
    assert limits == [{"max_tokens"}, {"max_completion_tokens"}][: len(script)]


@pytest.mark.parametrize("status", [400, 404])
def test_a_model_that_is_not_served_is_refused(status: int) -> None:
    with FakeOpenAi([Reply(status=status)]) as server, user_error("model-not-served", "alias", MODEL):
        check_endpoint(Endpoint(base_url=server.url, model="alias"), None)


@pytest.mark.parametrize(("listing", "advice"), [(403, "is the API key right?"), (500, "is the address right")])
def test_advice_fits_what_the_list_of_models_answers(listing: int, advice: str) -> None:
    with FakeOpenAi([], listing=listing) as server, user_error("endpoint-refuses", f"HTTP {listing}", advice):
        check_endpoint(Endpoint(base_url=server.url, model=MODEL), None)


def test_names_of_models_that_are_no_text_are_left_out() -> None:
    body = b'{"data": [{"id": 7}, {"id": null}, {"id": "other"}]}'
    assert endpoints._model_names(body) == {"other"}
