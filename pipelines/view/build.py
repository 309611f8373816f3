"""A folder of HTML, scripts and data that shows a run: written once, then opened from the disk or served.

Tables are read one batch at a time. What stays in memory is the index: ids, codes and numbers of each row.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from agentmill.pipelines.terminal.console import log
from agentmill.pipelines.terminal.progress import displayed
from agentmill.pipelines.view.annotations import KINDS, ROWS, Pairs, add_annotations, add_nodes, add_tasks
from agentmill.pipelines.view.js_shards import JsShards, literal, shortened
from agentmill.pipelines.view.runs import Runs, marked_items, record_json
from agentmill.pipelines.view.sources import Source, batches, sources
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.file_lock import Locked, open_locked
from agentmill.schemas.ids import digest
from agentmill.schemas.records.manifest import disk_errors
from agentmill.schemas.records.record import JsonObject

STATIC = Path(__file__).parent / "static"
STAMP = ".agentmill-view.json"
"""What a view was made of. A folder without it is none, and is never written over."""


class View(msgspec.Struct, frozen=True):
    """What a view shows, by number, and its files with their bytes; ``digest`` is of all that it was made of."""

    made_by: Literal["agentmill view"]
    digest: str
    trajectories: int
    pairs: int
    trees: int
    tables: int
    files: dict[str, int]


def view_at(folder: Path) -> View | None:
    """The view in ``folder``, if there is one. Raises ``UserError`` if there is something else."""
    if folder.is_mount():
        raise UserError(
            f"{folder} is a mount point, which cannot be replaced; give a folder in it: --out FOLDER",
            ErrorCode.MOUNT_POINT,
        )
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give a folder: --out FOLDER", ErrorCode.NOT_A_FOLDER)
    if not folder.exists() or not any(folder.iterdir()):
        return None
    known = {STAMP, "data", *(path.name for path in STATIC.iterdir())}
    other = sorted(path.name for path in folder.iterdir() if path.name not in known)
    try:
        if not other:
            return msgspec.json.decode((folder / STAMP).read_bytes(), type=View)
    except (FileNotFoundError, IsADirectoryError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        other = [STAMP] if (folder / STAMP).exists() else sorted(path.name for path in folder.iterdir())
    raise UserError(
        f"{folder} holds something else than a view ({', '.join(other[:3])}); give another folder: --out FOLDER",
        ErrorCode.OUTPUT_NOT_OURS,
    )


def files_in(folder: Path) -> dict[str, int]:
    """Bytes of each file of a view, by its path in the folder; all but the stamp."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != STAMP)
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


POLL_S = 0.2
"""How often a build looks whether another one of the same folder has ended."""


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Build ``folder`` while no other process does; what another one builds now is waited for."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_name(f".{folder.name}.agentmill.lock")
    is_noted = False
    while True:
        try:
            handle = open_locked(path)
            break
        except Locked as owner:
            if not is_noted:
                log(f"waiting for process {owner}, which writes {folder}")
            is_noted = True
            time.sleep(POLL_S)
    with handle:
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """An empty folder to write into, which takes the place of ``folder`` at the end; after an error nothing changes.

    Clears what killed builds left next to ``folder``, so there is no other build of it at the same time (``alone``).
    """
    prefix = f".{folder.name}.agentmill-"
    for left in folder.parent.iterdir():
        if left.name.startswith(prefix):
            shutil.rmtree(left, ignore_errors=True)
    # Next to it, since a rename needs the same device.
    scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    new, old = scratch / "new", scratch / "old"
    new.mkdir()
    try:
        yield new
        # A rename does not replace a folder that holds something.
        if folder.exists():
            folder.rename(old)
        try:
            new.rename(folder)
        except OSError:
            if old.exists():
                old.rename(folder)
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


FORMAT = 2
"""Raised when the same tables come out as other data files; views of another format are made again."""
PER_FILE = {"runs": 100, "trees": 20, "tasks": 500, "pairs": 100}
"""How many trajectories, trees, tasks and pairs a data file holds."""


def build(path: Path, folder: Path, token_ids: bool = False, title: str | None = None) -> tuple[View, bool]:
    """Write the view of the run or table ``path`` into ``folder``; also, whether that was to be done.

    ``title`` is by default the name of ``path``. What is there already stays if it was made of the same tables and is
    whole. Raises ``UserError`` if there is nothing to show, if ``folder`` holds something else or is a mount point, or
    if the device is full.
    """
    # Of a link the folder that it leads to: the rename would replace the link itself.
    folder = folder.resolve()
    found = sources(path)
    title = title or path.resolve().name
    wanted = digest(FORMAT, title, [[each.name, each.table.digest] for each in found], token_ids, static_digest())
    with disk_errors(folder):
        there = whole_view(folder, wanted)
        if there is not None:
            return there, False
        with alone(folder):
            there = whole_view(folder, wanted)
            if there is not None:
                return there, False
            with replaced(folder) as new:
                return write(title or path.resolve().name, found, new, wanted, token_ids), True


def whole_view(folder: Path, wanted: str) -> View | None:
    """The view in ``folder`` if it is made of what is ``wanted`` and lacks nothing. Raises ``UserError`` as view_at."""
    there = view_at(folder)
    return there if there is not None and there.digest == wanted and there.files == files_in(folder) else None


def static_digest() -> str:
    """The digest of the pages themselves."""
    files = sorted(path for path in STATIC.rglob("*") if path.is_file())
    return digest([[str(path.relative_to(STATIC)), path.read_text("utf-8")] for path in files])


def write(title: str, found: list[Source], folder: Path, wanted: str, token_ids: bool) -> View:
    """Write all files of a view into the empty ``folder``."""
    for each in STATIC.iterdir():
        if each.is_dir():
            shutil.copytree(each, folder / each.name)
        else:
            shutil.copy(each, folder)
    runs, pairs, trees = Runs(environment_names(found)), Pairs(), dict[str, int]()
    with ExitStack() as stack:
        all_shards = {name: stack.enter_context(JsShards(folder / "data", name, n)) for name, n in PER_FILE.items()}
        fill(found, runs, pairs, trees, all_shards, token_ids)
    index = {
        "title": title,
        "per_file": PER_FILE,
        "files": {name: sorted(shards.files) for name, shards in all_shards.items()},
        "token_ids": token_ids,
        "tables": [[each.name, each.record, each.table.manifest.counts.written] for each in found],
        "runs": runs.encoded(),
        "pairs": pairs.encoded(),
    }
    (folder / "data/index.js").write_bytes(b"agentmill.start(%b);\n" % literal(msgspec.json.encode(index)))
    numbers = (len(runs.ids), len(pairs.ids), len(trees), len(found))
    view = View("agentmill view", wanted, *numbers, files_in(folder))
    (folder / STAMP).write_bytes(msgspec.json.encode(view))
    return view


def fill(
    found: list[Source],
    runs: Runs,
    pairs: Pairs,
    trees: dict[str, int],
    all_shards: dict[str, JsShards],
    token_ids: bool,
) -> None:
    """Read all tables: trajectories first, then what speaks of them."""
    marked = any(each.record in ROWS for each in found)
    done: set[str] = set()
    with displayed("view", sum(map(size, found))) as advance:
        for source in of(found, "Trajectory"):
            add_runs(source, runs, all_shards["runs"], token_ids, marked, advance)
        for source in of(found, *KINDS):
            add_annotations(source, runs, all_shards["runs"])
            advance(size(source))
        for source in of(found, "Node"):
            add_nodes(source, runs, trees, all_shards["trees"])
            advance(size(source))
        for source in of(found, "Task"):
            add_tasks(source, runs.tasks, all_shards["tasks"], done)
            advance(size(source))
        for source in of(found, "PreferenceRow"):
            pairs.add(source, runs, all_shards["pairs"])
            advance(size(source))


def add_runs(
    source: Source, runs: Runs, shards: JsShards, token_ids: bool, marked: bool, advance: Callable[[int], None]
) -> None:
    """Put the trajectories of a table into the index and on the shelf; equal ones of several tables are one."""
    for batch in batches(source.table):
        advance(len(batch))
        for trajectory in batch:
            place, called = runs.add(trajectory, source)
            if called is not None:
                shards.add(place, "record", record_json(trajectory, called, token_ids))
                if marked:
                    shards.add(place, "marks", msgspec.json.encode(marked_items(trajectory)))


def size(source: Source) -> int:
    """How many rows a table has."""
    return source.table.manifest.counts.written


def of(found: list[Source], *records: str) -> list[Source]:
    """The tables of these records."""
    return [each for each in found if each.record in records]


def environment_names(found: list[Source]) -> dict[str, str]:
    """What each environment is called in lists: name, family, and of its id as much as tells it from others."""
    names: JsonObject = {}
    for source in of(found, "EnvironmentSpec"):
        for batch in batches(source.table, ["environment_id", "family", "name", "source"]):
            for spec in batch:
                names[spec.environment_id] = shortened(f"{spec.name} ({spec.family}) {spec.environment_id[:8]}")
    return names
