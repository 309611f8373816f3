"""The kinds of charts of a report: bars in parts, counts of values, shares with intervals, a matrix of shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import msgspec
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from agentmill.pipelines.evaluation import Interval
from agentmill.pipelines.report.drawing import INK, PAPER, SHADE, Canvas, Picture
from agentmill.pipelines.untrusted_text import label

ROW = 0.24
"""Inches for a row of bars."""

NAME_CHARACTERS = 26
COLUMN_CHARACTERS = 36
MOST_BINS = 40
LOOKS: Sequence[dict[str, Any]] = (
    {"color": SHADE, "edgecolor": INK},
    {"color": PAPER, "edgecolor": INK, "hatch": "////"},
    {"color": PAPER, "edgecolor": INK, "hatch": "...."},
    {"color": "#d0d0d0", "edgecolor": INK, "hatch": "xxxx"},
)
"""Of the parts of a bar."""

DARKEST = 0.42
"""How much of the light the shade of a full share takes away; black letters stay legible on it."""

MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", ":", "-.")


class Bars(msgspec.Struct, frozen=True):
    """A row of a bar chart: the lengths of its parts, and what is written behind it."""

    name: str
    parts: Sequence[float]
    label_text: str


class Share(msgspec.Struct, frozen=True):
    """A share in [0, 1] with its interval, under the name of what it is of."""

    name: str
    value: float
    interval: Interval | None


def bars(rows: Sequence[Bars], parts: Sequence[str], unit: str) -> Canvas:
    """Rows of bars, first at the top, with a legend of their ``parts``; lengths are in ``unit``."""
    canvas = Canvas(0.75 + ROW * len(rows) + 0.2 * (len(parts) > 1))
    axes = canvas.axes
    starts = [0.0] * len(rows)
    for index, part in enumerate(parts):
        lengths = [row.parts[index] for row in rows]
        axes.barh(range(len(rows)), lengths, 0.7, left=starts, label=part, linewidth=0.6, **LOOKS[index])
        starts = [start + length for start, length in zip(starts, lengths, strict=True)]
    longest = max(starts, default=0) or 1.0
    for place, (row, end) in enumerate(zip(rows, starts, strict=True)):
        axes.text(end + 0.015 * longest, place, row.label_text, va="center")
    axes.set_xlim(0, 1.45 * longest)
    named(axes, [row.name for row in rows])
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(thousands))
    axes.set_xlabel(unit)
    if len(parts) > 1:
        canvas.figure.legend(loc="outside upper left", ncols=len(parts), frameon=False)
    return canvas


def thousands(value: float, _: int) -> str:
    """A number at an axis: short where it is large."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if letter == 'k' else size):,.3g} {letter}"
    return f"{value:,.5g}"


def named(axes: Axes, names: Sequence[str]) -> None:
    """Put the names of rows at the left, first at the top."""
    axes.set_yticks(range(len(names)), [label(name, NAME_CHARACTERS) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def histograms(panels: Mapping[str, Mapping[float, int]], width: float, unit: str) -> Canvas:
    """How often each value occurs, a panel for each name; values are the lower ends of bins of this ``width``.

    Bins narrower than 1 are of values in [0, 1].
    """
    canvas = Canvas(0.45 + 0.95 * len(panels), len(panels), sharex=True)
    for axes, (name, counts) in zip(canvas.panels, panels.items(), strict=True):
        axes.bar(
            sorted(counts), [counts[low] for low in sorted(counts)], width, align="edge", linewidth=0.6, **LOOKS[0]
        )
        axes.set_title(label(name, 2 * NAME_CHARACTERS))
        axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(thousands))
    canvas.panels[-1].set_xlabel(unit)
    if width < 1:
        canvas.panels[-1].set_xlim(0, 1)
    canvas.panels[-1].xaxis.set_major_locator(MaxNLocator(10 if width < 1 else 8, integer=width >= 1))
    return canvas


def bin_width(greatest: int) -> int:
    """The width of bins of whole numbers up to ``greatest`` so that there are not too many."""
    return 1 + greatest // MOST_BINS


def binned(counts: Mapping[int, int], width: int) -> dict[float, int]:
    """Counts of whole numbers by the lower ends of bins, so placed that a bin of width 1 is over its number."""
    found: dict[float, int] = {}
    for value, n in sorted(counts.items()):
        low = value // width * width - 0.5 * (width == 1)
        found[low] = found.get(low, 0) + n
    return found


def intervals(panels: Mapping[str, Sequence[Share]]) -> Canvas:
    """Shares in percent as points with intervals, a panel for each name."""
    rows = sum(map(len, panels.values()))
    canvas = Canvas(0.5 + 0.38 * len(panels) + 1.15 * ROW * rows, len(panels), sharex=True)
    for axes, (name, shares) in zip(canvas.panels, panels.items(), strict=True):
        for place, (share, mark) in enumerate(zip(shares, cycle(MARKS))):
            low, high = share.interval or (share.value, share.value)
            axes.plot([100 * low, 100 * high], [place, place], color=INK, linewidth=1.4, marker="|", markersize=7)
            axes.plot(100 * share.value, place, mark, color=INK, markersize=5.5)
            axes.text(104, place, f"{100 * share.value:.1f} %", va="center")
        axes.set_title(label(name, 2 * NAME_CHARACTERS))
        named(axes, [share.name for share in shares])
        axes.grid(axis="x", color="#bbbbbb", linewidth=0.5)
        axes.set_xlim(-2, 122)
        axes.set_xticks(range(0, 101, 20))
    canvas.panels[-1].set_xlabel("success, percent of tasks; bars: 95 % interval")
    return canvas


def courses(lines: Mapping[str, Mapping[int, Share]]) -> Canvas:
    """Shares in percent over rounds, with their intervals, a line for each name."""
    canvas = Canvas(2.6 + 0.17 * len(lines))
    axes = canvas.axes
    for index, (name, shares) in enumerate(lines.items()):
        apart = 0.06 * (index - (len(lines) - 1) / 2)
        rounds = [round_ + apart for round_ in shares]
        axes.plot(
            rounds,
            [100 * each.value for each in shares.values()],
            label=label(name, 2 * NAME_CHARACTERS),
            color=INK,
            marker=MARKS[index % len(MARKS)],
            linestyle=LINES[index % len(LINES)],
            linewidth=1,
        )
        for round_, share in zip(rounds, shares.values(), strict=True):
            if share.interval is not None:
                low, high = share.interval
                axes.vlines(round_, 100 * low, 100 * high, color=INK, linewidth=0.8)
    axes.set_ylim(-4, 104)
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.set_xlabel("round")
    axes.set_ylabel("success, percent")
    canvas.figure.legend(loc="outside lower left", frameon=False)
    return canvas


def matrix(rows: Sequence[str], columns: Sequence[str], shares: Sequence[Sequence[float | None]]) -> Canvas:
    """Shares in percent, as numbers on a shade; ``None`` leaves a cell empty."""
    tallest = max(len(label(name, COLUMN_CHARACTERS)) for name in columns)
    canvas = Canvas(0.3 + 0.075 * tallest + 0.26 * len(rows))
    axes = canvas.axes
    for y, line in enumerate(shares):
        for x, share in enumerate(line):
            shade = str(1 - DARKEST * (share or 0))
            axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=shade, edgecolor=INK, linewidth=0.5))
            axes.text(x, y, "–" if share is None else f"{100 * share:.0f}", ha="center", va="center", color=INK)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xticks(range(len(columns)), [label(name, COLUMN_CHARACTERS) for name in columns], rotation=90)
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(rows)), [label(name, NAME_CHARACTERS) for name in rows])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return canvas


def parts_of(rows: Sequence[Bars], parts: Sequence[str], unit: str, most: int, caption: str, alt: str) -> list[Picture]:
    """A bar chart, as several pictures where there are more than ``most`` rows."""
    pieces = [rows[start : start + most] for start in range(0, len(rows), most)]
    names = [caption if len(pieces) == 1 else f"{caption} ({n} of {len(pieces)})" for n in range(1, len(pieces) + 1)]
    return [bars(piece, parts, unit).picture(name, alt) for piece, name in zip(pieces, names, strict=True)]
