"""The section that sets models side by side, from the evaluations of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentmill.pipelines.operators.evaluate import DIFFERENCE
from agentmill.pipelines.recipes.summary import (
    FEW_ENVIRONMENTS,
    MEASURE_COLUMNS,
    Row,
    counted,
    environments_of,
    evaluation_lines,
    measure_rows,
    percent,
)
from agentmill.pipelines.report import charts
from agentmill.pipelines.report.charts import Share
from agentmill.pipelines.report.drawing import Picture, Section, Sheet
from agentmill.pipelines.runs.run import Run, Stage
from agentmill.schemas.records.record import JsonObject

MOST_LINES = 8
Splits = Mapping[str, JsonObject]


def comparison_section(run: Run) -> Section:
    """Success of each model with its interval, the differences between them, and what a success cost."""
    compared = [(stage, stage.comparison.splits) for stage in run.stages if stage.comparison is not None]
    if not compared:
        waiting = [stage.name for stage in run.stages if stage.step.operator == "evaluate"]
        lack = f"The evaluation is not done: {', '.join(waiting)}." if waiting else "This run has no evaluation."
        return Section(anchor="models", title="Models compared", words=[lack])
    words = [
        "Success is the share of the tasks of a split, each counted once; intervals are Wilson's, those of differences "
        f"are of a paired bootstrap, from fewer than {FEW_ENVIRONMENTS} environments Student's, or exact where all "
        "differences are equal. All are clustered by environment: they hold for tasks of new environments drawn like "
        "these."
    ]
    pictures, sheets = courses(compared), []
    for stage, splits in compared:
        summary = run.summary(splits)
        before = f"{stage.name}, " if len(compared) > 1 else ""
        words += [before + line for line in evaluation_lines(summary)]
        pictures.append(side_by_side(stage, splits))
        sheets.append(Sheet(f"Models compared: {stage.name}", MEASURE_COLUMNS, measure_rows(summary)))
        sheets += pass_sheets(stage, splits)
    return Section(anchor="models", title="Models compared", words=words, pictures=pictures, sheets=sheets)


def shares(models: JsonObject) -> list[Share]:
    """The success of each model of a split; one without a finished episode has none."""
    return [
        Share(name, each["success"], each["ci95"] and tuple(each["ci95"]))
        for name, each in models.items()
        if name != DIFFERENCE and each["success"] is not None
    ]


def side_by_side(stage: Stage, splits: Splits) -> Picture:
    """An evaluation as a picture."""
    panels = {titled(split, models): shares(models) for split, models in splits.items()}
    alt = f"Points with intervals: success of each model by split, {stage.name}; numbers as in the table of models."
    return charts.intervals(panels).picture(f"Success of the models: {stage.name}", alt)


def titled(split: str, models: JsonObject) -> str:
    """A split with the number of environments that its intervals rest on, where that is known."""
    known = environments_of(models)
    return split if known is None else f"{split} ({counted(known, 'environment')})"


def courses(compared: Sequence[tuple[Stage, Splits]]) -> list[Picture]:
    """How success goes on over the rounds of the evaluations of one name."""
    lines: dict[str, dict[int, Share]] = {}
    for stage, splits in compared:
        if stage.step.round:
            for split, models in splits.items():
                for share in shares(models):
                    name = f"{stage.step.group}: {share.name}, {split}"
                    lines.setdefault(name, {})[stage.step.round] = share
    shown = [(name, line) for name, line in lines.items() if len(line) > 1]
    alt = "Lines of success over rounds, one for each model and split; numbers as in the tables of models."
    pieces = [dict(shown[start : start + MOST_LINES]) for start in range(0, len(shown), MOST_LINES)]
    return [charts.courses(piece).picture("Success of the models by round", alt) for piece in pieces]


def pass_sheets(stage: Stage, splits: Splits) -> list[Sheet]:
    """pass@k as a table, where tasks were tried more than once; in an earlier version each was over all tasks."""
    rows: list[Row] = [
        [split, model, int(k), measures.get("pass_at_k_tasks", {}).get(k, measures["n"]), percent(value)]
        for split, models in splits.items()
        for model, measures in models.items()
        if model != DIFFERENCE
        for k, value in measures["pass_at_k"].items()
    ]
    caption = f"Share of tasks with a success among k episodes (pass@k): {stage.name}"
    return (
        [Sheet(caption, ["split", "model", "k", "tasks", "pass@k"], rows)] if any(row[2] != 1 for row in rows) else []
    )
