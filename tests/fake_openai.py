"""A small server that speaks the OpenAI chat API on loopback and fails as it is told to.

    with FakeOpenAi([status(429, {"retry-after": "0.1"}), text("go north")]) as server:
        ... server.url ... server.requests

Replies are used in order, the last one again and again; or a function makes each reply from the request body. As a
program (``python -m tests.fake_openai --port 8000 --answer text``) it stands in for a model server.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MODEL = "fake"
METRICS = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="fake"}} {running}.0
vllm:num_requests_waiting{{engine="0",model_name="fake"}} 7.0
"""


@dataclass(frozen=True)
class Reply:
    """One answer: ``cut`` closes the connection half-way through the body, ``hang_s`` holds it before it begins."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    hang_s: float = 0.0
    cut: bool = False
    chat: dict[str, Any] | None = None


def text(content: str | None, finish_reason: str = "stop", hang_s: float = 0.0) -> Reply:
    """An assistant message."""
    return Reply(
        chat={"message": {"role": "assistant", "content": content}, "finish_reason": finish_reason}, hang_s=hang_s
    )


def calls(*functions: tuple[str, str], content: str | None = None) -> Reply:
    """Tool calls, each a name and the text of its arguments."""
    made = [
        {"id": f"random-{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(functions)
    ]
    message = {"role": "assistant", "content": content, "tool_calls": made}
    return Reply(chat={"message": message, "finish_reason": "tool_calls"})


def status(code: int, headers: dict[str, str] | None = None, message: str = "no") -> Reply:
    """An error in OpenAI's form."""
    body = {"error": {"message": message, "type": "error", "param": None, "code": code}}
    return Reply(status=code, body=json.dumps(body).encode(), headers=headers or {})


def score(*values: float) -> Reply:
    """What vLLM's ``/classify`` says of one text: the outputs of the model's head."""
    data = [{"index": 0, "label": "LABEL_0", "probs": list(values), "num_classes": len(values)}]
    return Reply(body=json.dumps({"id": "x", "object": "list", "created": 0, "model": MODEL, "data": data}).encode())


def overflow(limit: int = 128) -> Reply:
    """What vLLM says when a prompt is too long."""
    said = (
        f"This model's maximum context length is {limit} tokens. However, your prompt contains {limit + 9} input tokens"
    )
    return status(400, message=said)


def raw(body: bytes) -> Reply:
    """Any bytes with status 200."""
    return Reply(body=body)


def cut() -> Reply:
    """The connection breaks in the middle of the answer."""
    return Reply(chat={"message": {"role": "assistant", "content": "lost"}, "finish_reason": "stop"}, cut=True)


def hang(seconds: float = 60.0) -> Reply:
    """Nothing comes for ``seconds``."""
    return Reply(hang_s=seconds)


Script = Sequence[Reply] | Callable[[dict[str, Any]], Reply]


class FakeOpenAi:
    """The server in a thread of this process. ``requests`` holds the bodies it got, ``keys`` their API keys.

    ``headers`` holds those of each request, by their names in lower case.
    """

    def __init__(self, script: Script, port: int = 0, with_tokens: bool = False, listing: int = 200) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.running = 0
        self.closing = threading.Event()
        self._script = script
        self._with_tokens = with_tokens
        self.listing = listing
        """The status of the list of models."""
        self.listing_headers: dict[str, str] = {}
        self.asked: list[str] = []
        """The paths that were asked for by GET."""
        self.posted: list[str] = []
        """The paths that were posted to."""
        self._lock = threading.Lock()
        fake = self

        class Handler(_Handler):
            server_state = fake

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> FakeOpenAi:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def serve_forever(self) -> None:
        self._server.serve_forever()

    def reply_to(self, body: dict[str, Any], key: str) -> Reply:
        with self._lock:
            self.requests.append(body)
            self.keys.append(key)
            if callable(self._script):
                return self._script(body)
            return self._script[min(len(self.requests), len(self._script)) - 1]

    def hang(self, seconds: float) -> None:
        """Work on an answer for so long."""
        with self._lock:
            self.running += 1
        self.closing.wait(seconds)
        with self._lock:
            self.running -= 1

    def completion(self, chat: dict[str, Any], body: dict[str, Any]) -> bytes:
        """The answer around ``chat``; with tokens, a token is the code point of one character."""
        prompt = "".join(_rendered(message) for message in body["messages"]) + "<assistant>"
        sampled = _rendered(chat["message"]).removeprefix("<assistant>")
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(sampled), "total_tokens": len(prompt + sampled)}
        choice = {"index": 0, **chat}
        answer = {
            "id": "x",
            "object": "chat.completion",
            "created": 0,
            "model": MODEL,
            "choices": [choice],
            "usage": usage,
        }
        if self._with_tokens:
            answer["prompt_token_ids"] = [ord(letter) for letter in prompt]
            choice["token_ids"] = [ord(letter) for letter in sampled]
            choice["logprobs"] = {"content": [{"token": letter, "logprob": -0.5} for letter in sampled]}
        return json.dumps(answer).encode()


class InStep(FakeOpenAi):
    """Answers ``n`` requests at a time, so that as many are in flight however slow the machine is."""

    def __init__(self, script: Script, n: int) -> None:
        super().__init__(script)
        self._step = threading.Barrier(n, timeout=60)

    def reply_to(self, body: dict[str, Any], key: str) -> Reply:
        reply = super().reply_to(body, key)
        self._step.wait()
        return reply


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer in one piece: in two it waits for a delayed acknowledgement
    server_state: FakeOpenAi

    def do_GET(self) -> None:
        self.server_state.asked.append(self.path)
        if self.path == "/metrics":
            self._send(Reply(body=METRICS.format(running=self.server_state.running).encode()))
            return
        models = {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
        known = self.path in ("/health", "/v1/models")
        listing = self.path == "/v1/models"
        found = self.server_state.listing if listing else 200
        headers = self.server_state.listing_headers if listing else {}
        self._send(Reply(status=found if known else 404, body=json.dumps(models).encode(), headers=headers))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server_state.posted.append(self.path)
        self.server_state.headers.append({name.lower(): value for name, value in self.headers.items()})
        reply = self.server_state.reply_to(body, self.headers.get("authorization", "").removeprefix("Bearer "))
        if reply.hang_s:
            self.server_state.hang(reply.hang_s)
        if reply.chat is not None:
            content = self.server_state.completion(reply.chat, body)
            reply = Reply(body=content, headers=reply.headers, cut=reply.cut)
        self._send(reply)

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(reply.body)))
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if reply.cut:
            self.wfile.write(reply.body[: len(reply.body) // 2])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        else:
            self.wfile.write(reply.body)

    def handle(self) -> None:
        try:
            super().handle()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


def _rendered(message: dict[str, Any]) -> str:
    said = message.get("content") or ""
    made = "".join(call["function"]["name"] + call["function"]["arguments"] for call in message.get("tool_calls") or [])
    return f"<{message['role']}>{said}{made}</>"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--answer", default="hello")
    parser.add_argument("--start-after", type=float, default=0.0)
    parser.add_argument("--die-with", default=None, help="print this and exit with 3 at once")
    parser.add_argument("--child", action="store_true", help="leave a child process beside the server")
    parser.add_argument("--hang-once", type=Path, help="hang at the first start, which makes this file")
    options = parser.parse_args()
    if options.hang_once is not None and not options.hang_once.exists():
        options.hang_once.touch()
        with socket.create_server(("127.0.0.1", options.port)):
            time.sleep(600)
    if options.die_with is not None:
        print(options.die_with, flush=True)
        raise SystemExit(3)
    if options.child and os.fork() == 0:
        time.sleep(600)
    time.sleep(options.start_after)
    FakeOpenAi([text(options.answer)], port=options.port).serve_forever()


if __name__ == "__main__":
    main()
