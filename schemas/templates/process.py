"""Chat templates of models, rendered in a process of their own that is bounded in time, memory and text."""

from __future__ import annotations

import atexit
import json
import os
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.templates.prefix_texts import RenderedText, TemplateError

_LENGTH = struct.Struct(">Q")
WORKER = Path(__file__).with_name("worker.py")

TIMEOUT_S = 20.0
"""For one conversation. Templates take about a millisecond."""
MEMORY_BYTES = 2**30
MOST_CHARACTERS = 2**26
"""Of a rendered conversation."""
SYNTAX = ("TemplateSyntaxError", "TemplateAssertionError")
"""What Jinja raises for a template that it cannot read, whatever the conversation."""
SOURCE_BYTES = 2**20
"""Of a template. Those of published models take up to 20 KB."""


class TemplateProcess:
    """Starts with the first template, and again after one that it was ended for. For any threads and forks."""

    def __init__(self, timeout_s: float = TIMEOUT_S, memory_bytes: int = MEMORY_BYTES) -> None:
        self._timeout_s, self._memory_bytes = timeout_s, memory_bytes
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forked)

    def render(self, source: str, names: JsonObject) -> RenderedText:
        """The text of a template with ``names``.

        Raises ``TemplateError`` (or ``TypeError``, where the template did) for a conversation that the template cannot
        show, and ``UserError`` for a template that takes too much, or is none: it is not to be used at all.
        """
        check_size(source)
        request = json.dumps({"source": source, "names": names, "most": MOST_CHARACTERS}).encode()
        # One request at a time, or threads would read each other's answers.
        with self._lock:
            answer = self._answer_of(request)
        if "text" in answer:
            text = RenderedText(answer["text"])
            text.starts = answer["starts"]
            return text
        if "limit" in answer:
            raise _refused(
                f"takes more than {self._memory_bytes >> 20:,} MiB of memory"
                if answer["limit"] == "memory"
                else f"makes a text of more than {MOST_CHARACTERS:,} characters"
            )
        message = " ".join(answer["message"].split())[:200]
        if answer["kind"] in SYNTAX:
            raise UserError(
                f"the chat template is no Jinja template: {message}\nmend it, or give another one as `chat_template`,"
                " a file",
                ErrorCode.TEMPLATE_INVALID,
            )
        if answer["kind"] == "TypeError":
            raise TypeError(message)
        raise TemplateError(f"the chat template fails on the conversation: {answer['kind']}: {message}")

    def close(self) -> None:
        """End the process. It starts again with the next template."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _forked(self) -> None:
        """A thread of the parent may hold the lock, and the process is the parent's."""
        self._lock = threading.Lock()
        if self._process is not None:
            self._process.poll()  # it is no child of the fork: counts as ended
            self._process = None

    def _answer_of(self, request: bytes) -> dict[str, Any]:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(_LENGTH.pack(len(request)) + request)
            process.stdin.flush()
            head = process.stdout.read(_LENGTH.size)
            answer = process.stdout.read(_LENGTH.unpack(head)[0]) if head else b""
        # The process ended while it was written to; why is asked below.
        except BrokenPipeError:
            answer = b""
        except BaseException:  # an interrupt: its answer must not be taken for a later one's
            self.close()
            raise
        if not answer:
            code = process.wait()
            self.close()
            raise _refused(
                f"takes more than {self._timeout_s:g} s for a conversation"
                if code == -signal.SIGALRM
                else f"ends the process that renders it (exit code {code})"
            )
        decoded: dict[str, Any] = json.loads(answer)
        return decoded

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            command = [sys.executable, "-P", str(WORKER), str(self._timeout_s), str(self._memory_bytes)]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/")
        return self._process


def check_size(source: str) -> None:
    """Raises ``UserError`` for a template that is too long to be one."""
    if len(source) > SOURCE_BYTES:
        raise UserError(
            f"the chat template has {len(source):,} characters; expected at most {SOURCE_BYTES:,}\n"
            "give another one as `chat_template`, a file",
            ErrorCode.FILE_TOO_LARGE,
        )


def read_template(file: Path) -> str:
    """The template in a file. Raises ``UserError`` for one that is too large to be read, no text, or empty."""
    with file.open("rb") as opened:
        data = opened.read(SOURCE_BYTES + 1)
    if len(data) > SOURCE_BYTES:
        raise UserError(
            f"the chat template {file} has more than {SOURCE_BYTES:,} bytes; expected a Jinja template\n"
            "give another one as `chat_template`, a file",
            ErrorCode.FILE_TOO_LARGE,
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"the chat template {file} is no UTF-8 text: {error}\ngive another file", ErrorCode.NOT_UTF8
        ) from None
    if not text.strip():
        raise UserError(
            f"the chat template {file} is empty; expected a Jinja template\ngive another file",
            ErrorCode.TEMPLATE_INVALID,
        )
    return text


def _refused(what: str) -> UserError:
    return UserError(
        f"the chat template {what}, so it is not used\ngive another one as `chat_template`, a file",
        ErrorCode.TEMPLATE_TOO_COSTLY,
    )


shared = TemplateProcess()
"""That of this process."""
