"""A running sandbox: a keeper, and the interpreter that it has forked last."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import time
import weakref

import msgspec

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.records.record import Record
from agentmill.synthesis.sandbox.backend import Backend, Started, close_all, last_words, watch
from agentmill.synthesis.sandbox.limits import Limits, SandboxError, SandboxUnavailable

START_TIMEOUT_S = 20.0
END_TIMEOUT_S = 5.0

_COMMAND = struct.Struct(">cI")
_LENGTH = struct.Struct(">I")
_KEEPER_BYTES = 2**16


class Word(Record):
    """What a keeper says of interpreter ``number``: that it was started (no ``code``), or how it ended: an exit code,
    negative for a signal, and its processor seconds as the kernel counts them."""

    number: int
    code: int | None
    cpu_s: float


class TooLarge(Exception):
    """The other side announced more than is accepted."""


_proven: weakref.WeakSet[Backend] = weakref.WeakSet()
"""Backends of which a sandbox has started in this process."""


class Container:
    """Raises ``SandboxUnavailable`` where none can be made, but ``SandboxError`` once one of the same backend has
    started: what is wrong then will pass, and is no reason to end a whole run."""

    def __init__(self, backend: Backend, limits: Limits) -> None:
        self.number = 0
        """Of the interpreter started last; the first is 1."""
        try:
            self._start(backend, limits)
        except (SandboxUnavailable, OSError) as error:
            if backend in _proven:
                raise SandboxError(f"a sandbox did not start, though others did before: {error}") from None
            if isinstance(error, OSError):
                raise SandboxUnavailable(
                    f"the sandbox does not start: {error}. See docs/sandbox.md", ErrorCode.SANDBOX_UNAVAILABLE
                ) from None
            raise
        _proven.add(backend)

    def _start(self, backend: Backend, limits: Limits) -> None:
        """Raises ``SandboxUnavailable``, ``OSError``."""
        self._control, inside = socket.socketpair()
        try:
            with inside:
                self._started = backend.start(inside.fileno(), limits)
        except BaseException:
            self._control.close()
            raise
        # Not __del__: finalize also runs at the exit of the interpreter, and holds no reference to the container.
        self._ending = weakref.finalize(self, _end, self._control, self._started, os.getpid())
        watch(self)
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            send(self._control, msgspec.json.encode(self._started.settings), deadline)
            if receive(self._control, _KEEPER_BYTES, deadline) is None:
                raise EOFError
        except (OSError, EOFError, TooLarge):
            words = last_words(self._started.process)
            self.close()
            raise SandboxUnavailable(
                f"the sandbox does not start: {words}. See docs/sandbox.md", ErrorCode.SANDBOX_UNAVAILABLE
            ) from None

    @property
    def keeper(self) -> int:
        """The process that has the interpreter as its only child."""
        return self._started.pid

    def interpreter(self) -> socket.socket:
        """A fresh interpreter instead of the one before, and an empty ``/tmp``. Raises ``SandboxError``."""
        try:
            ours, inside = socket.socketpair()
        except OSError as error:
            raise SandboxError(f"no interpreter can be started: {error}") from None
        self.number += 1
        try:
            with inside:
                self._command(b"s", [inside.fileno()])
            if self._hear(START_TIMEOUT_S) is None:
                raise SandboxError("the sandbox has ended while an interpreter was started")
        except SandboxError:
            ours.close()
            raise
        return ours

    def end(self) -> None:
        """End the interpreter. Raises ``SandboxError``."""
        self._command(b"e", [])

    def death(self) -> Word | None:
        """How the interpreter ended, after its channel has closed; ``None`` if the keeper cannot say."""
        return self._hear(END_TIMEOUT_S)

    def _hear(self, timeout_s: float) -> Word | None:
        """What the keeper says next of the interpreter; words on earlier ones are passed over."""
        deadline = time.monotonic() + timeout_s
        try:
            while (frame := receive(self._control, _KEEPER_BYTES, deadline)) is not None:
                word = msgspec.json.decode(frame, type=Word)
                # The end of an interpreter that was replaced may be reported after the next has started.
                if word.number == self.number:
                    return word
            return None
        except (OSError, TooLarge, msgspec.DecodeError):
            return None

    def close(self) -> None:
        """End all that runs in it, if it is not a fork's. May be called twice; one that is forgotten is closed too."""
        self._ending()

    def let_go(self) -> None:
        """As ``Inherited.let_go``: what runs in it goes on."""
        self.close()

    def _command(self, command: bytes, descriptors: list[int]) -> None:
        try:
            self._control.settimeout(END_TIMEOUT_S)
            socket.send_fds(self._control, [_COMMAND.pack(command, self.number)], descriptors)
        except OSError as error:
            raise SandboxError(f"the sandbox has ended: {error}") from None


def _end(control: socket.socket, started: Started, owner: int) -> None:
    """End a sandbox, or let go of it in a fork of ``owner``, the process that made it."""
    control.close()
    # The sandbox is the parent's, and must go on.
    if os.getpid() != owner:
        _forget(started)
        started.process.poll()  # it is no child of the fork: counts as ended
        return
    with contextlib.suppress(ProcessLookupError):
        # By descriptor: a number may by now belong to another process.
        signal.pidfd_send_signal(started.pidfd, signal.SIGKILL)
    _forget(started)
    try:
        started.process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        started.process.kill()
        started.process.wait()


def _forget(started: Started) -> None:
    """Close this process's descriptors of a keeper."""
    close_all(started.pidfd)
    if started.process.stderr is not None:
        started.process.stderr.close()


def send(channel: socket.socket, frame: bytes, deadline: float) -> None:
    """Write a frame. Raises ``OSError``, ``TimeoutError`` at ``deadline`` (monotonic seconds)."""
    channel.settimeout(_left(deadline))
    channel.sendall(_LENGTH.pack(len(frame)) + frame)


def receive(channel: socket.socket, most_bytes: int, deadline: float) -> bytearray | None:
    """The next frame, ``None`` if the other side has closed. Raises ``TooLarge``, ``OSError``, ``TimeoutError``."""
    head = _exactly(channel, _LENGTH.size, deadline)
    if head is None:
        return None
    size = _LENGTH.unpack(head)[0]
    # The length comes from foreign code, so nothing is allocated before it is checked.
    if size > most_bytes:
        raise TooLarge
    return _exactly(channel, size, deadline)


def _exactly(channel: socket.socket, size: int, deadline: float) -> bytearray | None:
    data = bytearray(size)
    view, read = memoryview(data), 0
    while read < size:
        # Anew for each part, or code that sends a byte now and then could hold the host for ever.
        channel.settimeout(_left(deadline))
        count = channel.recv_into(view[read:])
        if count == 0:
            return None
        read += count
    return data


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
