"""``agentmill inspect TABLE``."""

from __future__ import annotations

import click
import msgspec

from agentmill.pipelines.tables.dropped import Reason
from agentmill.pipelines.tables.inspection import Inspection, inspect_table
from agentmill.pipelines.terminal.console import Row, answer, answers, example, say, table
from agentmill.pipelines.untrusted_text import visible
from agentmill.schemas.tables import Table

SHOWN_CHARACTERS = 2_000


@click.command(epilog=example("agentmill inspect runs/quickstart/tasks"))
@click.argument("folder", metavar="TABLE")
@click.option("--rows", type=click.IntRange(min=0), default=1, show_default=True, help="Sample rows to show.")
@click.option("--dropped", is_flag=True, help="Show examples of dropped inputs, for the most frequent reasons.")
@answers(Inspection)
def inspect(folder: str, rows: int, dropped: bool, as_json: bool) -> None:
    """Show a table: counts, schema, histograms, sample rows.

    TABLE is a folder that holds data/ and manifest.json, such as runs/quickstart/tasks, or one on the Hub:
    hf://org/name@revision/tasks.
    """
    answer(inspect_table(Table.open(folder), rows, dropped), show, as_json)


def show(inspection: Inspection) -> None:
    """Print an inspection for people."""
    say(f"{inspection.path}: {inspection.record} {inspection.schema_version}, made by {inspection.operator}")
    counts = ", ".join(f"{name} {count:,}" for name, count in inspection.counts.items())
    say(f"{counts}; {inspection.files} files, {inspection.bytes / 1e6:,.2f} MB, {inspection.seconds:,.1f} s")
    say(f"files for other tools: {inspection.path}/data/*.parquet")
    for folder in inspection.beside:
        say(f"beside it: {folder}")
    if inspection.reasons:
        say()
        table("dropped, by reason", ["reason", "n"], list(inspection.reasons.items()))
    for reason in inspection.dropped:
        say()
        show_reason(reason)
    if inspection.metrics:
        say()
        table("figures", ["what", "n"], list(inspection.metrics.items()))
    if inspection.quality:
        say()
        table("quality", ["what", "value"], list(inspection.quality.items()))
    if inspection.fields:
        say()
        kept: list[Row] = [[each.field, each.source, each.extra, each.dropped] for each in inspection.fields]
        table("fields of the source ([]: of the objects in its lists)", ["field", "n", "in extra", "left out"], kept)
    say()
    table("columns", ["name", "type"], [[column.name, column.short_type] for column in inspection.columns])
    if inspection.categories:
        say()
        found = inspection.categories.items()
        rows: list[Row] = [[path, value or "-", n] for path, counts in found for value, n in counts.items()]
        table("categories", ["column", "value", "rows"], rows)
    if inspection.spreads:
        say()
        head = ["column", "n", "minimum", "median", "mean", "maximum"]
        table("numbers, and lengths of lists", head, [spread_row(path, inspection) for path in inspection.spreads])
    for row in inspection.rows:
        say()
        say(short(msgspec.json.format(msgspec.json.encode(row), indent=2).decode(), SHOWN_CHARACTERS))


def show_reason(reason: Reason) -> None:
    """Print examples of what was dropped for a reason."""
    say(f"{reason.reason}, {reason.n:,} inputs, such as")
    for each in reason.examples:
        say(visible(f"  {each.input_id} ({each.blamed}){each.detail and f': {each.detail}'}"))
        say(visible("\n".join(f"    {line}" for line in each.input.splitlines())))


def spread_row(path: str, inspection: Inspection) -> Row:
    """The row of one column in the table of spreads."""
    spread = inspection.spreads[path]
    return [path, spread.n, spread.minimum, spread.median, spread.mean, spread.maximum]


def short(text: str, limit: int) -> str:
    """``text``, cut at ``limit`` characters with a mark that says so."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit:,} more characters; --json has all)"
