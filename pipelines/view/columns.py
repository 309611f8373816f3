"""Columns of the index: what a list of very many rows needs, small enough to be loaded at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

SHOWN_CHARACTERS = 100


class Texts:
    """A column of texts as codes into its distinct values; -1 stands for nothing."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self.codes: list[int] = []

    def append(self, value: str | None) -> int:
        """The code of the value of the next row."""
        code = -1 if value is None else self.known.setdefault(value, len(self.known))
        self.codes.append(code)
        return code

    def encoded(self) -> dict[str, Any]:
        """As the index holds it."""
        return {"values": list(self.known), "codes": self.codes}


class TextSets:
    """A column of sets of texts: codes into the distinct sets (``sets[0]`` is empty) of codes into the values."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self.rows: dict[int, set[int]] = defaultdict(set)

    def add(self, row: int, value: str) -> None:
        """Put a value into the set of a row."""
        self.rows[row].add(self.known.setdefault(shortened(value), len(self.known)))

    def of(self, row: int) -> list[str]:
        """The set of a row."""
        values = list(self.known)
        return [values[code] for code in self.rows.get(row, ())]

    def encoded(self, rows: int) -> dict[str, Any]:
        """As the index holds it."""
        sets: dict[tuple[int, ...], int] = {(): 0}
        codes = [sets.setdefault(tuple(sorted(self.rows.get(row, ()))), len(sets)) for row in range(rows)]
        return {"values": list(self.known), "sets": list(sets), "codes": codes}


def places(ids: Iterable[str | None], known: dict[str, int]) -> list[int]:
    """Where each of ``ids`` stands; -1 for nothing and for what is unknown."""
    return [-1 if each is None else known.get(each, -1) for each in ids]


def shortened(text: str) -> str:
    """The beginning of a text in one line."""
    line = " ".join(text[: 4 * SHOWN_CHARACTERS].split())
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[: SHOWN_CHARACTERS - 1]}…"
