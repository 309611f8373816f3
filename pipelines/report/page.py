"""The page of a report: one file of HTML with its style and its pictures inside, which runs and loads nothing."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pipelines.cli.console import text
from pipelines.report.comparison import comparison_section
from pipelines.report.contents import lengths_section, sources_of, success_section, tasks_section
from pipelines.report.pictures import drawing
from pipelines.report.run import Run, read_run
from pipelines.report.section import Section
from pipelines.report.stages import cost_section, dropped_section, kept_section, line_section
from pipelines.report.tallies import episodes, judged, tasks
from pipelines.report.text import cut, finalize
from schemas.errors import UserError
from schemas.manifest import write_atomically

HERE = Path(__file__).parent
MARK = b'<meta name="generator" content="agentmill report">'
"""What tells a report from other pages."""

CELL_CHARACTERS = 300


def write_report(folder: Path, file: Path) -> Run:
    """Write the report of the run in ``folder`` into ``file``; the same run gives the same bytes.

    Raises ``UserError`` if there is no run, or if something of it is damaged, or if ``file`` is something else than an
    earlier report.
    """
    refuse_foreign(file)
    run = read_run(folder)
    write_atomically(file, page(run).encode(), file.parent)
    return run


def refuse_foreign(file: Path) -> None:
    """Raises ``UserError`` if ``file`` is there and is no report."""
    if file.is_dir():
        raise UserError(f"{file} is a folder; give a file: --out {file / 'report.html'}")
    if file.exists():
        with file.open("rb") as opened:
            if MARK not in opened.read(4_000):
                raise UserError(f"{file} is no report, and is not written over; give another file: --out FILE")


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
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    template = environment.get_template("page.html.jinja")
    with drawing():
        found = sections(run)
    return template.render(run=run, sections=found, standing=standing(run), resume=resume(run), css=css, digest=digest)


def sections(run: Run) -> list[Section]:
    """All that is said of a run."""
    played = [episodes(each) for each in sources_of(run, "Trajectory")]
    verdicts = [judged(each) for each in sources_of(run, "Verdict")]
    return [
        line_section(run),
        kept_section(run),
        tasks_section([tasks(each) for each in sources_of(run, "Task")]),
        lengths_section(played),
        success_section(run, played, verdicts),
        comparison_section(run),
        cost_section(run),
        dropped_section(run),
    ]


def standing(run: Run) -> str:
    """How far a run is, in words."""
    done = sum(stage.state == "done" for stage in run.stages)
    if run.finished:
        return f"This run is finished: {done} of {done} stages are done."
    begun = [stage.name for stage in run.stages if stage.state == "begun"]
    waiting = [stage.name for stage in run.stages if stage.state == "not begun"]
    parts = [f"This run is not finished: {done} of {len(run.stages)} stages are done."]
    parts += [f"Begun: {', '.join(begun)}."] if begun else []
    parts += [f"Not begun: {', '.join(waiting)}."] if waiting else []
    return " ".join([*parts, "It is still running, or it was interrupted. This page tells what is there."])


def resume(run: Run) -> str | None:
    """The command that goes on with an unfinished run."""
    if run.finished:
        return None
    same = Path(run.recipe.run_dir).resolve() == run.folder.resolve()
    return f"agentmill run {run.folder}/recipe.yaml" + ("" if same else f" run_dir={run.folder}")
