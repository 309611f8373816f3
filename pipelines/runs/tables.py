"""Runs on the disk: which one a table is in, which tables it holds, and whether it has come to its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from agentmill.pipelines.calibration import Calibration
from agentmill.pipelines.operators import audit_judge
from agentmill.pipelines.operators.evaluate import RESULT
from agentmill.pipelines.processes.identity import LOCK, in_use
from agentmill.pipelines.recipes.plan import revisions_of
from agentmill.pipelines.recipes.run_folder import RECIPE, SUMMARY, resume_command, started_in
from agentmill.pipelines.recipes.summary import Summary
from agentmill.pipelines.view.sources import is_table
from agentmill.schemas.config import read_yaml
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.hub import cached, is_address, parse
from agentmill.schemas.records.manifest import MANIFEST_NAME, read_manifest

DEEPEST = 4
"""How far below its run directory a table lies at most: ``evaluation/SPLIT/MODEL/trajectories``."""


def run_of(path: Path) -> Path | None:
    """The run directory that ``path`` is or is in."""
    folder = path.resolve()
    above = (folder, *folder.parents[:DEEPEST])
    # Any folder may hold a recipe; one in which it was run has a lock, too.
    return next((each for each in above if (each / RECIPE).exists() and (each / LOCK).exists()), None)


def tables_below(folder: Path) -> list[Path]:
    """The folders of all tables below ``folder``, those of a table's sides too, but not what is hidden."""
    found = sorted(each.parent for each in folder.rglob(MANIFEST_NAME) if is_table(each.parent))
    return [each for each in found if not any(part.startswith(".") for part in each.relative_to(folder).parts)]


def evaluated(folder: Path, run: Path) -> bool:
    """Whether a table was made to evaluate models."""
    inside = folder.relative_to(run).parts
    return any((run.joinpath(*inside[:depth]) / RESULT).exists() for depth in range(1, len(inside)))


def given_to(run: Path) -> Iterator[Path]:
    """Where the tables lie that a run was given; of those on the Hub, where the run has downloaded them."""
    recipe = read_yaml(run / RECIPE)
    for place in map(str, (recipe.get("data") or {}).values()):
        if not is_address(place):
            yield place_of(run, str(recipe.get("run_dir")), place)
            continue
        address = parse(place)
        commit = address.revision if address.pinned else revisions_of(run).get(str(address._replace(path="")))
        folder = None if commit is None else cached(address._replace(revision=commit))
        if folder is not None:
            yield folder


def place_of(run: Path, run_dir: str, place: str) -> Path:
    """The folder that a recipe names ``place``, which has run in ``run`` and calls this ``run_dir``.

    A relative one is looked for from where the run was started, as long as ``run`` still ends with ``run_dir``, and
    else from the working directory.
    """
    started, wanted = started_in(run, run_dir), Path(place).expanduser()
    return started / wanted if started is not None and (started / wanted).exists() else wanted


def check_one_run(path: Path, run: Path | None, folders: Iterable[Path]) -> None:
    """Raises ``UserError`` if tables below ``path`` are those of other runs than that of ``path``."""
    inner = sorted({found for folder in folders if (found := run_of(folder)) not in (None, run)}, key=str)
    if inner:
        names = ", ".join(each.relative_to(path.resolve()).as_posix() for each in inner if each is not None)
        raise UserError(
            f"{path} holds several runs ({names}); publish one, for example {path / names.split(',')[0]}",
            ErrorCode.SEVERAL_MATCH,
        )


def check_finished(run: Path, known: Mapping[str, Path]) -> None:
    """Raises ``UserError`` unless the run came to its end, and what lies there is what its summary lists."""
    resume = f"finish it with `{resume_command(run)}`, or choose among its tables with --table"
    # Asked first: while a run finds all its steps done, the summary of the last time is still there.
    if in_use(run):
        raise UserError(
            f"{run} is still running; wait for it, or choose among its tables with --table", ErrorCode.RUN_IN_USE
        )
    summary = summary_of(run)
    if summary is None:
        raise UserError(f"{run} is not finished, for it has no {SUMMARY}; {resume}", ErrorCode.RUN_UNFINISHED)
    by_step = {name: each.written for name, each in summary.stages.items() if each.record is not None}
    there = {name: read_manifest(folder).counts.written for name, folder in known.items()}
    for name, rows in by_step.items():
        if there.get(name) != rows:
            state = "is not there" if name not in there else f"has {there[name]:,} rows"
            raise UserError(
                f"{run}: {SUMMARY} lists a table {name} with {rows:,} rows, which {state}; {resume}",
                ErrorCode.RUN_UNFINISHED,
            )
    for name in there:
        if not any(name == stage or name.startswith(f"{stage}/") for stage in summary.stages):
            raise UserError(
                f"{run} has a table {name} that {SUMMARY} does not tell of; "
                "move it out of the run, or choose among its tables with --table",
                ErrorCode.TABLE_NOT_OF_RUN,
            )


def calibrations_of(run: Path) -> list[Calibration]:
    """What a run measured of its judges, in the order of the folders. Raises ``UserError`` for a damaged file."""
    found = []
    for path in sorted(run.rglob(audit_judge.RESULT)):
        if any(part.startswith(".") for part in path.relative_to(run).parts):
            continue
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=Calibration))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UserError(
                f"{path} is damaged ({error}); `{resume_command(run)}` writes it anew", ErrorCode.DAMAGED_FILE
            ) from None
    return found


def summary_of(run: Path) -> Summary | None:
    """The summary of a run; ``None`` where it has none yet. Raises ``UserError`` if it is damaged."""
    path = run / SUMMARY
    try:
        return msgspec.json.decode(path.read_bytes(), type=Summary) if path.exists() else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(
            f"{path} is damaged ({error}); `{resume_command(run)}` writes it anew", ErrorCode.DAMAGED_FILE
        ) from None
