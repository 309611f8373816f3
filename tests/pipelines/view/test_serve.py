"""The folder of a view over HTTP: for this machine, under its own name, and nothing beside it."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.view.serve import address, server
from schemas.errors import UserError


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
        with pytest.raises(UserError, match=f"port {port} of 127.0.0.1 cannot be used"):
            server(tmp_path, port)
