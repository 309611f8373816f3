"""A table as lines of text: whole and aligned, or fitted into the width of a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from rich.cells import cell_len, chop_cells

GAP = 2
"""Spaces before each column."""
NARROWEST = 7
"""Text is not folded into less than this; where that is too wide still, the table becomes blocks."""
SEAMS = re.compile(r"(?<=[\s_/-])")
"""Where text is folded by preference: after a space, and in names such as ``held_out_tasks``."""


def laid_out(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], room: int | None
) -> list[str]:
    """The lines of a table: a head, a rule and the rows; columns that are ``right`` hold numbers.

    No line is wider than ``room``: long cells go on in the next line, and where that is not enough, each row becomes
    a block of lines. Without ``room``, nothing is folded.
    """
    widths = fitted(columns, rows, right, room)
    if widths is None:
        return [line for row in rows for line in block(columns, row, room or 0)]
    rule = ["-" * width for width in widths]
    return [line for row in [columns, rule, *rows] for line in row_lines(row, widths, right)]


def fitted(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], room: int | None
) -> list[int] | None:
    """The widths of columns, of which the widest are made narrower until all fit; ``None`` if they cannot.

    Numbers are never folded, and heads only between words, before any text is.
    """
    cells = [max((cell_len(row[i]) for row in rows), default=0) for i in range(len(columns))]
    words = [max(map(cell_len, column.split())) for column in columns]
    widths = [max(cell_len(column), widest) for column, widest in zip(columns, cells, strict=True)]
    texts = [widest if to_right else min(widest, NARROWEST) for widest, to_right in zip(cells, right, strict=True)]
    for needed in (cells, texts):
        least = list(map(max, needed, words))
        while room is not None and sum(widths) + GAP * len(widths) > room:
            wide = [i for i in range(len(widths)) if widths[i] > least[i]]
            if not wide:
                break
            widths[max(wide, key=widths.__getitem__)] -= 1
        else:
            return widths
    return None


def row_lines(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> Iterator[str]:
    """The lines that a row takes."""
    for pieces in zip_longest(*map(folded, row, widths), fillvalue=""):
        cells = zip(pieces, widths, right, strict=True)
        yield "".join(" " * GAP + aligned(piece, width, to_right) for piece, width, to_right in cells).rstrip()


def aligned(text: str, width: int, to_right: bool) -> str:
    """``text`` with spaces up to ``width``."""
    space = " " * (width - cell_len(text))
    return space + text if to_right else text + space


def folded(text: str, width: int) -> list[str]:
    """The lines of a text that is at most ``width`` wide, broken between the parts of words where that is possible."""
    lines = [""]
    for part in SEAMS.split(text):
        if cell_len((lines[-1] + part).rstrip()) <= width:
            lines[-1] += part
        else:
            lines += chop_cells(part, width)
    return [line for line in map(str.rstrip, lines) if line] or [""]


def block(columns: Sequence[str], row: Sequence[str], room: int) -> Iterator[str]:
    """A row as lines of a head and a cell, with an empty line after it."""
    head = max(map(cell_len, columns))
    widths = [head, max(NARROWEST, room - head - 2 * GAP)]
    for column, cell in zip(columns, row, strict=True):
        yield from row_lines([column, cell], widths, [False, False])
    yield ""
