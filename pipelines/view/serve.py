"""A folder of files over HTTP, for browsers of this machine only."""

from __future__ import annotations

import contextlib
import functools
import socket
import sys
import threading
import time
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError

LOOPBACK = "127.0.0.1"
MOST_CONNECTIONS = 64
"""At a time. A browser has six."""
PATIENCE_S = 10.0
"""For a whole request, and for each piece of an answer to be taken."""
ANSWER_S = 300.0
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Handler(SimpleHTTPRequestHandler):
    """Files of one folder: no listings, no links out of it, and none for a page that calls us by another name."""

    protocol_version = "HTTP/1.1"
    server: Server

    def setup(self) -> None:
        """A write that the client does not take ends with an error after the patience of the server."""
        super().setup()
        self.connection.settimeout(self.server.patience_s)

    def handle_one_request(self) -> None:
        """Wait for a request, which has to be whole in time, and answer it."""
        self.server.expect(self.connection, self.server.patience_s)
        super().handle_one_request()

    def parse_request(self) -> bool:
        """The request is whole; its answer may take longer."""
        self.server.expect(self.connection, ANSWER_S)
        return super().parse_request()

    def send_head(self) -> Any:
        """Refuse what is not asked of this machine, which a foreign page can do by a name that it points here."""
        host = self.headers.get("Host", "").partition(":")[0]
        if host not in (LOOPBACK, "localhost"):
            return self.send_error(HTTPStatus.FORBIDDEN, "served to this machine only")
        path = self.translate_path(self.path)
        # A path with a null byte cannot be resolved: it raises.
        if "\0" in path or not Path(path).resolve().is_relative_to(Path(self.directory).resolve()):
            return self.send_error(HTTPStatus.NOT_FOUND)
        return super().send_head()

    def list_directory(self, path: Any) -> None:
        """There are no listings."""
        del path
        self.send_error(HTTPStatus.NOT_FOUND)

    def end_headers(self) -> None:
        """Add the headers that keep pages apart."""
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are no news."""


class Server(ThreadingHTTPServer):
    """A thread for each connection, up to a number of them; a further one is answered with 503 and closed.

    A connection without a whole request is closed after ``patience_s`` seconds, however slowly it sends one.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path, port: int, patience_s: float, connections: int) -> None:
        self.patience_s = patience_s
        self._most = connections
        self._deadlines: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__((LOOPBACK, port), functools.partial(Handler, directory=str(folder)))

    def expect(self, connection: socket.socket, seconds: float) -> None:
        """The connection has so long for what comes next."""
        with self._lock:
            self._deadlines[connection] = time.monotonic() + seconds

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection its thread, or refuse it."""
        with self._lock:
            full = len(self._deadlines) >= self._most
        if full:
            with contextlib.suppress(OSError):
                # The thread that accepts connections must not wait for a client that does not read.
                request.setblocking(False)
                request.sendall(BUSY)
            self.shutdown_request(request)
            return
        self.expect(request, self.patience_s)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, which makes room for another."""
        with self._lock:
            self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End connections whose time is over; called after every poll. Their threads see the end of what is sent."""
        now = time.monotonic()
        with self._lock:
            late = [connection for connection, deadline in self._deadlines.items() if deadline < now]
        for connection in late:
            with contextlib.suppress(OSError):
                # Not closed: the number of its descriptor could be given away while its thread still uses it.
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away or does not take its answer is no news."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def server(folder: Path, port: int = 0, patience_s: float = PATIENCE_S, connections: int = MOST_CONNECTIONS) -> Server:
    """A server of ``folder`` on loopback, at a free port if ``port`` is 0; ``serve_forever`` starts it.

    It has at most so many ``connections`` at a time, and closes one that is silent for ``patience_s`` seconds.
    Raises ``UserError`` if the port is taken.
    """
    try:
        return Server(folder, port, patience_s, connections)
    except OSError as error:
        raise UserError(
            f"port {port} of {LOOPBACK} cannot be used ({error.strerror}); give another: --port", ErrorCode.PORT_IN_USE
        ) from error


def address(made: ThreadingHTTPServer) -> str:
    """Where a browser finds it."""
    return f"http://{LOOPBACK}:{made.server_address[1]}/index.html"
