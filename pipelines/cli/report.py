"""``agentmill report RUN``."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from agentmill.pipelines.terminal.console import answer, answers, example, log, say


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    """Where a report is, and how many of the stages of its run are done."""

    file: str
    stages: int
    done: int
    finished: bool


@click.command(epilog=example("agentmill report runs/quickstart"))
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--out", "file", metavar="FILE", type=click.Path(path_type=Path), help="Where to; RUN/report.html.")
@answers(Reported)
def report(run: Path, file: Path | None, as_json: bool) -> None:
    """Sum up a run on one page of HTML: its steps, counts, success, models compared, costs, what was dropped and why.

    RUN is the folder of a run, such as runs/quickstart, finished or not. The page needs no other file and no network.
    """
    from agentmill.pipelines.report.page import write_report

    file = file or run / "report.html"
    made = write_report(run, file)
    done = sum(stage.state == "done" for stage in made.stages)
    reported = Reported(file=str(file), stages=len(made.stages), done=done, finished=made.finished)
    answer(reported, show, as_json)


def show(reported: Reported) -> None:
    """Print where a report is, and on stderr how far its run is."""
    unfinished = "" if reported.finished else "; the run is not finished"
    log(f"{reported.done} of {reported.stages} steps are done{unfinished}")
    say(reported.file)
