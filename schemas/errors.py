"""The error a user can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake of the user: one or two lines that say what was given, what was expected and what to do next.

    The command line prints it without a traceback and exits with 2.
    """


def near_match(given: str, known: Iterable[str]) -> str:
    """``" Did you mean 'x'?"`` for the nearest of ``known``, or an empty string."""
    close = difflib.get_close_matches(given, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""
