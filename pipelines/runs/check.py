"""Whether tables are what their manifests tell: digests of files, counts of rows, and the tables they are made from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from agentmill.pipelines.engine.operation import SIDES
from agentmill.pipelines.engine.provenance import CLEARING, SEEDS, WORK, unnumbered
from agentmill.pipelines.recipes.run_folder import SUMMARY
from agentmill.pipelines.recipes.summary import Summary
from agentmill.pipelines.runs.run import decoded
from agentmill.pipelines.runs.tables import given_to, run_of
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.manifest import MANIFEST_NAME, ShardFile
from agentmill.schemas.tables import Counts, Table, entries


class CheckedTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table: its files and rows, dropped ones apart, and what is ``wrong`` with it, a line each.

    ``not_found`` are inputs of a table outside of a run, which may lie anywhere.
    """

    path: str
    files: int
    rows: int
    dropped: int
    wrong: list[str]
    not_found: list[str] = []


def tables_below(path: Path) -> list[Path]:
    """The folders of the tables in ``path``, a run or a table itself. Raises ``UserError`` if there is none.

    Tables that one writes besides its own rows belong to it.
    """
    found = [manifest.parent for manifest in sorted(path.rglob(MANIFEST_NAME))]
    found = [folder for folder in found if SEEDS not in folder.parts and WORK not in folder.parts]
    found = [folder for folder in found if not (folder.name in SIDES and folder.parent in found)]
    if not found:
        raise UserError(f"{path} holds no table; expected the folder of a run or of a table", ErrorCode.TABLE_MISSING)
    return found


def check_tables(path: Path, advance: Callable[[int], None] = lambda _: None) -> list[CheckedTable]:
    """Every table in ``path`` and what is wrong with it; ``advance`` is called for each. Raises as ``tables_below``."""
    folders = tables_below(path)
    runs = {folder: run_of(folder) for folder in folders}
    # A table was made from others of its run, whatever else lies here; outside of one from its neighbours.
    sources = {run: sources_of(run, folders) for run in dict.fromkeys(runs.values())}
    checked = []
    for folder in folders:
        checked.append(check_table(folder, sources[runs[folder]]))
        advance(1)
    whole = [run for run in sources if run is not None and run.is_relative_to(path.resolve())]
    return [*checked, *(table for run in whole for table in vanished(run))]


class Sources(msgspec.Struct, frozen=True):
    """What the tables of a run may have been made from: ``known`` has digests by the names of tables.

    ``lacking`` are tables that the run was given and that are not there, by their names.
    """

    known: dict[str, list[str]]
    lacking: dict[str, Path] = {}


def sources_of(run: Path | None, folders: Sequence[Path]) -> Sources:
    """Those of the tables of ``run``, or, outside of all runs, of those among ``folders`` that are there."""
    if run is None:
        alone = [folder for folder in folders if run_of(folder) is None]
        return Sources(
            digests([*alone, *(near for each in {folder.parent for folder in alone} for near in each.glob("*/"))])
        )
    given = list(given_to(run))
    inside = [folder for folder in tables_below(run) if run_of(folder) == run]
    return Sources(
        digests([*inside, *given]), {each.name: each for each in given if not (each / MANIFEST_NAME).exists()}
    )


def vanished(run: Path) -> Iterator[CheckedTable]:
    """The tables that a finished ``run`` has made and that have no manifest any more."""
    if not (run / SUMMARY).is_file():
        return
    for name, stage in decoded(run / SUMMARY, Summary).stages.items():
        if stage.record is not None and not (run / name / MANIFEST_NAME).exists():
            wrong = [f"the run has made it, and it has no {MANIFEST_NAME}; run the recipe again to make it anew"]
            yield CheckedTable(path=str(run / name), files=0, rows=0, dropped=0, wrong=wrong)


def check_table(folder: Path, sources: Sources) -> CheckedTable:
    """One table, and whether what it was made from is among ``sources``."""
    try:
        table = Table.open(folder)
    except UserError as error:
        return CheckedTable(path=str(folder), files=0, rows=0, dropped=0, wrong=[str(error).splitlines()[0]])
    manifest = table.manifest
    wrong: list[str] = []
    rows = sum_rows(folder / "data", manifest.files, wrong)
    dropped = sum_rows(folder / "dropped", manifest.dropped_files, wrong)
    for side in (name for name in SIDES if (folder / name / MANIFEST_NAME).exists()):
        try:
            sum_rows(folder / side / "data", Table.open(folder / side).manifest.files, wrong)
        except UserError as error:
            wrong.append(str(error).splitlines()[0])
    wrong += miscounts(manifest.counts, rows, dropped)
    changed, gone = unknown_inputs(manifest.inputs, sources.known)
    run = run_of(folder)
    wrong += [f"its input {key} is another one now" for key in changed]
    wrong += [f"its input {key} is gone: {place_of_input(key, run, sources)}" for key in gone if run is not None]
    wrong += foreign_files(folder, table)
    files = len(manifest.files) + len(manifest.dropped_files)
    elsewhere = [] if run is not None else gone
    return CheckedTable(path=str(folder), files=files, rows=rows, dropped=dropped, wrong=wrong, not_found=elsewhere)


def place_of_input(key: str, run: Path, sources: Sources) -> str:
    """Where an input that is gone was looked for; ``key`` is its role and its name."""
    name = unnumbered(key).partition("/")[2]
    if name in sources.lacking:
        return f"there is no table in {sources.lacking[name]}, where the recipe names it (from {Path.cwd()})"
    return f"no table of {run} has its rows"


def sum_rows(folder: Path, files: Sequence[ShardFile], wrong: list[str]) -> int:
    """The rows in ``files``, counted anew. What is not as the manifest lists it goes into ``wrong``."""
    rows = 0
    for file in files:
        path = folder / file.name
        try:
            file.check(path)
            found = pq.read_metadata(path).num_rows
        except FileNotFoundError:
            wrong.append(f"{path} is missing")
            continue
        except (UserError, OSError, pa.ArrowException) as error:
            wrong.append(str(error).splitlines()[0])
            continue
        rows += found
        if found != file.rows:
            wrong.append(f"{path} has {found} rows, and its manifest has {file.rows}")
    return rows


def miscounts(counts: Counts, rows: int, dropped: int) -> Iterator[str]:
    """Counts of a manifest that do not agree with the rows found, or with each other."""
    if counts.read != counts.used + counts.dropped:
        yield f"read {counts.read} is not used {counts.used} + dropped {counts.dropped}"
    if counts.written != rows:
        yield f"written {counts.written} in the manifest, {rows} rows in its files"
    if counts.dropped != dropped:
        yield f"dropped {counts.dropped} in the manifest, {dropped} rows in its files"


def unknown_inputs(inputs: Mapping[str, str], known: Mapping[str, Sequence[str]]) -> tuple[list[str], list[str]]:
    """Inputs of a table that are no longer what it was made from, and those that are not there."""
    there = {digest for digests in known.values() for digest in digests}
    lost = [key for key, digest in inputs.items() if digest not in there]
    changed = [key for key in lost if unnumbered(key).partition("/")[2] in known]
    return changed, [key for key in lost if key not in changed]


def foreign_files(folder: Path, table: Table) -> Iterator[str]:
    """Files of a finished table that its manifest does not name."""
    listed = {MANIFEST_NAME}
    listed |= {f"data/{file.name}" for file in table.manifest.files}
    listed |= {f"dropped/{file.name}" for file in table.manifest.dropped_files}
    for name in entries(folder):
        if name not in listed and name.partition("/")[0] not in SIDES and name != CLEARING:
            yield f"{folder / name} is named by no manifest"


def digests(folders: Sequence[Path]) -> dict[str, list[str]]:
    """The digests of the tables in ``folders`` by the names of these, those that one writes with it included."""
    found: dict[str, list[str]] = {}
    for folder in folders:
        for place in (folder, *(folder / side for side in SIDES)):
            if (place / MANIFEST_NAME).exists():
                try:
                    found.setdefault(place.name, []).append(Table.open(place).digest)
                except UserError:
                    # A damaged table is reported where it is checked itself.
                    continue
    return found
