"""A session: one interpreter in one sandbox, whose names stay from call to call."""

from __future__ import annotations

import contextlib
import math
import re
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from agentmill.schemas.ids import digest
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.synthesis.sandbox.backend import Backend, watch
from agentmill.synthesis.sandbox.container import Container, TooLarge, receive, send
from agentmill.synthesis.sandbox.limits import Limits, Reason, ReplayError, Result, SandboxError, SandboxFull
from agentmill.synthesis.sandbox.memory import Account, Budget, shared_budget

_ADDRESS = re.compile(r"(?<= at )0x[0-9a-f]{6,16}(?=>)")
_CPU_SHARE = 0.7
"""Of the limit. The kernel keeps it in ticks, which on a busy machine are more than the time that it tells after."""
_REPLAY_CALLS = 10
"""A replay may take as long as this many calls."""
_SIGNALLED = "the interpreter was ended by signal {}"
_TOO_LARGE = "the answer was larger than is let out"
_CUT_MARK_BYTES = len("\n[cut]")
"""What an interpreter adds to a text that it has cut."""


class Ask(Record):
    """A call of an offered function, made by the code that runs; ``number`` tells its answer from others."""

    function: str
    positional: list[Any]
    arguments: JsonObject
    number: int


class Reply(Record):
    """What an interpreter says; anything else is refused."""

    id: str
    ask: Ask | None = None
    value: Any = None
    shown: str = ""
    output: str = ""
    error: str | None = None
    reason: Reason | None = None
    cpu_s: float = 0.0
    raised: tuple[str, list[Any]] | None = None


class Done(Record):
    """A call that was made: a cell or a function with arguments, and a digest of what it gave."""

    request: JsonObject
    result: str
    timeout_s: float | None = None
    """The call's own, if it had one."""


class Session:
    """Blocking, for one thread at a time, and for the process that made it: a fork finds it closed.

    Raises ``SandboxUnavailable`` where no sandbox can be had, ``SandboxError`` where one could be had before. Without
    ``wait`` it does not wait for memory, but raises ``SandboxFull`` where there is none now.
    """

    def __init__(
        self, backend: Backend, limits: Limits = Limits(), budget: Budget | None = None, wait: bool = True
    ) -> None:
        self.limits = limits
        self._backend = backend
        self._container: Container | None = None
        self._account: Account | None = None
        self._other: Session | None = None
        """Where the functions run that are offered to the code here."""
        self._offered: frozenset[str] = frozenset()
        self._channel: socket.socket | None = None
        self._done: list[Done] = []
        self._used = False
        """Whether the interpreter was ever sent anything: its answer may not have come."""
        self._closed = False
        self._budget = shared_budget() if budget is None else budget
        watch(self)
        self._account = self._budget.open(limits, wait)
        self.restart()

    @property
    def alive(self) -> bool:
        """Whether there is an interpreter; it dies of ``timeout``, ``cpu``, ``died``, ``too_large``, ``protocol``."""
        return self._channel is not None

    def run(self, code: str, timeout_s: float | None = None) -> Result:
        """Run ``code`` as a notebook runs a cell: names stay, and a last expression is the value.

        Raises ``SandboxError`` if the interpreter is dead or the session closed.
        """
        return self._ask({"code": code}, timeout_s)

    def call(self, function: str, arguments: Mapping[str, Any] = {}, timeout_s: float | None = None) -> Result:
        """Call a function that a cell has defined, with JSON as keyword arguments; its value must be JSON too."""
        return self._ask({"function": function, "arguments": dict(arguments)}, timeout_s)

    def offer(self, other: Session, functions: Mapping[str, str]) -> Result:
        """Let the code here call ``functions`` of ``other``, by name and with what they say of themselves.

        They run in the sandbox of ``other``, with all that they know; JSON goes in and comes out. ``other`` must be of
        the same budget, and have no functions offered to it.
        """
        self._other = other
        return self._ask({"offer": dict(functions)}, None)

    def restart(self) -> None:
        """A fresh interpreter and an empty ``/tmp``; also after a death. Raises ``SandboxError`` once closed."""
        if self._closed:
            raise SandboxError("the session is closed")
        self._other, self._offered = None, frozenset()
        # Nothing has run in this interpreter, so it is as fresh as another one.
        if self.alive and not self._used:
            return
        self._drop_channel()
        self._done, self._used = [], False
        try:
            self._start()
        except SandboxFull:
            raise
        except SandboxError:
            self._drop_container()
            self._start()

    def _start(self) -> None:
        if self._container is None:
            self._account = self._account or self._budget.open(self.limits)
            try:
                self._container = Container(self._backend, self.limits)
            except BaseException:
                self._drop_container()
                raise
            self._account.keeper = self._container.keeper
        assert self._account is not None
        self._channel = self._container.interpreter()
        self._budget.renew(self._account)

    def snapshot(self) -> bytes:
        """All calls so far and digests of their results, as JSON. Raises ``SandboxError`` for a dead interpreter."""
        self._living()
        return msgspec.json.encode(self._done)

    def restore(self, snapshot: bytes, exact: bool = True, other: Callable[[], Session | None] | None = None) -> None:
        """Make the calls of a snapshot again, of this or of another session, in a fresh interpreter.

        ``other`` gives the session of the functions that were offered, as it was then; it is asked for only if
        calls are made. Without functions that were offered it may be left out.

        Raises ``ReplayError`` if one ends the interpreter, or if it comes to another result (the code depends on time,
        chance or addresses) and ``exact`` is set, or if all take longer than ten calls may.
        """
        try:
            done = msgspec.json.decode(snapshot, type=list[Done])
        except msgspec.DecodeError as error:
            raise SandboxError(f"this is no snapshot of a session: {error}") from None
        # It is where it should be, as right after the snapshot; a replay would only take time.
        if self.alive and done == self._done:
            return
        self.restart()
        self._other = None if other is None else other()
        # The memory is held for the whole replay: between two calls of it another session could take it.
        with self._budget.running(self._accounts()):
            self._replay(done, exact)

    def _replay(self, done: list[Done], exact: bool) -> None:
        latest = time.monotonic() + _REPLAY_CALLS * self.limits.timeout_s
        for number, each in enumerate(done, start=1):
            result = self._ask(each.request, each.timeout_s, latest)
            if not self.alive:
                raise ReplayError(f"call {number} of {len(done)} did not end well when it was replayed: {result.error}")
            # A state that was only nearly reached would give the judge another answer than the agent saw.
            if exact and _digest(result) != each.result:
                raise ReplayError(f"call {number} of {len(done)} came to another result when it was replayed")

    def close(self) -> None:
        """End the sandbox. May be called twice."""
        self._closed = True
        self._drop_channel()
        self._drop_container()

    def let_go(self) -> None:
        """As ``Inherited.let_go``. Its container lets go by itself."""
        self._closed, self._container, self._account = True, None, None
        self._drop_channel()

    def __del__(self) -> None:
        self.close()

    def _ask(self, request: JsonObject, timeout_s: float | None, latest: float = math.inf) -> Result:
        """``latest``: monotonic seconds at which the call must have ended, whatever its timeout. A wait for memory does
        not count."""
        channel, accounts = self._living(), self._accounts()
        self._budget.enter(accounts)
        try:
            return self._exchange(channel, request, timeout_s, latest)
        finally:
            self._budget.leave(accounts)

    def _accounts(self) -> list[Account]:
        """Its own, and that of the session that its code may call: both run at the same time."""
        found = [self._account, None if self._other is None else self._other._account]
        return [each for each in found if each is not None]

    def _exchange(
        self, channel: socket.socket, request: JsonObject, timeout_s: float | None, latest: float, record: bool = True
    ) -> Result:
        """Send a request and read its answer. ``record``: it is part of snapshots."""
        began = time.monotonic()
        # Random for each call: the code can write to the channel, but not answer a call that has not come yet.
        reply_id = secrets.token_hex(8)
        deadline = min(began + (self.limits.timeout_s if timeout_s is None else timeout_s), latest)
        frame = msgspec.json.encode({"id": reply_id, **request})
        if len(frame) > self.limits.value_bytes:
            error = f"the call takes {len(frame)} bytes; at most {self.limits.value_bytes} are let in"
            return Result(error=error, reason="exception")
        # Before it is sent: an answer may then come, whatever happens here.
        self._used = True
        self._offered |= frozenset(request.get("offer", ()))
        try:
            send(channel, frame, deadline)
            result = self._result(channel, reply_id, deadline)
        except TimeoutError:
            result = Result(error=f"timeout: no answer within {deadline - began:g} s", reason="timeout")
        except TooLarge:
            result = Result(error=_TOO_LARGE, reason="too_large")
        except OSError:
            result = self._ended()
        except BaseException:  # an interrupt: whatever comes of the call must not be taken for a later one's
            self._kill()
            raise
        # After these the state of the interpreter is not known.
        if result.reason not in (None, "exception", "memory"):
            self._kill()
        elif record:
            self._done.append(Done(request=request, result=_digest(result), timeout_s=timeout_s))
        return msgspec.structs.replace(result, wall_s=time.monotonic() - began)

    def _result(self, channel: socket.socket, reply_id: str, deadline: float) -> Result:
        """What comes of a request; calls of offered functions on the way are carried out. Raises as ``receive``."""
        while (answer := receive(channel, self.limits.answer_bytes, deadline)) is not None:
            reply = _decoded(answer, reply_id)
            if isinstance(reply, Result):
                return reply
            if reply.ask is None:
                return _read(reply, self.limits)
            if self._other is None or reply.ask.function not in self._offered:
                return Result(error="the interpreter called a function that is not offered", reason="protocol")
            send(channel, _answered(reply.ask, self._other, deadline), deadline)
        return self._ended()

    def _living(self) -> socket.socket:
        if self._channel is None:
            raise SandboxError("the session is closed" if self._closed else "the interpreter is dead; restart it")
        return self._channel

    def _ended(self) -> Result:
        """The result of a call during which the channel closed; the interpreter may have closed it and live on."""
        assert self._container is not None
        with contextlib.suppress(SandboxError):
            self._container.end()
        death = self._container.death()
        if death is None or death.code is None:
            return Result(error="the sandbox has ended", reason="died")
        return _obituary(death.code, death.cpu_s, self.limits)

    def _kill(self) -> None:
        self._drop_channel()
        try:
            if self._container is not None:
                self._container.end()
        except SandboxError:
            self._drop_container()

    def _drop_channel(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _drop_container(self) -> None:
        container, self._container = self._container, None
        account, self._account = self._account, None
        if container is not None:
            container.close()
        if account is not None:
            self._budget.close(account)


def _answered(ask: Ask, other: Session, deadline: float) -> bytes:
    """The frame with what a call of an offered function came to."""
    request = {"function": ask.function, "positional": ask.positional, "arguments": ask.arguments}
    try:
        result = other._exchange(other._living(), request, deadline - time.monotonic(), math.inf, record=False)
    except SandboxError as error:
        result = Result(error=str(error), reason="died")
    raised = None if result.ok else result.raised or ("RuntimeError", [result.error])
    answer = {"number": ask.number, "value": result.value, "output": result.output, "raised": raised}
    return msgspec.json.encode(answer)


def _decoded(answer: bytes | bytearray, reply_id: str) -> Reply | Result:
    """An interpreter's answer to a request, or the result of one that is none."""
    try:
        reply = msgspec.json.decode(answer, type=Reply)
        # as a snapshot will need, and another session
        digest(reply.value if reply.ask is None else [reply.ask.positional, reply.ask.arguments])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return Result(error=f"the interpreter gave no answer that can be read: {error}", reason="protocol")
    if reply.id != reply_id or reply.reason not in (None, "exception", "memory"):
        return Result(error="the interpreter did not answer the call", reason="protocol")
    return reply


def _read(reply: Reply, limits: Limits) -> Result:
    """The result that an interpreter gave, if it is not too large."""
    texts = (reply.shown, reply.output, reply.error or "")
    if (
        max(len(text.encode()) for text in texts) > limits.output_bytes + _CUT_MARK_BYTES
        or len(msgspec.json.encode(reply.value)) > limits.value_bytes
        or (reply.raised is not None and len(msgspec.json.encode(reply.raised)) > 6 * limits.output_bytes + 100)
    ):
        return Result(error=_TOO_LARGE, reason="too_large")
    return Result(
        value=reply.value,
        # Addresses differ in every process, and a replay has to come to the same digests.
        shown=_ADDRESS.sub("0x…", reply.shown),
        output=_ADDRESS.sub("0x…", reply.output),
        error=_ADDRESS.sub("0x…", reply.error) if reply.error is not None else None,
        reason=reply.reason,
        cpu_s=reply.cpu_s,
        raised=reply.raised,
    )


def _obituary(code: int, cpu_s: float, limits: Limits) -> Result:
    # The kernel's limit ends it by a signal, as a crash does; only the time says which it was.
    if cpu_s >= _CPU_SHARE * limits.cpu_s and code < 0:
        error = f"the interpreter has used up its {limits.cpu_s} s of processor time"
        return Result(error=error, reason="cpu", cpu_s=cpu_s)
    how = _SIGNALLED.format(-code) if code < 0 else f"the interpreter ended itself with code {code}"
    return Result(error=how, reason="died", cpu_s=cpu_s)


def _digest(result: Result) -> str:
    """Of all that does not depend on how fast it went."""
    return digest(result.value, result.shown, result.output, result.error, result.reason)
