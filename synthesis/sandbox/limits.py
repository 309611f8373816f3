"""What a session in a sandbox may use, and what a call in it gave."""

from __future__ import annotations

import math
from typing import Any, Literal

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import Record

MIB = 2**20
MOST_TIMEOUT_S = 86_400

Reason = Literal["exception", "timeout", "cpu", "memory", "died", "too_large", "protocol"]
"""Why a call gave nothing: the code raised; it took too long; the interpreter used up its processor time, or its
memory; it ended itself or crashed; its answer was larger than the host accepts, or none that the host understands."""


class Limits(Record):
    """Bounds of one session. The kernel keeps all but ``timeout_s``, ``output_bytes`` and ``value_bytes``, which the
    host keeps."""

    timeout_s: float = 10.0
    """Wall time of one call; the interpreter is killed after it."""
    cpu_s: int = 60
    """Processor time of one interpreter, all its calls together, until it is restarted."""
    memory_bytes: int = 512 * MIB
    """Address space of the interpreter, which is always one process."""
    files_bytes: int = 16 * MIB
    """What ``/tmp`` holds, the only place that can be written; it is in memory."""
    threads: int = 32
    """Threads of the interpreter."""
    output_bytes: int = 64 * 2**10
    """What is kept of printed text, of a shown value and of a traceback, each."""
    value_bytes: int = MIB
    """JSON of the code, arguments or value of one call."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            # This form also refuses NaN.
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(
                    f"sandbox limit {name} is {getattr(self, name)}; expected a number above 0",
                    ErrorCode.NUMBER_OUT_OF_RANGE,
                )
        if self.timeout_s > MOST_TIMEOUT_S:
            raise UserError(
                f"sandbox limit timeout_s is {self.timeout_s}; expected at most {MOST_TIMEOUT_S} (a day)",
                ErrorCode.NUMBER_OUT_OF_RANGE,
            )

    @property
    def answer_bytes(self) -> int:
        """The longest answer that the host reads: a value and four texts, each byte of these escaped at worst."""
        return self.value_bytes + 4 * 6 * self.output_bytes + 2**10


class Result(Record):
    """What a call in a session gave. All of it but ``reason``, ``wall_s`` comes from the sandbox and is not to be
    trusted: code that runs there can say what it likes about itself.

    ``value`` is what JSON can say of the returned value (of the last expression of a cell), else ``None``; ``shown`` is
    the ``repr`` of a cell's last expression, and ``output`` what was printed. Memory addresses are left out of texts,
    so that they are the same in every process.
    """

    value: Any = None
    shown: str = ""
    output: str = ""
    error: str | None = None
    reason: Reason | None = None
    wall_s: float = 0.0
    cpu_s: float = 0.0
    raised: tuple[str, list[Any]] | None = None
    """Of a call that the code of another session made: the built-in exception that it is raised as there, and its
    arguments."""

    @property
    def ok(self) -> bool:
        """Whether the code ran to its end."""
        return self.reason is None


class SandboxUnavailable(UserError):
    """Code cannot be isolated here; the message says what to install or allow."""


class SandboxError(Exception):
    """A session cannot be used as asked: it is closed, it broke, or a replay came to other results."""


class SandboxFull(SandboxError):
    """No session may be had: those of others keep all places, or all memory, for as long as was waited."""


class ReplayError(SandboxError):
    """Code that was replayed ended its interpreter, or came to another result than before."""
