"""A folder of files over HTTP, for browsers of this machine only."""

from __future__ import annotations

import functools
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from schemas.errors import UserError

LOOPBACK = "127.0.0.1"
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

    def send_head(self) -> Any:
        """Refuse what is not asked of this machine, which a foreign page can do by a name that it points here."""
        host = self.headers.get("Host", "").partition(":")[0]
        if host not in (LOOPBACK, "localhost"):
            return self.send_error(HTTPStatus.FORBIDDEN, "served to this machine only")
        path = self.translate_path(self.path)
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


def server(folder: Path, port: int = 0) -> ThreadingHTTPServer:
    """A server of ``folder`` on loopback, at a free port if ``port`` is 0; ``serve_forever`` starts it.

    Raises ``UserError`` if the port is taken.
    """
    try:
        made = ThreadingHTTPServer((LOOPBACK, port), functools.partial(Handler, directory=str(folder)))
    except OSError as error:
        raise UserError(f"port {port} of {LOOPBACK} cannot be used ({error.strerror}); give another: --port") from error
    made.daemon_threads = True
    return made


def address(made: ThreadingHTTPServer) -> str:
    """Where a browser finds it."""
    return f"http://{LOOPBACK}:{made.server_address[1]}/index.html"
