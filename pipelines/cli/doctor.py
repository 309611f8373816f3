"""``agentmill doctor``."""

from __future__ import annotations

from pathlib import Path

import click

from agentmill.pipelines.doctor import Finding, examine
from agentmill.pipelines.terminal.console import answer, answers, example, say, table

FAILED = 1


@click.command(epilog=example("agentmill doctor"))
@click.option(
    "--runs", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where runs are written."
)
@answers(list[Finding])
def doctor(runs: Path, as_json: bool) -> int:
    """Look at what is installed, GPU, sandbox, disk and ports.

    What is missing is a choice, and the advice says how to have it. Exit code 1 if something keeps agentmill from
    working at all. Nothing is asked over the network.
    """
    found = examine(runs)
    answer(found, show, as_json)
    return FAILED if any(each.state == "broken" for each in found) else 0


def show(found: list[Finding]) -> None:
    """Print the findings for people."""
    table("doctor", ["what", "state", "detail"], [[each.name, each.state, each.detail] for each in found])
    for each in found:
        if each.advice:
            say(f"{each.name}: {each.advice}")
