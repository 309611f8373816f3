"""One recipe run with several seeds, and its evaluations over them.

The interval of one run is over tasks; how success varies with the draws of data and training only several runs show.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

import msgspec

from agentmill.pipelines.evaluation import Interval, student_interval
from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.recipes.summary import (
    Summary,
    attempts_lines,
    interval,
    note_lines,
    percent,
    unscored_lines,
    warning_lines,
)
from agentmill.pipelines.terminal.console import Cell

SEED_COLUMNS = ["split", "model", "seeds", "success", "95 %", "deviation", "lowest", "highest"]


class SeedMeasure(msgspec.Struct, frozen=True, kw_only=True):
    """The success of a model on a split: ``values`` by seed, their ``mean`` with its interval, and their deviation.

    ``ci95`` is Student's and ``deviation`` that of a sample; both are ``None`` for one seed.
    """

    split: str
    model: str
    values: dict[int, float]
    mean: float
    ci95: Interval | None
    deviation: float | None


class SeedsResult(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of one recipe by seed, with their folders, and what the evaluations of each measured.

    ``warnings`` are those of the runs: of lost episodes, of few environments, and of their steps.
    """

    name: str
    run_dirs: dict[int, str]
    measures: list[SeedMeasure]
    warnings: list[str]


def seed_overrides(recipe: Path, overrides: Sequence[str], number: int) -> list[list[str]]:
    """The overrides of ``number`` runs, with the recipe's seed and those after it, in folders of its ``run_dir``."""
    read = read_recipe(recipe, overrides)
    return [
        [*overrides, f"seed={seed}", f"run_dir={read.run_dir}/seed-{seed}"]
        for seed in range(read.seed, read.seed + number)
    ]


def over_seeds(summaries: Sequence[Summary]) -> SeedsResult:
    """What runs measured, put together. A model that a run could not measure has no value for its seed."""
    values: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for summary in summaries:
        for split, models in summary.evaluation.items():
            for model, measures in models.items():
                if model != "paired_difference" and measures["success"] is not None:
                    values[split, model][summary.seed] = measures["success"]
    return SeedsResult(
        name=summaries[0].name,
        run_dirs={summary.seed: str(summary.run_dir) for summary in summaries},
        measures=[measure(split, model, found) for (split, model), found in values.items()],
        warnings=[f"seed {summary.seed}: {line}" for summary in summaries for line in warnings_of(summary)],
    )


def warnings_of(summary: Summary) -> list[str]:
    """What to know of a run's figures."""
    notes = [line for line in note_lines(summary) if "warning: " in line]
    return [*notes, *warning_lines(summary), *unscored_lines(summary), *attempts_lines(summary)]


def measure(split: str, model: str, values: dict[int, float]) -> SeedMeasure:
    """The measure of these values."""
    found = list(values.values())
    several = len(found) > 1
    return SeedMeasure(
        split=split,
        model=model,
        values=values,
        mean=fmean(found),
        ci95=student_interval(found) if several else None,
        deviation=stdev(found) if several else None,
    )


def seed_rows(result: SeedsResult) -> list[list[Cell]]:
    """The rows of the table of ``SEED_COLUMNS``."""
    return [
        [
            each.split,
            each.model,
            len(each.values),
            percent(each.mean),
            interval(each.ci95),
            percent(each.deviation),
            percent(min(each.values.values())),
            percent(max(each.values.values())),
        ]
        for each in result.measures
    ]
