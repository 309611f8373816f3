"""The sections that go through the stages of a run: the line, what stayed, what it cost, what was dropped."""

from __future__ import annotations

from collections.abc import Iterable

from agentmill.pipelines.recipes.summary import Row, stage_columns, stage_rows, total_rows
from agentmill.pipelines.report.charts import Bars, parts_of
from agentmill.pipelines.report.drawing import Section, Sheet
from agentmill.pipelines.report.recipe_graph import line_pictures
from agentmill.pipelines.runs.run import Run, Stage
from agentmill.pipelines.tables.dropped import MOST_REASONS, reasons
from agentmill.pipelines.terminal.progress import cost, spent
from agentmill.schemas.profiles.fields import without_fields
from agentmill.schemas.tables import Manifest

MOST_BARS = 30
"""Rows of bars in one picture."""

SPENT = ("prompt_tokens", "completion_tokens", "cost_usd")
COUNTED = (
    "Tokens and money are those of the models that act in episodes, of a search those of its whole trees; what models "
    "are asked for elsewhere, as to write environments or to judge, is not counted. "
    "The table of steps has the tokens and US dollars of every request."
)
TOLD_ELSEWHERE = {"Trajectory": ("episodes", "success", "turns"), "Verdict": ("passed", "scored")}
"""Figures of tables that have a section of their own, by their records."""


def line_section(run: Run) -> Section:
    """Every stage with its counts."""
    summary = run.summary()
    known = {str(row[0]): row for row in stage_rows(summary)}
    rows: list[Row] = []
    for stage in run.stages:
        counted = known.get(stage.name, [stage.name, stage.step.operator, *[None] * (len(stage_columns(summary)) - 2)])
        elsewhere = [f"{name} (from elsewhere)" for name in stage.step.data]
        rows.append([*counted, stage.state, ", ".join([*stage.step.reads, *elsewhere])])
    words = ["Every input of a step is used or dropped exactly once; the rows that are written are counted separately."]
    rows += [[*row, "", ""] for row in total_rows(summary)]
    words += [f"{note}." for note in summary.spending_notes]
    sheet = Sheet("Steps", [*stage_columns(summary), "state", "made from"], rows)
    return Section(anchor="line", title="Steps", words=words, pictures=line_pictures(run.stages), sheets=[sheet])


def kept_section(run: Run) -> Section:
    """How much of what each stage read went on."""
    done = run.summary().stages
    read, lost = sum(each.read for each in done.values()), sum(each.dropped for each in done.values())
    rows = [Bars(name, [each.used, each.dropped], f"{each.used:,} of {each.read:,}") for name, each in done.items()]
    words = [f"Of {read:,} inputs of all steps, {lost:,} were dropped." if lost else "Nothing was dropped."]
    alt = "A bar for each step: inputs that were used, then inputs that were dropped; numbers as in the table of steps."
    pictures = parts_of(rows, ["used", "dropped"], "inputs", MOST_BARS, "Inputs used and dropped by each step", alt)
    return Section(anchor="kept", title="What stayed", words=words if done else ["No step is done."], pictures=pictures)


def cost_section(run: Run) -> Section:
    """Seconds, tokens and money by stage, what was spent on dropped episodes among it."""
    done = [stage for stage in run.stages if stage.summary is not None]
    rows = [cost_row(stage) for stage in done]
    times = [Bars(stage.name, [seconds(stage)], f"{seconds(stage):,.1f} s") for stage in done]
    asked = [stage for stage in done if tokens(stage)]
    counts = [
        Bars(
            stage.name,
            [amount(stage, "prompt_tokens"), amount(stage, "completion_tokens"), lost(stage)],
            caption(stage),
        )
        for stage in asked
    ]
    alt = "A bar for each step; the same numbers are in the table of costs."
    parts = ["prompt", "completion", "of dropped episodes"]
    pictures = [
        *parts_of(times, ["seconds"], "seconds", MOST_BARS, "Time by step", alt),
        *parts_of(counts, parts, "tokens", MOST_BARS, "Tokens of language models by step", alt),
    ]
    columns = ["step", "seconds", *SPENT, *(f"lost {name}" for name in SPENT)]
    sheets = (
        [Sheet("Costs (lost: of dropped episodes, which the other columns leave out)", columns, rows)] if rows else []
    )
    figures = [row for stage in done for row in figure_rows(stage)]
    if figures:
        sheets.append(Sheet("Other figures of the steps", ["table or model", "figure", "value"], figures))
    total = sum(seconds(stage) for stage in done)
    words = [f"The steps took {total:,.1f} seconds in sum. {COUNTED}"] if done else ["No step is done."]
    dollars = sum(spent(each.metrics, "cost_usd") for stage in done for each in stage.manifests)
    if dollars:
        words.append(f"Episodes cost {dollars:,.2f} USD by the prices that were given.")
    return Section(anchor="cost", title="Time and cost", words=words, pictures=pictures, sheets=sheets)


def cost_row(stage: Stage) -> Row:
    """A stage in the table of costs; what was not measured is nothing."""
    measured: Row = [
        sum_of(stage.manifests, name) for prefix in ("", "lost_") for name in (prefix + each for each in SPENT)
    ]
    return [stage.name, round(seconds(stage), 1), *measured]


def figure_rows(stage: Stage) -> list[Row]:
    """All else that the tables and the training of a stage measured."""
    costs = {prefix + name for prefix in ("", "lost_", "tree_") for name in SPENT}
    rows: list[Row] = [
        [table.name, name, whole(value)]
        for table in stage.tables
        for name, value in without_fields(table.table.manifest.metrics).items()
        if name not in costs and name not in TOLD_ELSEWHERE.get(table.record, ()) and isinstance(value, int | float)
    ]
    if stage.trained is not None:
        measured = ("steps", "tokens", "loss_tokens", "first_loss", "last_loss")
        known: list[Row] = [[stage.name, name, getattr(stage.trained, name)] for name in measured]
        rows += [row for row in known if row[-1] is not None]
    return rows


def dropped_section(run: Run) -> Section:
    """Why inputs were dropped, most frequent reasons first, with examples."""
    found = [reason for each in run.tables for reason in reasons(each.name, each.table) if each.table.manifest.reasons]
    rows: list[Row] = [[reason.name, reason.reason, reason.n] for reason in found]
    for name, kept in ((stage.name, stage.trained) for stage in run.stages):
        rows += [[name, reason, n] for reason, n in (kept.reasons if kept is not None else {}).items()]
    if not rows:
        return Section(anchor="dropped", title="What was dropped, and why", words=["Nothing was dropped."])
    words = [
        "Dead letters lie in the folder dropped/ of each table. Below are some of each reason, cut where they are "
        f"long; of a table with more than {MOST_REASONS} reasons, the most frequent."
    ]
    sheet = Sheet("Dropped inputs by step and reason", ["table or model", "reason", "inputs"], rows)
    return Section(anchor="dropped", title="What was dropped, and why", words=words, sheets=[sheet], reasons=found)


def seconds(stage: Stage) -> float:
    """What a stage took."""
    return 0.0 if stage.summary is None else stage.summary.seconds


def sum_of(manifests: Iterable[Manifest], name: str) -> int | float | None:
    """A cost of several tables together; nothing where none has it."""
    values = [value for manifest in manifests if (value := cost(manifest.metrics, name)) is not None]
    return whole(sum(values)) if values else None


def whole(value: float) -> int | float:
    """A number that counts as one without a fraction."""
    return int(value) if float(value).is_integer() else value


def amount(stage: Stage, name: str) -> float:
    """A cost of all tables of a stage; 0 where there is none."""
    return sum_of(stage.manifests, name) or 0


def lost(stage: Stage) -> float:
    """The tokens of episodes that were dropped."""
    return amount(stage, "lost_prompt_tokens") + amount(stage, "lost_completion_tokens")


def tokens(stage: Stage) -> float:
    """All tokens of a stage."""
    return amount(stage, "prompt_tokens") + amount(stage, "completion_tokens") + lost(stage)


def caption(stage: Stage) -> str:
    """What is written behind the bar of a stage."""
    return f"{tokens(stage):,.0f}"
