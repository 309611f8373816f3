"""Bar charts as SVG, which the Hub shows in cards: the same bytes for the same numbers, and nothing to install."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from pipelines.publish.table_text import one_line

WIDTH, LABEL, BAR, GAP, TOP = 760, 220, 18, 8, 34
LONGEST_LABEL = 34
"""In characters, as many as there is room for."""


class Bar(NamedTuple):
    """One line of a chart: ``part`` of ``whole``, both counts."""

    label: str
    part: int
    whole: int


def bars(title: str, lines: Sequence[Bar]) -> bytes:
    """A chart with one bar per line: the whole pale, the part dark, both numbers beside it."""
    height = TOP + len(lines) * (BAR + GAP) + GAP
    longest = max((line.whole for line in lines), default=0) or 1
    body = "".join(drawn(line, TOP + index * (BAR + GAP), longest) for index, line in enumerate(lines))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="#ffffff"/>\n'
        f'<text x="8" y="20" font-size="14" font-weight="bold" fill="#222222">{escape(title)}</text>\n{body}</svg>\n'
    ).encode()


def drawn(line: Bar, y: int, longest: int) -> str:
    """A bar with its label and its numbers."""
    scale = (WIDTH - LABEL - 150) / longest
    whole, part = line.whole * scale, line.part * scale
    middle = y + BAR - 5
    label = one_line(line.label)
    label = label if len(label) <= LONGEST_LABEL else f"{label[: LONGEST_LABEL - 1]}…"
    return (
        f'<text x="{LABEL - 8}" y="{middle}" text-anchor="end" fill="#222222">{escape(label)}</text>\n'
        f'<rect x="{LABEL}" y="{y}" width="{whole:.1f}" height="{BAR}" fill="#c9d8ea"/>\n'
        f'<rect x="{LABEL}" y="{y}" width="{part:.1f}" height="{BAR}" fill="#2f6db3"/>\n'
        f'<text x="{LABEL + whole + 6:.1f}" y="{middle}" fill="#222222">{line.part:,} of {line.whole:,}</text>\n'
    )
