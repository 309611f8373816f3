"""An attack: code that tries to get out, and how it must be stopped.

``SECRET_FILE``, ``CANARY``, ``HOST_PID``, ``PORT``, ``LISTENER`` and ``HOST_ADDRESS`` in the code stand for a file with
the secret, a file that must not change, the process of the tests, a TCP port and a Unix socket that listen on the host,
and the address of the secret in the memory of that process. The value ``True`` of the last expression is an escape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SECRET = "gold-answer-73f1c2"

RAW = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def system_call(number, *arguments):
    padded = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = libc.syscall(ctypes.c_long(number), *padded)
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return True
"""
"""``system_call(number, …)``: past Python and past the C library's checks."""

NOT_PERMITTED = r"exception: (?s:.)*PermissionError: \[Errno 1\]"
NOT_FOUND = r"exception: (?s:.)*(FileNotFoundError|NotADirectoryError): \[Errno (2|20)\]"
READ_ONLY = r"exception: (?s:.)*Error: \[Errno (13|30)\]"
NO_MEMORY = r"memory: (?s:.)*MemoryError"
NO_SPACE = r"exception: (?s:.)*\[Errno (28|27)\]"
NOTHING = r"value: False"
TIMED_OUT = r"timeout: no answer within"


@dataclass(frozen=True)
class Attack:
    """``stopped`` is a pattern of what must come of it: ``REASON: ERROR`` or ``value: VALUE``.

    ``works_outside``: the same code succeeds in an interpreter of its own without a sandbox, and does no harm there.
    """

    name: str
    code: str
    stopped: str
    works_outside: bool = False
    timeout_s: float = 30.0

    def aimed(self, targets: Mapping[str, Any]) -> str:
        """The code with the targets named."""
        code = self.code
        for name, target in targets.items():
            code = code.replace(name, str(target))
        return code
