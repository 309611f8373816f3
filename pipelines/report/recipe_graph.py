"""The line of a run as a picture: a box for each stage, first at the top, and lines from it to those that read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from agentmill.pipelines.report.drawing import INK, PAPER, WIDTH, Canvas, Picture
from agentmill.pipelines.runs.run import Stage
from agentmill.pipelines.untrusted_text import label

MOST_ROWS = 16
"""Stages in one picture; it has to fit on a page."""

HEIGHT, BOX = 0.58, 0.4
"""Inches from one stage to the next, and of a box."""

LEFT = 1.05
"""Inches on the left of the boxes, for the lines."""


class Wire(msgspec.Struct, frozen=True):
    """From a stage to those that read what it makes, by their places; ``lane`` is counted from the boxes."""

    source: int
    readers: list[int]
    lane: int


def line_pictures(stages: Sequence[Stage]) -> list[Picture]:
    """The line, in several pictures where it is long."""
    wires = wired(stages)
    lanes = 1 + max((wire.lane for wire in wires), default=0)
    starts = range(0, len(stages), MOST_ROWS)
    found = []
    for number, start in enumerate(starts, 1):
        rows = range(start, min(start + MOST_ROWS, len(stages)))
        caption = "The steps of the run" + (f" ({number} of {len(starts)})" if len(starts) > 1 else "")
        alt = (
            f"Boxes from top to bottom, one for each of the steps {start + 1} to {rows.stop}, with their counts; "
            "lines lead from each to those that read what it makes. The table of steps has the same counts."
        )
        found.append(drawn(stages, rows, wires, lanes).picture(caption, alt))
    return found


def wired(stages: Sequence[Stage]) -> list[Wire]:
    """The lines: each in the lane nearest to the boxes that is free for all of its length."""
    places = {stage.name: place for place, stage in enumerate(stages)}
    readers: dict[int, list[int]] = {}
    for place, stage in enumerate(stages):
        for name in stage.step.reads:
            readers.setdefault(places[name], []).append(place)
    wires: list[Wire] = []
    for source, found in sorted(readers.items(), key=lambda entry: (max(entry[1]) - entry[0], entry[0])):
        taken = {wire.lane for wire in wires if wire.source < max(found) and source < max(wire.readers)}
        lane = next(lane for lane in range(len(wires) + 1) if lane not in taken)
        wires.append(Wire(source, found, lane))
    return wires


def drawn(stages: Sequence[Stage], rows: range, wires: Sequence[Wire], lanes: int) -> Canvas:
    """The stages of these rows; lines from and to others end at the edge."""
    canvas = Canvas(HEIGHT * len(rows) + 0.1)
    axes = canvas.axes
    axes.set_axis_off()
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(HEIGHT * (rows.stop - 0.45), HEIGHT * (rows.start - 0.55))
    for place in rows:
        draw_box(axes, stages[place], HEIGHT * place)
    for wire in wires:
        draw_wire(axes, wire, rows, LEFT - 0.12 - (LEFT - 0.2) * (wire.lane + 0.5) / lanes)
    return canvas


def draw_box(axes: Axes, stage: Stage, y: float) -> None:
    """A stage: what is not done has a broken frame."""
    done = stage.state == "done"
    frame = Rectangle(
        (LEFT, y - BOX / 2),
        WIDTH - LEFT - 0.05,
        BOX,
        facecolor=PAPER,
        edgecolor=INK,
        linewidth=1.2 if done else 1,
        linestyle="-" if done else (0, (4, 3)),
    )
    axes.add_patch(frame)
    axes.text(LEFT + 0.08, y - 0.085, label(stage.name, 40), fontweight="bold", va="center")
    axes.text(LEFT + 0.08, y + 0.095, label(figures_of(stage), 62), va="center", fontsize=7.5)


def figures_of(stage: Stage) -> str:
    """The second line of a box."""
    if stage.summary is None:
        return f"{stage.step.operator}: {stage.state}{', not finished' if stage.state == 'begun' else ''}"
    counts = stage.summary
    return f"{stage.step.operator}: read {counts.read:,}, made {counts.written:,}, dropped {counts.dropped:,}"


def draw_wire(axes: Axes, wire: Wire, rows: range, x: float) -> None:
    """A line down its lane, with an arrow into each reader; where lines meet and do not cross there is a dot."""
    first, last = wire.source, max(wire.readers)
    if last < rows.start or first >= rows.stop:
        return
    top = HEIGHT * max(first + 0.17, rows.start - 0.5)
    bottom = HEIGHT * min(last - 0.17, rows.stop - 0.5)
    axes.plot([x, x], [top, bottom], color=INK, linewidth=0.9)
    if first in rows:
        axes.plot([x, LEFT], [top, top], color=INK, linewidth=0.9)
    for reader in wire.readers:
        if reader in rows:
            y = HEIGHT * (reader - 0.17)
            ends: dict[str, Any] = {"shrinkA": 0, "shrinkB": 0, "arrowstyle": "-|>", "mutation_scale": 7}
            axes.add_patch(FancyArrowPatch((x, y), (LEFT, y), color=INK, linewidth=0.9, **ends))
            axes.plot(x, y, "o", color=INK, markersize=2.5)
