"""The section on selections: how many trajectories each keeps, why others are left out, and which ones these are.

Selections know ids alone, so they are joined with the trajectories and tasks of the run, and with those in its
``data``. Ids are compared by 64-bit hashes, which take 8 bytes of memory a trajectory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import polars as pl

from agentmill.pipelines.recipes.summary import SELECTION_COLUMNS, Row, percent, reasons_text, selection_rows
from agentmill.pipelines.report.charts import Bars, parts_of
from agentmill.pipelines.report.contents import MOST_ENVIRONMENTS, OTHERS
from agentmill.pipelines.report.drawing import Section, Sheet
from agentmill.pipelines.report.tallies import elsewhere, frames, names_of
from agentmill.pipelines.runs.run import Run
from agentmill.pipelines.view.sources import Source

MOST_BARS = 30
"""Rows of bars in one picture."""

UNKNOWN = "unknown"
FIFTHS = 5
"""Classes of the difficulty of tasks, which is in [0, 1]."""

GROUPS = ("environment", "difficulty", "outcome")

IDS: Mapping[str, str] = {"Selection": "trajectory_id", "TaskSelection": "task_id"}
"""The records of selections, and the column with the id of what they select."""


def selections_section(run: Run) -> Section:
    """What each step that selects keeps and leaves out, by reason, and by environment, difficulty and outcome."""
    rows = selection_rows(run.summary())
    if not rows:
        return Section(
            anchor="selections", title="Selections", words=["This run selects no trajectories and no tasks."]
        )
    words = [
        "A selection decides on each trajectory or task that it reads and changes none. Each is shown on its own; a "
        "step that names several takes what all of them keep."
    ]
    alt = "A bar for each selection: what it keeps, then what it leaves out; numbers as in the table of selections."
    bars = [Bars(str(row[0]), [number(row[3]), number(row[4])], f"{row[3]:,} of {row[2]:,}") for row in rows]
    title = "Trajectories and tasks that selections keep"
    pictures = parts_of(bars, ["kept", "left out"], "trajectories or tasks", MOST_BARS, title, alt)
    sheets = [Sheet("Selections", SELECTION_COLUMNS, rows)]
    found = list(group_rows(run))
    if found:
        columns = ["selection", "by", "value", "trajectories or tasks", "kept", "share kept", "why others are left out"]
        sheets.append(Sheet("Selections by environment, difficulty and outcome", columns, found))
    return Section(anchor="selections", title="Selections", words=words, pictures=pictures, sheets=sheets)


def group_rows(run: Run) -> Iterator[Row]:
    """A row for each selection, property of what it selects, and value. Raises ``UserError`` for a damaged shard."""
    stages = {stage.name: stage for stage in run.stages if stage.summary is not None}
    selections = [(name, each) for name, stage in stages.items() for each in stage.tables if each.record in IDS]
    sources = [*run.tables, *elsewhere(run)]
    known_tasks = tasks(sources)
    known = {"Selection": trajectories(sources, known_tasks), "TaskSelection": known_tasks}
    environments = [each for each in sources if each.record == "EnvironmentSpec"]
    for name, source in selections:
        decided = decisions(source).join(known[source.record], on="id", how="left")
        decided = decided.with_columns(pl.col(group).fill_null(UNKNOWN) for group in GROUPS if group in decided.columns)
        for group in (each for each in GROUPS if each in decided.columns):
            counted = decided.group_by(group, "kept", "reason").len().rows()
            names = environment_names(decided, environments) if group == "environment" else {}
            yield from rows_of(name, group, counted, names)


def rows_of(
    selection: str, group: str, counted: Iterable[tuple[str, bool, str, int]], names: Mapping[str, str]
) -> Iterator[Row]:
    """The rows of one property; values that ``names`` does not name are one row, if it names any."""
    kept: dict[str, int] = {}
    reasons: dict[str, dict[str, int]] = {}
    for value, keep, reason, n in counted:
        shown = names.get(value, OTHERS) if names else value
        kept[shown] = kept.get(shown, 0) + n * keep
        left_out = reasons.setdefault(shown, {})
        if not keep:
            left_out[reason] = left_out.get(reason, 0) + n
    for shown in sorted(kept, key=lambda value: (value in (OTHERS, UNKNOWN), value)):
        every = kept[shown] + sum(reasons[shown].values())
        share = percent(kept[shown] / every)
        yield [selection, group, shown, every, kept[shown], share, reasons_text(reasons[shown])]


def decisions(source: Source) -> pl.DataFrame:
    """The decisions of a table on tasks or whole trajectories: id (hash), kept, and the code of the reason."""
    columns = {"id": IDS[source.record], "kept": "kept", "reason": "reason", "item": "item"}
    code = pl.col("reason").fill_null("no reason").str.split(":").list.first()
    found = [
        frame.filter(pl.col("item").is_null()).select(pl.col("id").hash(), "kept", code)
        for frame in frames(source.table, columns)
    ]
    return pl.concat(found) if found else empty({"id": pl.UInt64, "kept": pl.Boolean, "reason": pl.String})


def trajectories(sources: Iterable[Source], known_tasks: pl.DataFrame) -> pl.DataFrame:
    """Environment, outcome and difficulty of the trajectories in these tables, by id (hash); each id once."""
    columns = {
        "trajectory_id": "trajectory_id",
        "task_id": "task_id",
        "environment": "environment_id",
        "outcome": "outcome.status",
    }
    found = [
        frame.select(pl.col("trajectory_id").hash().alias("id"), pl.col("task_id").hash(), "environment", "outcome")
        for source in sources
        if source.record == "Trajectory"
        for frame in frames(source.table, columns)
    ]
    if not found:
        return empty({"id": pl.UInt64, **dict.fromkeys(GROUPS, pl.String)})
    difficulties = known_tasks.select(pl.col("id").alias("task_id"), "difficulty")
    return pl.concat(found).unique("id").join(difficulties, on="task_id", how="left")


def tasks(sources: Iterable[Source]) -> pl.DataFrame:
    """Environment and class of difficulty of the tasks in these tables, by id (hash); each id once."""
    place = (pl.col("level").clip(0, 1) * FIFTHS).floor().clip(0, FIFTHS - 1)
    label = pl.format("{} to {}", (place / FIFTHS).round(1), ((place + 1) / FIFTHS).round(1))
    columns = {"id": "task_id", "environment": "environment_id", "level": "difficulty.level"}
    found = [
        frame.select(pl.col("id").hash(), "environment", label.alias("difficulty"))
        for source in sources
        if source.record == "Task"
        for frame in frames(source.table, columns)
    ]
    schema = {"id": pl.UInt64, "environment": pl.String, "difficulty": pl.String}
    return pl.concat(found).unique("id") if found else empty(schema)


def environment_names(decided: pl.DataFrame, environments: Iterable[Source]) -> dict[str, str]:
    """What the environments with most trajectories are called; empty where none is known."""
    counts = decided.filter(pl.col("environment") != UNKNOWN).group_by("environment").len()
    most = counts.sort(["len", "environment"], descending=[True, False]).get_column("environment").to_list()
    return names_of(environments, most[:MOST_ENVIRONMENTS])


def empty(schema: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
    """A frame without rows."""
    return pl.DataFrame(schema=dict(schema))


def number(cell: str | int | float | None) -> float:
    """A cell that holds a number."""
    return float(cell or 0)
