"""Data as scripts: files that a page can load from a disk, where it may not fetch.

An entry is a call, ``agentmill.add('runs',17,'verdict','{"name": …}')``: the shelf, the place on it, the kind of the
entry, and its JSON as a text. So a browser parses one string; nothing in it is ever code. Entries of a place may come
in any order and at any time, since files are appended to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

BUFFER_BYTES = 16 * 2**20


class JsShards:
    """``FOLDER/NAME-00000.js`` …, each with the entries of ``per_file`` places."""

    def __init__(self, folder: Path, name: str, per_file: int) -> None:
        self.folder = folder
        self.name = name
        self.per_file = per_file
        self.files: set[int] = set()
        self._waiting: dict[int, list[bytes]] = defaultdict(list)
        self._bytes = 0

    def __enter__(self) -> JsShards:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.flush()

    def add(self, place: int, kind: str, json: bytes) -> None:
        """Put the JSON text of a value on the shelf."""
        entry = b"agentmill.add('%b',%d,'%b',%b);\n" % (self.name.encode(), place, kind.encode(), literal(json))
        self._waiting[place // self.per_file].append(entry)
        self._bytes += len(entry)
        if self._bytes > BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        self.files.update(self._waiting)
        for number, entries in self._waiting.items():
            # Opened anew each time: a view may have more files than a process may hold open.
            with (self.folder / f"{self.name}-{number:05d}.js").open("ab") as file:
                file.writelines(entries)
        self._waiting.clear()
        self._bytes = 0


def literal(json: bytes) -> bytes:
    """JSON text as a JavaScript string in single quotes. It holds no ``<``, so it ends no script wherever it is."""
    text = json.replace(b"\\", b"\\\\").replace(b"'", b"\\'").replace(b"<", b"\\x3c")
    # Line ends within a string for JavaScript before ES2019, though not for JSON.
    return b"'%b'" % text.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")


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
    """Where each of ``ids`` is; -1 for nothing and for what is unknown."""
    return [-1 if each is None else known.get(each, -1) for each in ids]


def shortened(text: str) -> str:
    """The beginning of a text in one line."""
    line = " ".join(text[: 4 * SHOWN_CHARACTERS].split())
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[: SHOWN_CHARACTERS - 1]}…"
