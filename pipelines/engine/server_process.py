"""One model server as a supervised process with a log, that can be waited for, started again and stopped."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from pipelines.engine.endpoints import HOST, Endpoint, is_healthy
from pipelines.engine.server_records import ServerRecords
from pipelines.engine.supervise import REMOVE

POLL_S = 0.2
STOP_S = 20.0
SOCKETS = "VLLM_RPC_BASE_PATH"
"""Where vLLM puts the sockets of its processes, which it leaves behind."""

LOG_LINES = 8
LINE_LENGTH = 300
ERRORS = 2
ERROR = re.compile(r"(^|[\s.])\w+(Error|Exception): |\berror: ")
"""An exception at the end of a traceback, or a complaint about the command line."""


class ServerError(Exception):
    """A model server did not start, or died for good. The message ends with the last lines of its log."""


@dataclass(frozen=True)
class ServerPlan:
    """What is to run, where it will listen, and where its output goes."""

    command: list[str]
    environment: dict[str, str]
    port: int
    model: str
    log: Path

    @property
    def endpoint(self) -> Endpoint:
        """Where it can be asked."""
        return Endpoint(base_url=f"http://{HOST}:{self.port}/v1", model=self.model)


class ServerProcess:
    """A server under ``pipelines.engine.supervise``, recorded in the run directory while it lives."""

    def __init__(self, plan: ServerPlan, records: ServerRecords) -> None:
        self.plan = plan
        self._records = records
        self._process: subprocess.Popen[bytes] | None = None
        self._temporary = ""

    def start(self) -> None:
        """Start it and record it; it is not ready yet."""
        self._temporary = tempfile.mkdtemp(prefix="agentmill-")
        supervise = [sys.executable, "-m", "pipelines.engine.supervise", f"{REMOVE}{self._temporary}", str(os.getpid())]
        self.plan.log.parent.mkdir(parents=True, exist_ok=True)
        with self.plan.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*supervise, *self.plan.command],
                env={**self.plan.environment, SOCKETS: self._temporary},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._records.add(self._process.pid, self.plan.log)

    def wait_ready(self, timeout_s: float, stopping: threading.Event | None = None) -> None:
        """Wait until it is healthy, or until ``stopping``.

        Raises ``ServerError`` if it ends before, or is not ready in ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        stopping = stopping or threading.Event()
        while not is_healthy(self.plan.endpoint.base_url):
            if not self.is_alive():
                raise ServerError(f"the server of {self.plan.model} ended while it started.\n{self.last_words()}")
            if time.monotonic() > deadline:
                waited = f"was not ready within {timeout_s:g} s (`server.start_timeout_s`)"
                raise ServerError(f"the server of {self.plan.model} {waited}.\n{self.last_words()}")
            if stopping.wait(POLL_S):
                return
        if self._process is not None:
            self._records.add(self._process.pid, self.plan.log)

    def is_alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End it and all its children. Does nothing if it has ended."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._records.remove(self._process.pid)
        shutil.rmtree(self._temporary, ignore_errors=True)  # of a supervisor that was killed
        self._process = None

    def last_words(self) -> str:
        """Where the log is, and what it says of the end."""
        log = self.plan.log.read_text(encoding="utf-8", errors="replace")
        return "\n".join([f"From its log {self.plan.log}:", *(f"  {line}" for line in telling_lines(log))])


def telling_lines(log: str) -> list[str]:
    """The last errors that a log names, each with the line after it; without any, its last lines."""
    lines = [line[:LINE_LENGTH] for line in log.splitlines() if line.strip()]
    errors = [index for index, line in enumerate(lines) if ERROR.search(line)][-ERRORS:]
    if not errors:
        return lines[-LOG_LINES:]
    chosen = sorted({after for index in errors for after in (index, index + 1) if after < len(lines)})
    return [lines[index] for index in chosen]
