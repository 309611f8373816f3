"""Texts and tables in Markdown, in which nothing but their author's own words is Markdown.

Whatever comes out of data, manifests or recipes goes through one of these functions on its way into a card.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MARKUP = re.compile(
    r"[\\`*\[\]<>|~$&]"  # code, emphasis, links, tags, ends of cells, formulas, entities
    r"|(?<![^\W_])_|_(?![^\W_])"  # emphasis, which begins and ends at words only
    r"|:(?=//)|(?<=www)\.|@"  # addresses, which become links by themselves
    r"|^[#+=-]",  # headings, lists and rules
    re.IGNORECASE,
)
NUMBERED = re.compile(r"^(\d{1,9})([.)])(?=\s|$)")


def one_line(value: object) -> str:
    """Text on one line, without what cannot be seen."""
    seen = (character for character in str(value) if character.isprintable() or character.isspace())
    return " ".join("".join(seen).split())


def cell(value: object) -> str:
    """Text on one line that reads as it is, in a cell or elsewhere (CommonMark 0.31, GitHub's tables and links)."""
    return NUMBERED.sub(r"\1\\\2", MARKUP.sub(r"\\\g<0>", one_line(value)))


def code(value: object) -> str:
    """Text as code on one line; more backticks stand around it than there are in it."""
    text = one_line(value)
    if not text:
        return "–"
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    room = " " if len(fence) > 1 else ""
    return f"{fence}{room}{text}{room}{fence}"


def code_cell(value: object) -> str:
    """Text as code in a cell."""
    return code(value).replace("|", "\\|")


def tex(value: object) -> str:
    """Text on one line for a field of BibTeX."""
    braces = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return re.sub(r"[\\{}&%$#_~^]", lambda found: braces.get(found[0], f"\\{found[0]}"), one_line(value))


def number(value: object) -> str:
    """A measure for a cell."""
    if value is None:
        return "–"
    return f"{value:,.4g}" if isinstance(value, float) else cell(value)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table."""
    lines = [columns, ["---"] * len(columns), *([number(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
