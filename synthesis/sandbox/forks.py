"""What a fork of this process does with the sandboxes that it inherits: it lets go of them, for they are its parent's.

Copies of their descriptors would keep them alive after the parent, and a lock that a thread of the parent held at the
fork would stay held.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Protocol


class Inherited(Protocol):
    """What must not be used by a fork as it is."""

    def let_go(self) -> None:
        """In the fork: close descriptors, renew locks; whatever others share is left as it is."""


_known: weakref.WeakSet[Inherited] = weakref.WeakSet()


def watch(each: Inherited) -> None:
    """Have forks let go of it."""
    _known.add(each)


def _let_go() -> None:
    for each in list(_known):
        with contextlib.suppress(OSError):  # closed by another thread during the fork
            each.let_go()
    _known.clear()


os.register_at_fork(after_in_child=_let_go)
