"""Code that a model or a data set wrote, run where it can do no harm. What that means, and what not: docs/sandbox.md.

A backend is one module and one line here.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

from agentmill.schemas.registry import Registry
from agentmill.synthesis.sandbox.backend import Backend
from agentmill.synthesis.sandbox.limits import (
    Limits,
    ReplayError,
    Result,
    SandboxError,
    SandboxFull,
    SandboxUnavailable,
)
from agentmill.synthesis.sandbox.pool import Pool, shared
from agentmill.synthesis.sandbox.session import Session

__all__ = [
    "BACKENDS",
    "Limits",
    "Pool",
    "ReplayError",
    "Result",
    "SandboxError",
    "SandboxFull",
    "SandboxUnavailable",
    "Session",
    "backend",
    "pool",
]

DEFAULT = "bubblewrap"
VARIABLE = "AGENTMILL_SANDBOX"
"""The environment variable that accepts another backend by name."""

BACKENDS: Registry[Callable[[], Backend]] = Registry(
    "sandbox backend",
    {
        "bubblewrap": "agentmill.synthesis.sandbox.bubblewrap:Bubblewrap",
        "seccomp": "agentmill.synthesis.sandbox.backend:Seccomp",
    },
)


def backend(name: str | None = None) -> Backend:
    """The backend of that name, by default the one that ``AGENTMILL_SANDBOX`` names. Raises ``UserError``."""
    return _made(name or os.environ.get(VARIABLE) or DEFAULT)


def pool(limits: Limits = Limits(), purpose: str = "") -> Pool:
    """The warm sandboxes of this process for these limits. Who takes a session while it holds one of another pool
    names a ``purpose`` of its own (see ``Pool``)."""
    return shared(backend(), limits, purpose)


@functools.cache
def _made(name: str) -> Backend:
    made: Backend = BACKENDS.load(name)()
    return made
