"""What a run made: the same summary for people at its end and for programs in ``RUN/summary.json``.

It is put together from what the stages left on disk, so a second run that does nothing gives the same summary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from schemas.record import JsonObject
from schemas.tables import Counts


class StageSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One stage. ``read = used + dropped``; ``reasons`` says why inputs were dropped; ``where`` is its folder."""

    operator: str
    read: int
    used: int
    dropped: int
    written: int
    seconds: float
    where: str
    record: str | None = None
    reasons: dict[str, int] = {}

    @classmethod
    def of(cls, counts: Counts, **others: Any) -> StageSummary:
        """A summary with these counts."""
        return cls(read=counts.read, used=counts.used, dropped=counts.dropped, written=counts.written, **others)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A run. ``evaluation`` is that of the last evaluating stage: split, then model, then its measures."""

    name: str
    seed: int
    run_dir: str
    stages: dict[str, StageSummary]
    evaluation: dict[str, JsonObject] = {}


Row = list[str | int | float | None]


def stage_rows(summary: Summary) -> list[Row]:
    """The rows of the table of stages."""
    return [
        [name, stage.operator, stage.read, stage.used, stage.dropped, stage.written, round(stage.seconds, 1)]
        for name, stage in summary.stages.items()
    ]


STAGE_COLUMNS = ["stage", "operator", "read", "used", "dropped", "written", "seconds"]

MEASURE_COLUMNS = [
    "split",
    "model",
    "tasks",
    "success",
    "95 % interval",
    "invalid",
    "loops",
    "turns per success",
    "tokens per success",
]


def measure_rows(summary: Summary) -> list[Row]:
    """The rows of the table that compares the models: one for each model of each split."""
    rows: list[Row] = []
    for split, models in summary.evaluation.items():
        for model, measures in models.items():
            if model != "paired_difference":
                rows.append([split, model, *measure_cells(measures)])
    return rows


def measure_cells(measures: Mapping[str, Any]) -> Row:
    """One model's measures as cells."""
    return [
        measures["n"],
        percent(measures["success"]),
        interval(measures["ci95"]),
        percent(measures["invalid_action_rate"]),
        percent(measures["loop_rate"]),
        measures["turns_per_success"],
        measures["completion_tokens_per_success"],
    ]


def difference_lines(summary: Summary) -> list[str]:
    """What each split says of the difference between the first and the last of its models."""
    lines = []
    for split, models in summary.evaluation.items():
        difference = models.get("paired_difference")
        if difference is not None:
            lines.append(
                f"{split}: {difference['model']} minus {difference['reference']} = "
                f"{100 * difference['value']:+.1f} points, 95 % interval {interval(difference['ci95'], signed=True)}, "
                f"{difference['better']} tasks better and {difference['worse']} worse of {difference['n']}, "
                f"p = {difference['p_value']:.2g}"
            )
    return lines


def percent(share: float | None) -> str:
    """A share in percent, or ``-``."""
    return "-" if share is None else f"{100 * share:.1f} %"


def interval(ends: tuple[float, float] | None, signed: bool = False) -> str:
    """An interval in percent, or ``-``."""
    if ends is None:
        return "-"
    low, high = (f"{100 * end:+.1f}" if signed else f"{100 * end:.1f}" for end in ends)
    return f"[{low}, {high}]"


def next_commands(summary: Summary) -> list[str]:
    """Commands worth trying after this run, each of which works on what it made."""
    commands = []
    for stage in reversed(summary.stages.values()):
        if stage.record == "Trajectory" and stage.written:
            commands.append(f"agentmill inspect {stage.where}")
            commands.append(f"agentmill export {stage.where} --to adp --out {summary.run_dir}/adp")
            break
    seed = summary.seed + 1
    other = f"{summary.run_dir.removesuffix(f'-seed{summary.seed}')}-seed{seed}"
    commands.append(f"agentmill run {summary.run_dir}/recipe.yaml seed={seed} run_dir={other}")
    return commands
