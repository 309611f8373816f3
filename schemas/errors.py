"""The error a user can act on, and the ends a user asked for."""

from __future__ import annotations

import contextlib
import difflib
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator

from agentmill.schemas.error_codes import ErrorCode

CODE_FILE = "AGENTMILL_CODE_FILE"
"""The environment variable that names a file, into which a training writes the code of what stopped it."""

_LABELLED = re.compile(r"(.*) \[([a-z0-9-]+)\]")


class UserError(Exception):
    """A mistake of the user: one or two lines that say what was given, what was expected and what to do next.

    ``code`` names the mistake whatever the wording. The command line prints the message without a traceback, with the
    code at the end of its first line, and exits with 2.
    """

    def __init__(self, message: str, code: ErrorCode) -> None:
        super().__init__(message, code)  # both, so that it can be pickled
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])

    def labelled(self) -> str:
        """The message as it is printed: ``"there is no table at runs/x [table-missing]"``."""
        first, *rest = str(self).split("\n")
        return "\n".join([f"{first} [{self.code}]", *rest])


def parse_labelled(printed: str, otherwise: ErrorCode) -> UserError:
    """The last error that another process has ``printed``; its last two lines as ``otherwise`` if it printed none."""
    lines = printed.strip().splitlines()
    for number in reversed(range(len(lines))):
        found = _LABELLED.fullmatch(lines[number])
        # Other output may end with a word in brackets.
        if found is not None and found[2] in set(ErrorCode):
            return UserError("\n".join([found[1], *lines[number + 1 :]]), ErrorCode(found[2]))
    return UserError("\n".join(lines[-2:]), otherwise)


RAISE_OR_WAIT = "raise that limit, or wait,"


class LimitReached(Exception):
    """A limit that the user has set for a run, or a provider for the user, is reached; what was done by then is kept.

    The command line prints it with ``advice`` and the command that goes on, without a traceback, and exits with 1.
    """

    def __init__(self, message: str, advice: str = RAISE_OR_WAIT) -> None:
        super().__init__(message)
        self.advice = advice


class NothingUsed(Exception):
    """A stage dropped all its inputs: the reasons, an example of each, and what to do next, in a few lines.

    The command line prints it without a traceback and exits with 1.
    """


def nearest(given: str, known: Iterable[str]) -> str | None:
    """The name of ``known`` that is most like ``given``, if one is."""
    close = difflib.get_close_matches(given, list(known), n=1, cutoff=0.5)
    return close[0] if close else None


def near_match(given: str, known: Iterable[str]) -> str:
    """``" Did you mean 'x'?"`` for the nearest of ``known``, or an empty string."""
    close = nearest(given, known)
    return "" if close is None else f" Did you mean {close!r}?"


def is_interrupt(error: BaseException) -> bool:
    """Whether ``error`` is an interrupt, or came up while one unwound the stack.

    Python lets an interrupt in between any two instructions; where that is inside a lock (an import, a queue),
    releasing it fails with another exception, which then takes the place of ``KeyboardInterrupt``. What was raised
    ``from None`` stands for itself.
    """
    at: BaseException | None = error
    while at is not None and not isinstance(at, KeyboardInterrupt):
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
    return at is not None


_AGAIN_S = 0.05
"""An interrupt that Python ignored comes again after this time."""


def interrupt_main() -> None:
    """Interrupt the main thread as on Ctrl-C, unless SIGINT is ignored or ends the process at once."""
    if callable(signal.getsignal(signal.SIGINT)):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@contextlib.contextmanager
def ignored_interrupts_repeated(again: Callable[[], None] = interrupt_main) -> Iterator[None]:
    """Call ``again`` soon after an interrupt that came within a destructor or a weak reference's callback.

    Python prints a traceback for such an interrupt and goes on as if there had been none.
    """
    earlier = sys.unraisablehook

    def on_ignored(arguments: sys.UnraisableHookArgs) -> None:
        if isinstance(arguments.exc_value, KeyboardInterrupt):
            # By a timer: what this hook raises itself would be ignored as well.
            timer = threading.Timer(_AGAIN_S, again)
            timer.daemon = True
            timer.start()
        else:
            earlier(arguments)

    sys.unraisablehook = on_ignored
    try:
        yield
    finally:
        sys.unraisablehook = earlier


UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What moves the cursor, changes colours or turns the direction of writing; a line break and a tab do not count."""


def printable(text: str) -> str:
    """``text`` with the codes of characters that would act on a terminal: what data holds may come from anywhere."""
    return UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
