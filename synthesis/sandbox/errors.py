"""What goes wrong with a sandbox itself; what the code in it does wrong is a ``Result``."""

from __future__ import annotations

from schemas.errors import UserError


class SandboxUnavailable(UserError):
    """Code cannot be isolated here; the message says what to install or allow."""


class SandboxError(Exception):
    """A session cannot be used as asked: it is closed, it broke, or a replay came to other results."""


class SandboxFull(SandboxError):
    """All memory that sandboxes may take together stayed reserved for as long as was waited."""


class ReplayError(SandboxError):
    """Code that was replayed ended its interpreter, or came to another result than before."""
