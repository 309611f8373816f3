"""Drawing with matplotlib: black on white, distinguished by pattern, mark and label, so that it can be printed.

A picture is SVG inside of a data URI: a browser shows it as an image, in which nothing runs and nothing is loaded. Its
texts are those of a run, so they are taken as they are and never as formulas. The same numbers give the same bytes.
"""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import msgspec
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agentmill.pipelines.recipes.summary import Row
from agentmill.pipelines.tables.dropped import Reason

WIDTH = 4.6
"""Inches: on a telephone a picture is shown at about this size, so its letters stay legible."""

DPI = 96
INK, SHADE, PAPER = "#000000", "#595959", "#ffffff"
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.7,
    "text.parse_math": False,
    "svg.fonttype": "none",
    # Without a salt the ids within an SVG are random.
    "svg.hashsalt": "agentmill",
}


class Picture(msgspec.Struct, frozen=True):
    """A drawing with its caption; ``alt`` tells in words what it shows, sizes are CSS pixels."""

    caption: str
    alt: str
    uri: str
    width: int
    height: int


class Canvas:
    """A figure in the making, of so many ``panels`` below each other; ``picture`` is there when it is drawn."""

    def __init__(self, height: float, panels: int = 1, *, sharex: bool = False) -> None:
        self.figure = Figure(figsize=(WIDTH, height), layout="constrained")
        self.panels: list[Axes] = list(self.figure.subplots(panels, 1, squeeze=False, sharex=sharex)[:, 0])

    @property
    def axes(self) -> Axes:
        """The only panel."""
        return self.panels[0]

    def picture(self, caption: str, alt: str) -> Picture:
        """What was drawn."""
        sink = io.BytesIO()
        # With a date in it, the same numbers would not give the same bytes.
        self.figure.savefig(sink, format="svg", metadata={"Date": None, "Creator": None})
        width, height = (round(DPI * float(inches)) for inches in self.figure.get_size_inches())
        uri = f"data:image/svg+xml;base64,{base64.b64encode(sink.getvalue()).decode()}"
        return Picture(caption, alt, uri, width, height)


@contextmanager
def drawing() -> Iterator[None]:
    """The style of all pictures. Letters that the fonts here lack are drawn by the browser, with its own."""
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


class Sheet(msgspec.Struct, frozen=True):
    """A table with its caption."""

    caption: str
    columns: list[str]
    rows: list[Row]


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the page under a heading; ``anchor`` is its id there."""

    anchor: str
    title: str
    words: list[str] = []
    pictures: list[Picture] = []
    sheets: list[Sheet] = []
    reasons: list[Reason] = []
