"""Text for people: a rich table on a terminal, plain aligned lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

Cell = str | int | float | None
Row = list[Cell]


def say(text: str = "") -> None:
    """A line of result, on stdout."""
    click.echo(text)


def log(text: str) -> None:
    """A line on what is going on, on stderr."""
    click.echo(text, err=True)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table on stdout; columns whose cells are all numbers are aligned to the right."""
    cells = [[text(cell) for cell in row] for row in rows]
    right = [bool(rows) and all(not isinstance(row[i], str) for row in rows) for i in range(len(columns))]
    if sys.stdout.isatty():
        rich_table(title, columns, cells, right)
    else:
        say("\n".join(plain_table(title, columns, cells, right)))


def text(cell: Cell) -> str:
    """A cell as text: numbers with at most four significant digits after the point, ``-`` for nothing."""
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.4g}" if abs(cell) < 1e4 else f"{cell:,.0f}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def plain_table(title: str, columns: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """The lines of a table without any decoration but a rule below the head."""
    widths = [max(len(line[i]) for line in [columns, *cells]) for i in range(len(columns))]
    lines = [
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in [columns, ["-" * width for width in widths], *cells]
    ]
    return [title, *(f"  {line}" for line in lines)]


def rich_table(title: str, columns: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool]) -> None:
    """The same on a terminal."""
    from rich.console import Console
    from rich.table import Table

    drawn = Table(title=title, title_justify="left")
    for column, to_right in zip(columns, right, strict=True):
        drawn.add_column(column, justify="right" if to_right else "left")
    for row in cells:
        drawn.add_row(*row)
    Console().print(drawn)
