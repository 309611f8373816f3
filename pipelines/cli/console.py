"""What commands print: results on stdout, for people or as one JSON document; everything else on stderr."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
import msgspec

from pipelines.cli.table import laid_out
from schemas.printable import printable

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
    """Print a table on stdout, on a terminal no wider than that; columns whose cells are all numbers stand right."""
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
