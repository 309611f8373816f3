"""What is published: a table, or tables of a run, and the tables that these were made from.

A data set on the Hub holds each table as a folder ``NAME`` (``data/``, ``dropped/``, ``manifest.json``) as it lies
here, and the recipe with them. Of a run all tables go up, or those that are named; without names, what an evaluation
made and candidates that an admission has decided on are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from agentmill.pipelines.calibration import Calibration
from agentmill.pipelines.recipes.plan import REVISIONS
from agentmill.pipelines.recipes.run_folder import RECIPE, SUMMARY
from agentmill.pipelines.recipes.summary import Summary
from agentmill.pipelines.runs.tables import (
    calibrations_of,
    check_finished,
    check_one_run,
    evaluated,
    given_to,
    run_of,
    summary_of,
    tables_below,
)
from agentmill.schemas.config import read_yaml
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.hub import TABLE_NAME
from agentmill.schemas.records.manifest import MANIFEST_NAME
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.tables import Table

RUN_FILES = (RECIPE, SUMMARY, REVISIONS)
COPIES = "copies"
TAKEN = {COPIES, "README.md", ".gitattributes", *RUN_FILES}
"""What else has a place at the top of a data set."""

INSIDE = {"data", "dropped", "splits"}
"""What has a place in a table."""
ADMIT = "admit"


class Published(msgspec.Struct, frozen=True):
    """A table that is published as the folder ``name`` of the data set, and as its configuration ``config``."""

    name: str
    table: Table

    @property
    def config(self) -> str:
        """The name for ``load_dataset``, which may not hold a slash."""
        return self.name.replace("/", ".")


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """What is published, and where it comes from.

    ``run`` is the run directory, if there is one. ``origins`` are the tables that were found by which the published
    ones were made, these included, in no order; ``unknown`` names, by table, inputs of these that were not found.
    """

    tables: list[Published]
    run: Path | None
    origins: list[Table]
    unknown: dict[str, list[str]]

    @property
    def recipe(self) -> JsonObject:
        """The recipe of the run; empty where there is none."""
        path = None if self.run is None else self.run / RECIPE
        return read_yaml(path) if path is not None and path.exists() else {}

    @property
    def summary(self) -> Summary | None:
        """The summary of the run; ``None`` where it has none yet."""
        return None if self.run is None else summary_of(self.run)

    @property
    def calibrations(self) -> list[Calibration]:
        """What the run measured of its judges. Raises ``UserError`` for a damaged file."""
        return [] if self.run is None else calibrations_of(self.run)

    def of(self, record: str) -> list[Published]:
        """The published tables that hold such records."""
        return [each for each in self.tables if each.table.manifest.record == record]

    @property
    def run_files(self) -> list[Path]:
        """The files of the run that go up besides the tables."""
        return [] if self.run is None else [self.run / name for name in RUN_FILES if (self.run / name).exists()]


def gather(path: Path, named: Sequence[str]) -> Bundle:
    """The material of the table or run at ``path``; ``named`` are those of its tables to publish, ``[NAME=]TABLE``.

    Raises ``UserError``.
    """
    if (path / MANIFEST_NAME).exists() or (path.parent / MANIFEST_NAME).exists():
        table = Table.open(path)
        if named:
            raise UserError(
                f"{path} is a table; --table chooses among the tables of a run, such as {path.parent}",
                ErrorCode.OPTION_NOT_FOR_THIS,
            )
        check_names([path.resolve().name])
        return with_origins([Published(path.resolve().name, table)], run_of(path))
    known = {str(folder.relative_to(path)): folder for folder in tables_below(path)}
    if not known:
        raise UserError(
            f"{path} is neither a table nor a run nor a tuned model; expected for example runs/quickstart",
            ErrorCode.NOT_PUBLISHABLE,
        )
    run = run_of(path)
    check_one_run(path, run, known.values())
    if run == path.resolve() and not named:
        check_finished(path, known)
    chosen = [renamed(each) for each in named] or [(name, name) for name in lasting(known, path)]
    for _, where in chosen:
        if where not in known:
            raise UserError(
                f"{path} has no table {where!r}; it has {', '.join(known)}.{near_match(where, known)}",
                ErrorCode.UNKNOWN_NAME,
            )
    if not chosen:
        raise UserError(
            f"{path} holds only tables that an evaluation made or an admission decided on; name some: --table",
            ErrorCode.NOT_PUBLISHABLE,
        )
    check_names([name for name, _ in chosen])
    return with_origins([Published(name, Table.open(known[where])) for name, where in chosen], run)


def renamed(given: str) -> tuple[str, str]:
    """The name on the Hub and the name here, of ``NAME=TABLE`` or ``TABLE``."""
    name, equals, where = given.partition("=")
    return name.rstrip("/"), (where if equals else name).rstrip("/")


def check_names(names: Sequence[str]) -> None:
    """Raises ``UserError`` unless tables may lie together under these names in a data set."""
    for place, name in enumerate(names):
        parts = name.split("/")
        inside = [other for other in names if name.startswith(f"{other}/") and parts[other.count("/") + 1] in INSIDE]
        if not TABLE_NAME.fullmatch(name):
            raise UserError(
                f"{name!r} cannot name a table; expected letters, digits, - and _; name it so: --table NAME=TABLE",
                ErrorCode.NAME_MALFORMED,
            )
        if name in names[:place]:
            raise UserError(
                f"two tables would be called {name}; give them different names: --table NAME=TABLE",
                ErrorCode.NAME_TAKEN,
            )
        if parts[0] in TAKEN or inside:
            raise UserError(
                f"a table cannot be called {name}, which is something else; name it so: --table NAME=TABLE",
                ErrorCode.NAME_TAKEN,
            )


def lasting(known: Mapping[str, Path], run: Path) -> list[str]:
    """The names of the tables of a run that are worth publishing when nobody names any."""
    played = {name for name, folder in known.items() if evaluated(folder, run)}
    tables = {name: Table.open(folder) for name, folder in known.items() if name not in played}
    admissions = [each.manifest for each in tables.values() if each.manifest.operator == ADMIT]
    decided = {digest for each in admissions for role, digest in each.inputs.items() if role.startswith("of/")}
    return [name for name, table in tables.items() if table.digest not in decided]


def with_origins(tables: list[Published], run: Path | None) -> Bundle:
    """The material, with the tables it was made from looked for in the run, and in what the run was given."""
    # By digest, since tables of several runs may have one name. A step that changes nothing writes what it has read, so
    # that several tables may have one digest, too: all of them are followed, each once.
    known: dict[str, dict[Path, Table]] = defaultdict(dict)
    for table in [*(each.table for each in tables), *reachable(run, set())]:
        known[table.digest].setdefault(table.folder.resolve(), table)
    origins: dict[Path, Table] = {}
    unknown: dict[str, list[str]] = {}
    waiting = [each.table for each in tables]
    while waiting:
        table = waiting.pop()
        if table.folder.resolve() in origins:
            continue
        origins[table.folder.resolve()] = table
        for name, digest in table.manifest.inputs.items():
            waiting += known[digest].values()
            if not known[digest].keys() - {table.folder.resolve()}:
                unknown.setdefault(table.manifest.table, []).append(name)
    return Bundle(tables=tables, run=run, origins=list(origins.values()), unknown=unknown)


def reachable(run: Path | None, seen: set[Path]) -> Iterator[Table]:
    """The tables of a run, of what its ``data`` names, and of the runs that these are in."""
    if run is None or run in seen:
        return
    seen.add(run)
    yield from filter(None, map(opened, tables_below(run)))
    for place in given_to(run):
        table = opened(place)
        if table is not None:
            yield table
            yield from reachable(run_of(place), seen)


def opened(folder: Path) -> Table | None:
    """The table there, or ``None`` if there is none, or not all of it."""
    try:
        table = Table.open(folder)
        table.shards()
        return table
    except UserError:
        return None
