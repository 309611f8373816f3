"""The page of a report: one file of HTML with its style and its pictures inside, which runs and loads nothing."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from agentmill.pipelines.recipes.run_folder import resume_command
from agentmill.pipelines.report.comparison import comparison_section
from agentmill.pipelines.report.contents import lengths_section, sources_of, success_section, tables_of, tasks_section
from agentmill.pipelines.report.drawing import Section, drawing
from agentmill.pipelines.report.selections import selections_section
from agentmill.pipelines.report.stages import cost_section, dropped_section, kept_section, line_section
from agentmill.pipelines.report.tallies import episodes, judged, tasks
from agentmill.pipelines.runs.run import STALE, Run, State, read_run
from agentmill.pipelines.terminal.console import text
from agentmill.pipelines.untrusted_text import cut, finalize
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.manifest import write_atomically

HERE = Path(__file__).parent
HEAD = re.compile(
    rb'<!doctype html>\n<html lang="en">\n<head>\n(<meta [^<>]*>\n)*<meta name="generator" content="agentmill report">'
)
"""How a report begins, and no other file: one that only quotes it is not written over."""

CELL_CHARACTERS = 300
LACKING: dict[State, str] = {
    "begun": "Begun",
    "not begun": "Not begun",
    STALE: "Made from other inputs than lie there now, and left out here",
}
"""What the page says before the names of stages in these states."""


def write_report(folder: Path, file: Path) -> Run:
    """Write the report of the run in ``folder`` into ``file``; the same run gives the same bytes.

    Raises ``UserError`` if there is no run, or if something of it is damaged, or if ``file`` is something else than an
    earlier report, or cannot be written.
    """
    refuse_foreign(file)
    run = read_run(folder)
    content = page(run).encode()
    try:
        write_atomically(file, content, file.parent)
    except OSError as error:
        raise UserError(
            f"{file} cannot be written ({error.strerror}); give another file: --out FILE", ErrorCode.NOT_WRITABLE
        ) from error
    except UserError as error:
        if error.code is not ErrorCode.NOT_WRITABLE:
            raise
        raise UserError(f"{error}, or give another file: --out FILE", error.code) from error
    return run


def refuse_foreign(file: Path) -> None:
    """Raises ``UserError`` if ``file`` is there and is no report."""
    if file.is_dir():
        raise UserError(f"{file} is a folder; give a file: --out {file / 'report.html'}", ErrorCode.NOT_A_FILE)
    if file.exists():
        # Of what is no regular file, such as a pipe, a first byte may never come.
        if not file.is_file():
            raise UserError(f"{file} is no regular file; give another file: --out FILE", ErrorCode.NOT_A_FILE)
        with file.open("rb") as opened:
            if not HEAD.match(opened.read(4_000)):
                raise UserError(
                    f"{file} is no report, and is not written over; give another file: --out FILE",
                    ErrorCode.OUTPUT_NOT_OURS,
                )


def page(run: Run) -> str:
    """The report of a run as HTML."""
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = lambda cell: cut(text(cell), CELL_CHARACTERS)
    css = (HERE / "page.css").read_text("utf-8")
    # The policy of the page allows this one style only, by its digest.
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    template = environment.get_template("page.html.jinja")
    with drawing():
        found = sections(run)
    return template.render(run=run, sections=found, status=status(run), resume=resume(run), css=css, digest=digest)


def sections(run: Run) -> list[Section]:
    """All that a report shows of a run."""
    played = [episodes(each, stage.step) for stage in run.stages for each in tables_of(stage, "Trajectory")]
    verdicts = [judged(each) for each in sources_of(run, "Verdict")]
    return [
        line_section(run),
        kept_section(run),
        selections_section(run),
        tasks_section([tasks(each) for each in sources_of(run, "Task")]),
        lengths_section(played),
        success_section(run, played, verdicts),
        comparison_section(run),
        cost_section(run),
        dropped_section(run),
    ]


def status(run: Run) -> str:
    """How far a run is, in words."""
    done = sum(stage.state == "done" for stage in run.stages)
    if run.finished:
        return f"This run is finished: {done} of {done} steps are done."
    parts = [f"This run is not finished: {done} of {len(run.stages)} steps are done."]
    for state, lead in LACKING.items():
        if names := [stage.name for stage in run.stages if stage.state == state]:
            parts.append(f"{lead}: {', '.join(names)}.")
    return " ".join([*parts, "It is still running, or it was interrupted. This page shows what is there."])


def resume(run: Run) -> str | None:
    """The command that goes on with an unfinished run."""
    if run.finished:
        return None
    # Without it a run ends at the first table that was made from other inputs.
    return resume_command(run.folder, *(["--replace"] if any(stage.state == STALE for stage in run.stages) else []))
