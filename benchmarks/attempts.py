"""What was tried in the proof: each run before it begins and again when it is finished, one line of JSON each."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError

ATTEMPTS = "attempts.jsonl"


class Attempt(msgspec.Struct, frozen=True):
    """A run that is begun or goes on, noted before, and again when it is ``finished``.

    ``recipe`` is the digest of its file, so that a change after a look shows.
    """

    seed: int
    name: str
    recipe: str
    finished: bool
    preview: bool = False

    @property
    def key(self) -> tuple[int, str]:
        """The run."""
        return self.seed, self.name


def note(file: Path, attempt: Attempt) -> None:
    """Add an attempt to those in ``file``."""
    file.parent.mkdir(parents=True, exist_ok=True)
    torn = file.exists() and not file.read_bytes().endswith(b"\n")
    with file.open("ab") as opened:
        opened.write((b"\n" if torn else b"") + msgspec.json.encode(attempt) + b"\n")


def read_attempts(file: Path) -> list[Attempt]:
    """The attempts in a file, none without one. A line that was not written to its end is passed over.

    Raises ``UserError`` for a file of something else.
    """
    found = []
    for number, line in enumerate(file.read_bytes().splitlines(keepends=True) if file.exists() else [], 1):
        try:
            found.append(msgspec.json.decode(line, type=Attempt))
        except msgspec.ValidationError as error:
            raise UserError(f"{file}, line {number}, is no attempt: {error}", ErrorCode.DAMAGED_FILE) from error
        except msgspec.DecodeError:
            continue
    return found


def last_of_each(attempts: Iterable[Attempt]) -> dict[tuple[int, str], Attempt]:
    """The last attempt at each run."""
    return {each.key: each for each in attempts}
