"""Several dialects of one data set: each text is in the first of them that reads it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from schemas.formats.dialects.dialect import Dialect, Spoken, calls_of, unsayable
from schemas.formats.format import FormatError
from schemas.trajectory import Action, AnyAction


class SeveralDialects:
    """``dialects`` in the order in which they are tried; their ``terminal`` calls and ``results`` are taken together.

    ``only_results`` holds if one of them says so.
    """

    def __init__(self, dialects: Sequence[Dialect]) -> None:
        self._dialects = tuple(dialects)
        self.terminal = [name for dialect in dialects for name in dialect.terminal]
        self.results = [opening for dialect in dialects for opening in dialect.results]
        self.only_results = any(dialect.only_results for dialect in dialects)

    def read(self, text: str) -> Spoken | None:
        """What the first dialect reads that reads anything."""
        for place, dialect in enumerate(self._dialects):
            spoken = dialect.read(text)
            if spoken is not None:
                return spoken if place == 0 else msgspec.structs.replace(spoken, plainest=None)
        return None

    def compose(self, actions: Sequence[Action]) -> str:
        """The plainest text in the first dialect that has words for ``actions`` which no earlier one reads otherwise.

        Raises ``FormatError`` (``unsayable``).
        """
        why = unsayable("no dialect has words for it")
        for dialect in self._dialects:
            try:
                text = dialect.compose(actions)
            except FormatError as error:
                why = error
                continue
            if calls_of(self._read(text)) == calls_of(actions):
                return text
        raise why

    def _read(self, text: str) -> list[AnyAction]:
        spoken = self.read(text)
        return spoken.actions if spoken is not None else []
