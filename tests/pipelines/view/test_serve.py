"""The folder of a view over HTTP: for this machine, under its own name, and nothing beside it."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from agentmill.pipelines.view.serve import Server, address, server
from tests.errors import user_error


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server of a folder with one file, and with a link out of it."""
    outside = tmp_path_factory.mktemp("served")
    (outside / "secret.txt").write_text("secret")
    shown = outside / "shown"
    (shown / "data").mkdir(parents=True)
    (shown / "index.html").write_text("<p>here")
    (shown / "out.txt").symlink_to(outside / "secret.txt")
    with server(shown) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield running.server_address[1]
        running.shutdown()
        thread.join()


def answer(port: int, path: str, host: str | None = None, method: str = "GET") -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", f"127.0.0.1:{port}" if host is None else host)
    connection.endheaders()
    response = connection.getresponse()
    response.text = response.read().decode()  # type: ignore[attr-defined]
    connection.close()
    return response


def test_a_file_comes_with_headers_that_keep_it_apart(port: int) -> None:
    response = answer(port, "/index.html")
    assert (response.status, response.text) == (200, "<p>here")  # type: ignore[attr-defined]
    assert response.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"


@pytest.mark.parametrize(
    "path", ["/data/", "/../secret.txt", "/%2e%2e/secret.txt", "/out.txt", "/nothing", "//etc/passwd", "/%00"]
)
def test_nothing_else_is_given_out(port: int, path: str) -> None:
    response = answer(port, path)
    assert response.status == 404
    assert "secret" not in response.text  # type: ignore[attr-defined]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "127.0.0.1.evil.example:80"])
def test_a_page_that_calls_this_machine_by_another_name_is_refused(port: int, host: str) -> None:
    assert answer(port, "/index.html", host).status == 403
    assert answer(port, "/index.html", f"localhost:{port}").status == 200
    assert answer(port, "/index.html", "localhost").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_written(port: int, method: str) -> None:
    assert answer(port, "/index.html", method=method).status == 501


def test_only_loopback_is_bound_and_a_taken_port_is_said(tmp_path: Path) -> None:
    with server(tmp_path) as running:
        host, port = running.server_address[:2]
        assert host == "127.0.0.1"
        assert address(running) == f"http://127.0.0.1:{port}/index.html"
        with user_error("port-in-use", port, "127.0.0.1"):
            server(tmp_path, port)


@contextmanager
def serving(folder: Path, **limits: float) -> Iterator[Server]:
    """A server of a folder with a page and a file that fills the buffers of a connection."""
    (folder / "index.html").write_text("<p>here")
    (folder / "large.txt").write_bytes(b"x" * 2**24)
    with server(folder, **limits) as running:  # type: ignore[arg-type]
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def connected(running: Server, sent: bytes) -> socket.socket:
    """A client that has sent so much and waits, for at most ten seconds."""
    client = socket.create_connection(running.server_address[:2], timeout=10)
    client.sendall(sent)
    return client


def connections(before: set[threading.Thread]) -> list[threading.Thread]:
    """The threads of connections that are not among ``before``: other servers of these tests may have some."""
    return [thread for thread in set(threading.enumerate()) - before if "process_request_thread" in thread.name]


def no_threads_left(before: set[threading.Thread]) -> bool:
    """Whether the threads of connections have ended, waited for; one that is just starting cannot be joined yet."""
    deadline = time.monotonic() + 10
    while (left := connections(before)) and time.monotonic() < deadline:
        for thread in left:
            if thread.is_alive():
                thread.join(1)
    return not left


@pytest.mark.parametrize("sent", [b"", b"GET /index", b"GET /index.html HTTP/1.1\r\nHost: local"])
def test_a_half_request_is_closed_in_time(tmp_path: Path, sent: bytes) -> None:
    with serving(tmp_path, patience_s=0.05) as running, connected(running, sent) as client:
        assert client.recv(1) == b""


def test_a_request_that_comes_byte_by_byte_is_closed_in_time(tmp_path: Path) -> None:
    with serving(tmp_path, patience_s=0.1) as running, connected(running, b"GET /") as client:
        client.settimeout(0.02)
        for _ in range(500):
            try:
                client.sendall(b"a")
                assert client.recv(1) == b""
                return
            except TimeoutError:
                continue
            except ConnectionError:
                return
    raise AssertionError("it is still open")


def test_half_requests_take_a_bounded_number_of_threads(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with serving(tmp_path, connections=4, patience_s=60.0) as running, ExitStack() as held:
        clients = [held.enter_context(connected(running, b"GET /index")) for _ in range(40)]
        refused = [client.recv(12) for client in clients[4:]]
        assert refused == [b"HTTP/1.1 503"] * 36
        assert len(connections(before)) <= 4
        held.close()
        assert no_threads_left(before)
        port = running.server_address[1]
        assert answer(port, "/index.html").status == 200


@pytest.mark.parametrize("path", ["/large.txt", "/index.html"])
def test_a_client_that_goes_away_leaves_no_traceback(
    tmp_path: Path, path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    before = set(threading.enumerate())
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with serving(tmp_path) as running:
        for reset in (True, False):
            client = connected(running, request)
            if reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                client.recv(1)
            client.close()
        assert answer(running.server_address[1], "/index.html").status == 200
        assert no_threads_left(before)
    assert capfd.readouterr().err == ""


def test_a_client_that_does_not_take_its_answer_is_closed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = set(threading.enumerate())
    with serving(tmp_path, patience_s=0.05) as running:
        with connected(running, b"GET /large.txt HTTP/1.1\r\nHost: localhost\r\n\r\n") as client:
            assert client.recv(1) == b"H"
            assert no_threads_left(before)
        assert answer(running.server_address[1], "/index.html").status == 200
    assert capfd.readouterr().err == ""
