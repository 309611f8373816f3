"""What a run made: the same summary for people at its end and for programs in ``RUN/summary.json``.

It is put together from what the stages left on disk, so a second run that does nothing gives the same summary.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.tables import Counts
from agentmill.synthesis.policies.cost import LEDGER, StepSpending, dollars, read_ledger


class StageSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One stage. ``read = used + dropped``; ``reasons`` says why inputs were dropped; ``where`` is its folder.

    ``notes`` are lines for people, such as warnings. ``kept`` and, by reason, ``left_out`` count the trajectories or
    tasks on which a step decided that selects; ``kept`` is ``None`` for other steps.
    ``tokens`` and ``cost_usd`` (US dollars, by the prices given) are those of all requests that the step has made to
    models, in all attempts; ``None`` if it made none, and of ``cost_usd`` if no price is known.
    """

    operator: str
    read: int
    used: int
    dropped: int
    written: int
    seconds: float
    where: str
    record: str | None = None
    reasons: dict[str, int] = {}
    notes: list[str] = []
    kept: int | None = None
    left_out: dict[str, int] = {}
    tokens: int | None = None
    cost_usd: float | None = None

    @classmethod
    def of(cls, counts: Counts, **others: Any) -> StageSummary:
        """A summary with these counts."""
        return cls(read=counts.read, used=counts.used, dropped=counts.dropped, written=counts.written, **others)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A run. ``evaluation`` is split, then model, then its measures; with several evaluating steps, ``STEP/SPLIT``.

    ``tokens`` and ``cost_usd`` are the sums over its stages; ``spending_notes`` say what these leave out or guess.
    """

    name: str
    seed: int
    run_dir: str
    stages: dict[str, StageSummary]
    evaluation: dict[str, JsonObject] = {}
    tokens: int | None = None
    cost_usd: float | None = None
    spending_notes: list[str] = []


def by_split(evaluations: Mapping[str, Mapping[str, JsonObject]]) -> dict[str, JsonObject]:
    """The measures of the evaluating stages as ``Summary.evaluation`` has them."""
    several = len(evaluations) > 1
    return {
        f"{stage}/{split}" if several else split: models
        for stage, found in evaluations.items()
        for split, models in found.items()
    }


def with_spending(summary: Summary) -> Summary:
    """``summary`` with tokens and costs by stage and in sum, as the ledger of the run has them."""
    spent: dict[str, list[StepSpending]] = {name: [] for name in summary.stages}
    for each in read_ledger(Path(summary.run_dir) / LEDGER):
        parts = each.step.split("/")
        places = ("/".join(parts[:length]) for length in range(len(parts), 0, -1))
        # What no stage of the summary has spent is kept without a name: the sum of the run includes it.
        spent.setdefault(next((place for place in places if place in spent), ""), []).append(each)
    stages = {
        name: msgspec.structs.replace(stage, tokens=token_sum(spent[name]), cost_usd=cost_sum(spent[name]))
        for name, stage in summary.stages.items()
    }
    everything = [each for found in spent.values() for each in found]
    return msgspec.structs.replace(
        summary,
        stages=stages,
        tokens=token_sum(everything),
        cost_usd=cost_sum(everything),
        spending_notes=spending_notes(everything),
    )


def spending_of(run_dir: Path) -> str:
    """What a run has spent in all attempts, in words; empty where it asked no model."""
    spent = read_ledger(run_dir / LEDGER)
    tokens, cost = token_sum(spent), cost_sum(spent)
    priced = "" if cost is None else f", {dollars(cost)} USD"
    return "" if tokens is None else f"the models of this run have taken {tokens:,} tokens{priced}"


def token_sum(spent: Sequence[StepSpending]) -> int | None:
    """All tokens; ``None`` where nothing was asked."""
    return sum(each.prompt_tokens + each.completion_tokens for each in spent) if spent else None


def cost_sum(spent: Sequence[StepSpending]) -> float | None:
    """US dollars of what has prices; ``None`` where nothing has."""
    known = [each.cost_usd for each in spent if each.cost_usd is not None]
    return sum(known) if known else None


def spending_notes(spent: Sequence[StepSpending]) -> list[str]:
    """What the sums leave out, and what of them is a guess."""
    notes, estimated = [], sum(each.estimated for each in spent)
    unpriced = sorted({each.model for each in spent if each.cost_usd is None})
    if unpriced and len(unpriced) < len({each.model for each in spent}):
        notes.append(f"USD leave out {', '.join(unpriced)}, which had no `prices`")
    if estimated:
        total = sum(each.requests for each in spent)
        notes.append(f"{estimated:,} of {total:,} requests came back without a count of tokens and are estimated")
    return notes


Row = list[str | int | float | None]


STAGE_COLUMNS = ["step", "operator", "read", "used", "dropped", "written", "seconds"]
SPENDING_COLUMNS = ["tokens", "USD"]


def stage_columns(summary: Summary) -> list[str]:
    """The columns of the table of stages; what was spent has none where no model was asked."""
    return STAGE_COLUMNS + SPENDING_COLUMNS * (summary.tokens is not None)


def stage_rows(summary: Summary) -> list[Row]:
    """The rows of the table of stages."""
    width = len(stage_columns(summary))
    rows: list[Row] = []
    for name, stage in summary.stages.items():
        counts = [stage.read, stage.used, stage.dropped, stage.written]
        row: Row = [name, stage.operator, *counts, round(stage.seconds, 1), stage.tokens, stage.cost_usd]
        rows.append(row[:width])
    return rows


SELECTION_COLUMNS = ["selection", "operator", "read", "kept", "left out", "why"]


def selection_rows(summary: Summary) -> list[Row]:
    """A row for each step that selects: records read, kept and left out, the most frequent reasons first."""
    return [
        [name, stage.operator, stage.read, stage.kept, sum(stage.left_out.values()), reasons_text(stage.left_out)]
        for name, stage in summary.stages.items()
        if stage.kept is not None
    ]


def reasons_text(reasons: Mapping[str, int]) -> str:
    """Reasons with their numbers, the most frequent first."""
    ordered = sorted(reasons.items(), key=lambda each: (-each[1], each[0]))
    return ", ".join(f"{reason} {n:,}" for reason, n in ordered)


def note_lines(summary: Summary) -> list[str]:
    """The notes of all stages, each with the name of its stage."""
    return [f"{name}: {note}" for name, stage in summary.stages.items() for note in stage.notes]


def total_rows(summary: Summary) -> list[Row]:
    """The last row of the table of stages, where a model was asked."""
    if summary.tokens is None:
        return []
    return [["total", "", None, None, None, None, None, summary.tokens, summary.cost_usd]]


FEW_ENVIRONMENTS = 10
"""Intervals from fewer environments than these come with a warning (see ``agentmill.pipelines.evaluation``)."""

MEASURE_COLUMNS = [
    "split",
    "model",
    "tasks",
    "environments",
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
        measures.get("environments"),
        percent(measures["success"]),
        interval(measures["ci95"]),
        percent(measures["invalid_action_rate"]),
        percent(measures["loop_rate"]),
        measures["turns_per_success"],
        measures["completion_tokens_per_success"],
    ]


def evaluation_lines(summary: Summary) -> list[str]:
    """What to know with the table of models: splits with few environments, episodes that are in no rate, and the
    differences."""
    return [*warning_lines(summary), *unscored_lines(summary), *attempts_lines(summary), *difference_lines(summary)]


def unscored_lines(summary: Summary) -> list[str]:
    """A warning for each model some of whose episodes were dropped or not judged: these may be the hard ones."""
    why = "were dropped, ran out of time or have no scored verdict; its rates are those of the others"
    return [
        f"{split}: warning: {unscored:,} of {unscored + measures['episodes']:,} episodes of {model} {why}"
        for split, models in summary.evaluation.items()
        for model, measures in models.items()
        if (unscored := measures.get("unscored"))
    ]


def attempts_lines(summary: Summary) -> list[str]:
    """A warning for each model whose pass@k leaves out tasks, since these have fewer than k finished attempts."""
    lines = []
    for split, models in summary.evaluation.items():
        for model, measures in models.items():
            counts = measures.get("pass_at_k_tasks", {}).items()
            fewer = [
                f"pass@{k} of {model} is over {n:,} of {measures['n']:,} tasks" for k, n in counts if n < measures["n"]
            ]
            if fewer:
                lines.append(f"{split}: warning: {', '.join(fewer)}; the others have fewer attempts")
    return lines


def warning_lines(summary: Summary) -> list[str]:
    """A warning for each split whose intervals rest on few environments, or do not know these."""
    lines = []
    for split, models in summary.evaluation.items():
        known = environments_of(models)
        if known is None:
            what = "these intervals of an earlier version take tasks of one environment as independent; run it again"
        elif known < FEW_ENVIRONMENTS:
            what = f"only {counted(known, 'environment')}; intervals from fewer than {FEW_ENVIRONMENTS} are wide, since"
            what += " their spread is hardly known, so evaluate on tasks of more environments"
        else:
            continue
        lines.append(f"{split}: warning: {what}")
    return lines


def environments_of(models: JsonObject) -> int | None:
    """The fewest environments that a result of a split rests on; ``None`` if that is not known."""
    return min((each["environments"] for each in models.values() if each.get("environments") is not None), default=None)


def difference_lines(summary: Summary) -> list[str]:
    """What each split says of the difference between the first and the last of its models."""
    return [
        f"{split}: {difference_line(models['paired_difference'])}"
        for split, models in summary.evaluation.items()
        if models.get("paired_difference") is not None
    ]


def difference_line(difference: Mapping[str, Any]) -> str:
    """A paired difference in words; one of an earlier version does not know its environments."""
    found = (
        f"{difference['model']} minus {difference['reference']} = {100 * difference['value']:+.1f} points, "
        f"95 % interval {interval(difference['ci95'], signed=True)}, "
        f"{difference['better']} tasks better and {difference['worse']} worse of {difference['n']}"
    )
    if "environments" in difference:
        better, worse = difference["environments_better"], difference["environments_worse"]
        found += f", {better} better and {worse} worse of {counted(difference['environments'], 'environment')}"
    return f"{found}, p = {difference['p_value']:.2g}"


def counted(n: int, noun: str) -> str:
    """A number of things."""
    return f"{n} {noun}{'s' * (n != 1)}"


def percent(share: float | None) -> str:
    """A share in percent, or ``-``."""
    return "-" if share is None else f"{100 * share:.1f} %"


def interval(ends: tuple[float, float] | None, signed: bool = False) -> str:
    """An interval in percent, or ``-``."""
    if ends is None:
        return "-"
    low, high = (f"{100 * end:+.1f}" if signed else f"{100 * end:.1f}" for end in ends)
    return f"[{low}, {high}]"


def next_commands(summary: Summary, again: bool = True) -> list[str]:
    """Commands worth trying after this run, each of which works on what it made; ``again``: one with another seed."""
    commands: list[list[str]] = []
    for stage in reversed(summary.stages.values()):
        if stage.record == "Trajectory" and stage.written:
            commands.append(["inspect", stage.where])
            commands.append(["export", stage.where, "--to", "adp", "--out", f"{summary.run_dir}/adp"])
            break
    seed = summary.seed + 1
    other = f"{summary.run_dir.removesuffix(f'-seed{summary.seed}')}-seed{seed}"
    if again:
        commands.append(["run", f"{summary.run_dir}/recipe.yaml", f"seed={seed}", f"run_dir={other}"])
    return [shlex.join(["agentmill", *words]) for words in commands]
