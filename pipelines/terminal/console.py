"""What commands print: results on stdout, for people or as one JSON document; everything else on stderr."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, TypeVar

import click
import msgspec
from rich.cells import cell_len, chop_cells

from agentmill.schemas.errors import printable

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


Cell = str | int | float | None
Row = list[Cell]
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

RESULTS = "results"
"""The attribute of a command's function that ``answers`` sets."""


def answers(*results: Any) -> Callable[[F], F]:
    """Give a command ``--json``; ``results`` are what it may ``answer`` with, for the reference of commands."""

    def decorated(command: F) -> F:
        setattr(command, RESULTS, results)
        help_ = "Print one JSON document on stdout, and nothing else there."
        return click.option("--json", "as_json", is_flag=True, help=help_)(command)

    return decorated


def answer(result: T, show: Callable[[T], None], as_json: bool) -> None:
    """Print the result of a command: as JSON, or as ``show`` does it for people."""
    if not as_json:
        show(result)
        return
    click.echo(msgspec.json.encode(result))


def example(*commands: str) -> str:
    """The end of a command's help: lines that can be typed as they are."""
    return "\n".join(["\b", f"Example{'s' if len(commands) > 1 else ''}:", *(f"  {each}" for each in commands)])


def say(text: str = "") -> None:
    """A line of result, on stdout."""
    click.echo(printable(text))


def log(text: str) -> None:
    """A line on what is going on, on stderr."""
    click.echo(printable(text), err=True)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table on stdout, on a terminal no wider than that; columns of numbers are aligned right."""
    cells = [[text(cell) for cell in row] for row in rows]
    right = [bool(rows) and all(not isinstance(row[i], str) for row in rows) for i in range(len(columns))]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    say("\n".join([title, *laid_out(columns, cells, right, room)]))


def text(cell: Cell) -> str:
    """A cell as text in one line: numbers with at most four significant digits after the point, ``-`` for nothing."""
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.4g}" if abs(cell) < 1e4 else f"{cell:,.0f}"
    return f"{cell:,}" if isinstance(cell, int) else " ".join(printable(cell).splitlines())
