"""A folder of HTML, scripts and data that shows a run: written once, then opened from the disk or served.

Tables are read one batch at a time. What stays in memory is the index: ids, codes and numbers of each row.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec

from pipelines.engine.meter import metered
from pipelines.view.columns import shortened
from pipelines.view.folder import STAMP, STATIC, View, files_in, replaced, view_at
from pipelines.view.runs import Runs, marked_items, record_json
from pipelines.view.said import KINDS, ROWS, Pairs, add_nodes, add_said, add_tasks
from pipelines.view.shelf import Shelf, literal
from pipelines.view.sources import Source, batches, sources
from schemas.ids import digest
from schemas.manifest import disk_errors
from schemas.record import JsonObject

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
    folder = folder.resolve()
    found = sources(path)
    wanted = digest(FORMAT, [[each.name, each.table.digest] for each in found], token_ids, static_digest())
    with disk_errors(folder):
        there = view_at(folder)
        if there is not None and there.digest == wanted and there.files == files_in(folder):
            return there, False
        with replaced(folder) as new:
            return write(title or path.resolve().name, found, new, wanted, token_ids), True


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
        shelves = {name: stack.enter_context(Shelf(folder / "data", name, n)) for name, n in PER_FILE.items()}
        fill(found, runs, pairs, trees, shelves, token_ids)
    index = {
        "title": title,
        "per_file": PER_FILE,
        "files": {name: sorted(shelf.files) for name, shelf in shelves.items()},
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
    found: list[Source], runs: Runs, pairs: Pairs, trees: dict[str, int], shelves: dict[str, Shelf], token_ids: bool
) -> None:
    """Read all tables: trajectories first, then what speaks of them."""
    marked = any(each.record in ROWS for each in found)
    done: set[str] = set()
    with metered("view", sum(map(size, found))) as advance:
        for source in of(found, "Trajectory"):
            add_runs(source, runs, shelves["runs"], token_ids, marked, advance)
        for source in of(found, *KINDS):
            add_said(source, runs, shelves["runs"])
            advance(size(source))
        for source in of(found, "Node"):
            add_nodes(source, runs, trees, shelves["trees"])
            advance(size(source))
        for source in of(found, "Task"):
            add_tasks(source, runs.tasks, shelves["tasks"], done)
            advance(size(source))
        for source in of(found, "PreferenceRow"):
            pairs.add(source, runs, shelves["pairs"])
            advance(size(source))


def add_runs(
    source: Source, runs: Runs, shelf: Shelf, token_ids: bool, marked: bool, advance: Callable[[int], None]
) -> None:
    """Put the trajectories of a table into the index and on the shelf; equal ones of several tables are one."""
    for batch in batches(source.table):
        advance(len(batch))
        for trajectory in batch:
            place, called = runs.add(trajectory, source)
            if called is not None:
                shelf.add(place, "record", record_json(trajectory, called, token_ids))
                if marked:
                    shelf.add(place, "marks", msgspec.json.encode(marked_items(trajectory)))


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
