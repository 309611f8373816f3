"""Attempts at a table: each start of a stage is one, and takes over what an earlier one with an equal plan has done."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from agentmill.pipelines.engine.journal import ended, renew
from agentmill.pipelines.engine.operation import SIDES
from agentmill.pipelines.engine.provenance import CLEARING, WORK, Provenance, changed, check_ours, shown
from agentmill.pipelines.engine.shard import ShardResult
from agentmill.pipelines.engine.workspace import Plan, Workspace, read_note, write_note
from agentmill.pipelines.processes.identity import identity
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.manifest import MANIFEST_NAME, TEMPORARY_FOLDER
from agentmill.schemas.records.verdict import Dropped
from agentmill.schemas.tables import read_columns

PLAN = "plan.json"
_FOLDERS = ("results", "candidates", "alive")
_OF_AN_ATTEMPT = ("stop", "started", "failure.json", "halted.json", "lease")
"""Notes that say something of one attempt only."""


def refuse_other_work(folder: Path, wanted: Provenance, order: Sequence[str]) -> None:
    """Raises ``UserError`` where an unfinished table has work that was done otherwise than ``wanted``.

    It may have cost hours or money, and an attempt by another plan would remove it. ``order`` is that of ``Plan``.
    """
    for path in sorted((folder / WORK).glob("*/")):
        plan = read_note(path / PLAN, Plan)
        changes = [] if plan is None else changed(plan.provenance, wanted) or _turned(plan.order, order)
        damaged = plan is None and (path / PLAN).exists()
        done = used_inputs(Workspace(str(folder), path.name)) if damaged or changes else 0
        if damaged and done:
            raise UserError(
                f"{folder} is unfinished, and {path / PLAN} is damaged: its {done:,} inputs that are done cannot be"
                " taken over\nrun again with --replace to make it anew, or with another run_dir=…",
                ErrorCode.JOURNAL_UNREADABLE,
            )
        if changes and done:
            raise UserError(
                f"{folder} is unfinished, and its {done:,} inputs that are done were made differently:"
                f" {shown(changes)}\n"
                "run again as before to go on, with --replace to make it anew, or with another run_dir=…",
                ErrorCode.MADE_DIFFERENTLY,
            )


def _turned(held: Sequence[str], wanted: Sequence[str]) -> list[str]:
    return ["its input tables come in another order"] if list(held) != list(wanted) else []


def used_inputs(workspace: Workspace) -> int:
    """How many inputs an attempt has used at least, in chunks that are done and in others."""
    notes = (read_note(note, ShardResult) for note in (workspace.path / "results").glob("*.json"))
    # The journal may still hold those of chunks that are done.
    return max(sum(note.counts.used for note in notes if note is not None), ended(workspace.journal))


def begin(folder: Path, plan: Plan) -> Workspace:
    """Begin an attempt at the table in ``folder``, for which the caller holds the lock of the run.

    Chunks that an attempt by an equal plan has done, and whose files are as their notes say, count as done; its
    journal is taken over. What another plan made is removed, a finished table too. Workers of earlier attempts find
    their folder gone from here on.
    """
    workspace = Workspace(str(folder), secrets.token_hex(6), identity(os.getpid()) or "")
    earlier = [path for path in sorted((folder / WORK).glob("*/")) if read_note(path / PLAN, Plan) == plan]
    resumes = bool(earlier) and not (folder / MANIFEST_NAME).exists()
    if resumes:
        # One rename takes the attempt over: at every moment its folder has one name, and old workers have the other.
        earlier[-1].rename(workspace.path)
        for path in (folder / WORK).glob("*/"):
            if path != workspace.path:
                shutil.rmtree(path, ignore_errors=True)
        _take_over(workspace)
    else:
        clear(folder)
        workspace.path.mkdir(parents=True)
    for name in _FOLDERS:
        (workspace.path / name).mkdir(exist_ok=True)
    if not resumes:
        # Last, for a folder with a plan is taken over as a whole attempt.
        write_note(workspace.path / PLAN, plan)
    return workspace


def _take_over(workspace: Workspace) -> None:
    """Keep what is done of an earlier attempt and undamaged."""
    for name in _OF_AN_ATTEMPT:
        (workspace.path / name).unlink(missing_ok=True)
    # Signs of life of workers that are gone would never change again, and count as silence.
    shutil.rmtree(workspace.path / "alive", ignore_errors=True)
    places, dropped = set(), set[str]()
    for phase in ("results", "candidates"):
        for note in sorted((workspace.path / phase).glob("*.json")):
            result = read_note(note, ShardResult)
            # Files are compared, since a power failure can leave a note whose files never reached the disk.
            if result is None or not _is_whole(workspace, result):
                note.unlink()
            else:
                places.add(result.place)
                if result.passing:
                    letters = workspace.path / result.place / "dropped" / result.chunk.name
                    dropped.update(read_columns(letters, Dropped, ["input_id"])["input_id"].to_pylist())
    # A worker of the old attempt may still have the journal open, and an open file follows a rename.
    renew(workspace.journal, dropped)
    # No note names them: their worker ended between the files and the note.
    for path in workspace.path.glob("[0-9]*-*/"):
        if path.name not in places:
            shutil.rmtree(path, ignore_errors=True)


def _is_whole(workspace: Workspace, result: ShardResult) -> bool:
    """Whether the files of a chunk are those that its note lists."""
    try:
        for part, file in result.files():
            file.check(workspace.path / result.place / part / file.name)
    except (UserError, OSError):
        return False
    return True


def clear(folder: Path) -> None:
    """Remove the table: the manifest first, so that what is left at any moment is no table.

    Raises ``UserError``, and removes nothing, if the folder holds anything that is not ours.
    """
    check_ours(folder)
    (folder / WORK).mkdir(parents=True, exist_ok=True)
    # Without a manifest and a plan, a kill in the middle would leave shards that ``check_ours`` takes for the user's.
    (folder / CLEARING).touch()
    (folder / MANIFEST_NAME).unlink(missing_ok=True)
    # The folder with that mark goes last.
    for name in ("data", "dropped", *SIDES, TEMPORARY_FOLDER, WORK):
        shutil.rmtree(folder / name, ignore_errors=True)


def end(folder: Path) -> None:
    """Remove what only an unfinished table needs, also what workers that were killed left behind."""
    for name in (WORK, TEMPORARY_FOLDER):
        shutil.rmtree(folder / name, ignore_errors=True)


def current(folder: Path) -> Workspace | None:
    """The workspace of the attempt that is under way in ``folder``, or that a killed run has left."""
    found = [path for path in sorted((folder / WORK).glob("*/")) if (path / PLAN).exists()]
    return Workspace(str(folder), found[-1].name) if found else None
