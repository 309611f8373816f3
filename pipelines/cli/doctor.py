"""``agentmill doctor``."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from pipelines.cli.console import say, table
from pipelines.doctor import examine

FAILED = 1


@click.command()
@click.option(
    "--runs", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where runs are written."
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(runs: Path, as_json: bool) -> int:
    """Look at what is installed, GPU, sandbox, disk and ports.

    What is missing is a choice, and the advice says how to have it. Exit code 1 if something keeps agentmill from
    working at all. Nothing is asked over the network.
    """
    found = examine(runs)
    if as_json:
        say(msgspec.json.encode(found).decode())
    else:
        table("doctor", ["what", "state", "detail"], [[each.name, each.state, each.detail] for each in found])
        for each in found:
            if each.advice:
                say(f"{each.name}: {each.advice}")
    return FAILED if any(each.state == "broken" for each in found) else 0
