"""Bounds on what others made: models with code of their own, damaged files, and chat templates, which are programs."""

from __future__ import annotations

import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from schemas.errors import UserError

RENDER_S = 20.0
"""For one conversation under a chat template; templates in use take milliseconds."""
RENDER_BYTES = 2**31
"""Memory that it may take on top of what is there."""
MOST_CHARACTERS = 2**26
"""Of a rendered conversation."""
MOST_TEMPLATE_CHARACTERS = 2**20
ADVICE = "name a file with another template as `chat_template`, or take another model"


@contextmanager
def load_errors(folder: Path) -> Iterator[None]:
    """Raises ``UserError`` for whatever a library says of the files of the model in ``folder``.

    A model with code of its own that may not be run (``trust_remote_code``) is refused in one line.
    """
    try:
        yield
    except (UserError, ImportError, MemoryError):
        raise
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":  # of torch, for a GPU
            raise
        if "trust_remote_code" in str(error):
            raise UserError(
                f"the model {folder} needs code of its own; read it, then set trust_remote_code, or take another model"
            ) from error
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"the model {folder} cannot be loaded ({type(error).__name__}: {reason})\n"
            "its files are damaged, incomplete or of a kind that transformers does not know here: copy the folder again"
        ) from error


def check_template(source: str) -> None:
    """Raises ``UserError`` for a chat template that is too long to be one."""
    if len(source) > MOST_TEMPLATE_CHARACTERS:
        raise UserError(
            f"the chat template has {len(source):,} characters, expected {MOST_TEMPLATE_CHARACTERS:,} at most\n{ADVICE}"
        )


def rendered(render: Callable[[], str]) -> str:
    """The text of a chat template. Raises ``UserError`` if that takes too long, or too much memory, or is too long.

    The bounds on time and memory hold in the main thread, where trainings render.
    """
    if threading.current_thread() is not threading.main_thread():
        return render()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, _too_late)
    try:
        # Again each second: where the first lands in a destructor, Python drops it.
        signal.setitimer(signal.ITIMER_REAL, RENDER_S, 1.0)
        _limit_memory(limits)
        text = render()
    except MemoryError as error:
        raise UserError(f"the chat template takes more than {RENDER_BYTES:,} bytes of memory\n{ADVICE}") from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGALRM, handler)
    if len(text) > MOST_CHARACTERS:
        raise UserError(
            f"the chat template makes {len(text):,} characters of a conversation, expected {MOST_CHARACTERS:,} at most"
            f"\n{ADVICE}"
        )
    return text


def _limit_memory(limits: tuple[int, int]) -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + RENDER_BYTES
    soft, hard = limits
    if soft == resource.RLIM_INFINITY or most < soft:
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def _too_late(number: int, frame: FrameType | None) -> NoReturn:
    del number, frame
    raise UserError(f"the chat template takes more than {RENDER_S:g} s for one conversation\n{ADVICE}")
