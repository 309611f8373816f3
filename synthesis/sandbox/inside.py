"""What runs inside a sandbox, on the standard library alone: a keeper, and the interpreters that it forks.

The keeper never runs foreign code. It takes commands from the host on an inherited socket: each ``start`` carries the
socket of a new interpreter, which the keeper forks of itself, warm, after killing the one before and emptying
``/tmp``. The interpreter gives up the right to fork, execute, signal, trace, open sockets and much else (a seccomp
filter), and then answers requests on its socket until that closes.

Functions that run elsewhere can be offered to code here: a call of one is a frame to the host, whose answer is read
before the code goes on.

Frames are a length (four bytes, big-endian) and JSON. Nothing here guards the host: it believes nothing of what it
reads. What guards it are the limits and the filter that are set in ``become_interpreter`` before any code is run.
"""

from __future__ import annotations

import _thread
import ast
import builtins
import contextlib
import ctypes
import io
import json
import linecache
import os
import random
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import time
import traceback
import types
from pathlib import Path
from typing import Any

PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2

READ_ONLY, NO_SUID, NO_DEVICES, NO_EXEC, REMOUNT, BIND = 1, 2, 4, 8, 32, 4096
"""Flags of mounts."""
CAPABILITY_VERSION = 0x20080522

FILES = Path("/tmp")
START = b"s"
COMMAND = struct.Struct(">cI")
"""A command and the number of the interpreter that it is about."""
LENGTH = struct.Struct(">I")

CHANNEL = 3
"""The socket of an interpreter."""
OPEN_FILES = 64
TRACEBACK_FRAMES = 8
MOST_LEVELS = 200
"""Lists and objects inside each other, as many as a table takes."""
WARM = (
    "collections",
    "dataclasses",
    "datetime",
    "decimal",
    "enum",
    "fractions",
    "functools",
    "itertools",
    "math",
    "re",
)
"""What is imported before forking, as most code will."""


class Program(ctypes.Structure):
    """A seccomp filter as the kernel takes it."""

    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def keep(control: socket.socket) -> None:
    """Serve the host until it closes ``control``; whatever goes wrong ends the sandbox."""
    settings = json.loads(receive(control.fileno()) or b"{}")
    libc = ctypes.CDLL(None, use_errno=True)
    prepare(settings, libc)
    send(control.fileno(), b"{}")
    child: Child | None = None
    while True:
        watched = select.poll()  # select takes no descriptors above 1023
        for each in [control.fileno()] if child is None else [control.fileno(), child.pidfd]:
            watched.register(each, select.POLLIN)
        ready = [each for each, _ in watched.poll()]
        received = socket.recv_fds(control, COMMAND.size, 1) if control.fileno() in ready else (None, [], 0, 0)
        message, sockets, _, _ = received
        if child is not None:  # it has ended, or it is to end, whatever the command
            child.kill()
            send(control.fileno(), child.reap())
            child = None
        if message == b"":
            return
        if message is not None:
            command, number = COMMAND.unpack(message)
            if command == START:
                child = start(number, sockets[0], settings, libc)
                send(control.fileno(), word(number))


def prepare(settings: dict[str, Any], libc: ctypes.CDLL) -> None:
    """Mount ``/tmp``, protect ``/dev/null``, drop all rights, and import what most code will."""
    if settings["files"] is not None:
        _checked(libc.mount(b"tmpfs", bytes(FILES), b"tmpfs", NO_SUID | NO_DEVICES, settings["files"].encode()))
        kept = os.statvfs(os.devnull).f_flag & (NO_SUID | NO_EXEC)
        flags = REMOUNT | BIND | READ_ONLY | kept  # its times are the host's; it can still be written to
        _checked(libc.mount(None, os.devnull.encode(), None, flags, None))
    drop_rights(settings["uid"], libc)
    # Not dumpable: no other process of the user may trace it or read its memory.
    _control(libc, PR_SET_DUMPABLE, 0)
    # Without it the kernel takes no filter from a process that has no rights.
    _control(libc, PR_SET_NO_NEW_PRIVS, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # signals that the first process of a namespace leaves alone are lost
    for name in WARM:
        __import__(name)


def drop_rights(uid: int | None, libc: ctypes.CDLL) -> None:
    """Become ``uid``, and lose all capabilities for good."""
    if uid is not None:
        # Groups before the user: afterwards the right to change them is gone.
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    _checked(libc.capset((ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()))


class Child:
    """A running interpreter."""

    def __init__(self, number: int, pid: int) -> None:
        self.number = number
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)

    def kill(self) -> None:
        """End it, if it has not ended."""
        os.kill(self.pid, signal.SIGKILL)

    def reap(self) -> bytes:
        """How it ended, as JSON. Waits for the end."""
        _, status, used = os.wait4(self.pid, 0)
        os.close(self.pidfd)
        return word(self.number, os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime)


def word(number: int, code: int | None = None, cpu_s: float = 0.0) -> bytes:
    """A report on an interpreter to the host: that it was started, or with which exit code it ended."""
    return json.dumps({"number": number, "code": code, "cpu_s": cpu_s}).encode()


def start(number: int, channel: int, settings: dict[str, Any], libc: ctypes.CDLL) -> Child:
    """Empty ``/tmp``, and fork an interpreter that is served through ``channel``."""
    if settings["files"] is not None:
        empty(FILES)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            become_interpreter(channel, settings, libc)
            serve(settings)
            code = 0
        finally:
            # Not sys.exit, which would run the keeper's clean-up in the fork.
            os._exit(code)
    os.close(channel)
    return Child(number, pid)


def become_interpreter(channel: int, settings: dict[str, Any], libc: ctypes.CDLL) -> None:
    """Let go of everything but ``channel``, and give up all rights. From here on nothing can be taken back."""
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    # Out of the way first: all descriptors in between are closed, whatever number the channel had.
    held = os.dup2(channel, OPEN_FILES)
    os.closerange(CHANNEL, OPEN_FILES)
    os.closerange(OPEN_FILES + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    os.dup2(held, CHANNEL, inheritable=False)
    os.close(held)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir("/" if settings["files"] is None else FILES)
    # The keeper's own state is random: a replay in another sandbox would draw other numbers.
    random.seed(0)
    # Before the filter, which refuses to set limits.
    for name, most in settings["rlimits"].items():
        resource.setrlimit(getattr(resource, name), (most, most))
    instructions = bytes.fromhex(settings["filter"])
    program = Program(len(instructions) // 8, instructions)
    _control(libc, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program))


def serve(settings: dict[str, Any]) -> None:
    """Answer requests until the channel closes."""
    # What looks modules up by name, such as pickle and unittest, must find what the cells define, not this file.
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    names = module.__dict__
    names["__builtins__"] = builtins
    sys.argv = [""]
    cells = 0
    # One for all cells: code keeps it, as logging does.
    output = Tape(settings["output_bytes"])
    elsewhere = Elsewhere()
    while (frame := receive(CHANNEL)) is not None:
        request = json.loads(frame)
        if "id" not in request:  # an answer that the code no longer waited for
            continue
        cells += 1
        elsewhere.request = request["id"]
        reply = answer(request, names, f"<cell {cells}>", settings["value_bytes"], output, elsewhere)
        elsewhere.end()
        send(CHANNEL, reply)


class Elsewhere:
    """Functions of another process that code here may call while the host waits for the answer to ``request``."""

    def __init__(self) -> None:
        self.request: str | None = None
        self._number = 0
        self._lock = _thread.allocate_lock()  # threads of the code may call at the same time

    def end(self) -> None:
        """From here on nothing can be called, until there is another request."""
        with self._lock:
            self.request = None

    def function(self, name: str, about: str) -> Any:
        """The function of that name; ``about`` is its documentation."""

        def offered(*positional: Any, **arguments: Any) -> Any:
            return self._call({"function": name, "positional": positional, "arguments": arguments})

        offered.__name__ = offered.__qualname__ = name
        offered.__doc__ = about
        return offered

    def _call(self, wanted: dict[str, Any]) -> Any:
        with self._lock:
            if self.request is None:
                raise RuntimeError(f"{wanted['function']}() can only be called while a cell runs")
            self._number += 1
            number = self._number
            try:
                ask = plain(wanted, sys.maxsize)
            except (TypeError, ValueError, RecursionError) as error:
                raise TypeError(f"{wanted['function']}() takes plain data only: {error}") from None
            send(CHANNEL, json.dumps({"id": self.request, "ask": {**ask, "number": number}}).encode())
            reply: dict[str, Any] = {}
            while reply.get("number") != number:
                reply = json.loads(receive(CHANNEL) or b"null")
        sys.stdout.write(reply["output"])
        if reply["raised"] is not None:
            raise raised_elsewhere(*reply["raised"])
        return reply["value"]


def raised_elsewhere(kind: str, arguments: list[Any]) -> BaseException:
    """The exception that a function raised in another process, as one of Python's own."""
    kept = getattr(builtins, kind, None)
    if isinstance(kept, type) and issubclass(kept, BaseException):
        with contextlib.suppress(TypeError):  # it takes other arguments than it keeps
            return kept(*arguments)
    return RuntimeError(*arguments)


def raised_here(error: BaseException, most_bytes: int) -> tuple[str, list[Any]]:
    """What ``raised_elsewhere`` needs of an exception: its kind, by Python's names, and its arguments as plain data."""
    kind = next(each.__name__ for each in type(error).__mro__ if each.__module__ == "builtins")
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        if kind == type(error).__name__:
            return kind, plain(list(error.args), most_bytes)
    return kind, [cut(f"{type(error).__name__}: {error}", most_bytes)]


def answer(
    request: dict[str, Any], names: dict[str, Any], filename: str, value_bytes: int, output: Tape, elsewhere: Elsewhere
) -> bytes:
    """The reply to one request: the value, what was printed, what was raised."""
    output.clear()
    sys.stdout = sys.stderr = output
    began = time.process_time()
    reply: dict[str, Any] = {"id": request["id"]}
    try:
        if "code" in request:
            value = run(request["code"], names, filename)
            reply["shown"] = "" if value is None else cut(repr(value), output.most)
            with contextlib.suppress(TypeError, ValueError, RecursionError):
                reply["value"] = plain(value, value_bytes)
        elif "offer" in request:
            names.update({name: elsewhere.function(name, about) for name, about in request["offer"].items()})
        else:
            reply["value"] = plain(call(request, names), value_bytes)
    except BaseException as error:  # noqa: BLE001 - whatever the code raises is its result
        reply["reason"] = "memory" if isinstance(error, MemoryError) else "exception"
        reply["error"] = cut(error_text(error), output.most)
        if "positional" in request:
            with contextlib.suppress(BaseException):  # foreign exceptions may raise when they are looked at
                reply["raised"] = raised_here(error, output.most)
        reply.pop("value", None)
    reply["output"] = output.text()
    reply["cpu_s"] = time.process_time() - began
    # Code may print half characters, which UTF-8 does not have.
    return json.dumps(reply, ensure_ascii=False).encode("utf-8", "replace")


def run(code: str, names: dict[str, Any], filename: str) -> Any:
    """Run a cell; the value of its last statement if that is an expression."""
    # Tracebacks and inspect find the source of a cell here, as it is in no file.
    linecache.cache[filename] = (len(code), None, code.splitlines(keepends=True), filename)
    tree = ast.parse(code, filename)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(_compiled(tree, filename, "exec"), names)
        return None
    tree.body.pop()
    exec(_compiled(tree, filename, "exec"), names)
    return eval(_compiled(ast.Expression(last.value), filename, "eval"), names)


def _compiled(tree: ast.Module | ast.Expression, filename: str, mode: str) -> Any:
    # Otherwise the __future__ imports of this file would hold for the code, too.
    return compile(tree, filename, mode, dont_inherit=True)


def call(request: dict[str, Any], names: dict[str, Any]) -> Any:
    """Call a function that an earlier cell defined."""
    function = names.get(request["function"])
    if not callable(function):
        raise NameError(f"there is no function {request['function']!r}")
    return function(*request.get("positional", ()), **request["arguments"])


def plain(value: Any, most_bytes: int) -> Any:
    """``value`` if JSON can say it within ``most_bytes``; raises ``TypeError`` or ``ValueError`` if not.

    Lists and objects may be inside each other for ``MOST_LEVELS``: the host, which reads them recursively, ends the
    interpreter where it cannot.
    """
    text = json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    if len(text) > most_bytes:
        raise ValueError(f"the value takes {len(text)} bytes as JSON; at most {most_bytes} are let through")
    found = json.loads(text)
    level = [found]
    for _ in range(MOST_LEVELS + 1):
        inside = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        if not inside:
            return found
        level = [each for group in inside for each in group]
    raise ValueError(f"the value is nested in more than {MOST_LEVELS} levels")


def error_text(error: BaseException) -> str:
    """The traceback without the frames of this file."""
    try:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        each = trace
        while each is not None:  # functions that run elsewhere end in this file
            while each.tb_next is not None and each.tb_next.tb_frame.f_code.co_filename == __file__:
                each.tb_next = each.tb_next.tb_next
            each = each.tb_next
        return "".join(traceback.format_exception(type(error), error, trace, limit=-TRACEBACK_FRAMES))
    except BaseException:  # noqa: BLE001 - foreign exceptions may raise when they are looked at
        return f"{type(error).__name__}: (it cannot be shown)"


class Tape(io.TextIOBase):
    """Keeps the beginning of what is written."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self._parts: list[str] = []
        self._room = self.most + 1  # one more, so that a cut is seen

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, text: str) -> int:
        """Keep what there is room for."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if self._room > 0:
            # Only what is kept: code could fill the memory by printing.
            self._parts.append(text[: self._room])
            self._room -= len(text)
        return len(text)

    def text(self) -> str:
        """What was kept; says so where that is not all."""
        return cut("".join(self._parts), self.most)


def cut(text: str, most_bytes: int) -> str:
    """The beginning of ``text``, without what UTF-8 cannot say."""
    data = text[:most_bytes].encode("utf-8", "replace")
    whole = len(data) <= most_bytes and len(text) <= most_bytes
    return data[:most_bytes].decode("utf-8", "ignore") + ("" if whole else "\n[cut]")


def empty(folder: Path) -> None:
    """Remove all that is in ``folder``."""
    for entry in list(folder.iterdir()):
        if entry.is_symlink() or not entry.is_dir():
            entry.unlink()
            continue
        # Code may have taken away its own right to list or empty a folder.
        entry.chmod(0o700)
        for path, folders, _ in os.walk(entry):
            for inner in [Path(path, each) for each in folders]:
                if not inner.is_symlink():
                    inner.chmod(0o700)
        shutil.rmtree(entry)


def receive(source: int) -> bytes | None:
    """The next frame, or ``None`` where the other side has closed."""
    head = _exactly(source, LENGTH.size)
    return None if head is None else _exactly(source, LENGTH.unpack(head)[0])


def send(target: int, frame: bytes) -> None:
    """Write a frame."""
    view = memoryview(LENGTH.pack(len(frame)) + frame)
    while view:
        # A write may take only a part of what it is given.
        view = view[os.write(target, view) :]


def _exactly(source: int, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(source, size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


def _control(libc: ctypes.CDLL, *arguments: Any) -> None:
    """``prctl``; raises ``OSError``."""
    padded = [ctypes.c_ulong(each) if isinstance(each, int) else each for each in (*arguments, 0, 0, 0)[:5]]
    _checked(libc.prctl(*padded))


def _checked(result: int) -> None:
    """Raise ``OSError`` for a system call that failed."""
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    keep(socket.socket(fileno=int(sys.argv[1])))
