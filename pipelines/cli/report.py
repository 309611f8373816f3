"""``agentmill report RUN``."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli.console import log, say
from schemas.errors import UserError


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--out", "file", metavar="FILE", type=click.Path(path_type=Path), help="Where to; RUN/report.html.")
def report(run: Path, file: Path | None) -> None:
    """Sum up a run on one page of HTML: its line, counts, success, models compared, costs, what was dropped and why.

    RUN is the folder of a run, such as runs/quickstart, finished or not. The page needs no other file and no network.
    """
    try:
        from pipelines.report.page import write_report
    except ModuleNotFoundError as error:
        raise UserError(f"a report needs {error.name}: pip install 'agentmill[pipeline,report]'") from error
    file = file or run / "report.html"
    made = write_report(run, file)
    done = sum(stage.state == "done" for stage in made.stages)
    log(f"{done} of {len(made.stages)} stages are done{'' if made.finished else '; the run is not finished'}")
    say(str(file))
