"""Counts of what the tables of a run hold, from the few leaf columns that they need, a batch of rows at a time.

What stays in memory are the counts: one for each environment, value and name, and none for a row.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import polars as pl

from agentmill.pipelines.calibration import Identity, judges_in
from agentmill.pipelines.recipes.outline import Planned
from agentmill.pipelines.runs.run import Run
from agentmill.pipelines.runs.tables import place_of
from agentmill.pipelines.view.sources import Source, is_table, opened_file
from agentmill.schemas.hub import is_address
from agentmill.schemas.records.trajectory import OutcomeStatus
from agentmill.schemas.tables import RECORDS, Table, read_columns

BATCH_ROWS = 50_000
LEVELS = 20
"""Bins of the difficulty of tasks, which is in [0, 1]."""

TURN = "content.list.element.turn"
STATUSES: tuple[OutcomeStatus, ...] = ("success", "failure", "unknown")
Statuses = Counter[str]


class Episodes(msgspec.Struct, frozen=True):
    """The trajectories of one table: how many of each outcome in each environment, and of how many turns.

    ``group`` is what the table is called in every round; ``round`` is 0 outside of ``iterate``.
    """

    name: str
    group: str
    round: int
    environments: dict[str | None, Statuses]
    turns: Counter[int]

    @property
    def statuses(self) -> Statuses:
        """How many of each outcome."""
        return total(self.environments.values())


class Tasks(msgspec.Struct, frozen=True):
    """The tasks of one table by level of difficulty (the bin, of ``LEVELS``) and by plan length; ``None``: unknown."""

    name: str
    levels: Counter[int | None]
    plans: Counter[int | None]


class Judged(msgspec.Struct, frozen=True):
    """The verdicts of one table by (name, of a step or not, status, passed); who judged trajectories, by name."""

    name: str
    verdicts: Counter[tuple[str, bool, str, bool | None]]
    judges: dict[str, Counter[Identity]] = {}


def total(parts: Iterable[Statuses]) -> Statuses:
    """The sum of counts."""
    summed: Statuses = Counter()
    for part in parts:
        summed.update(part)
    return summed


def episodes(source: Source, step: Planned) -> Episodes:
    """Count the trajectories of a table of ``step``. Raises ``UserError`` for a shard that is missing or damaged."""
    environments: dict[str | None, Statuses] = defaultdict(Counter)
    turns: Counter[int] = Counter()
    for frame in frames(source.table, {"environment": "environment_id", "status": "outcome.status", "turn": TURN}):
        for environment, status, n in frame.group_by("environment", "status").len().iter_rows():
            environments[environment][status or "unknown"] += n
        for turn, n in frame.group_by(pl.col("turn").fill_null(0)).len().iter_rows():
            turns[turn] += n
    group = step.group + source.name.removeprefix(step.name).removesuffix("/trajectories")
    return Episodes(source.name, group, step.round, dict(environments), turns)


def tasks(source: Source) -> Tasks:
    """Count the tasks of a table. Raises as ``episodes``."""
    levels: Counter[int | None] = Counter()
    plans: Counter[int | None] = Counter()
    level = (pl.col("level").clip(0, 1) * LEVELS).floor().clip(0, LEVELS - 1).cast(pl.Int64)
    for frame in frames(source.table, {"level": "difficulty.level", "plan": "difficulty.plan_length"}):
        for value, n in frame.group_by(level).len().iter_rows():
            levels[value] += n
        for value, n in frame.group_by("plan").len().iter_rows():
            plans[value] += n
    return Tasks(source.name, levels, plans)


def judged(source: Source) -> Judged:
    """Count the verdicts of a table. Raises as ``episodes``."""
    verdicts: Counter[tuple[str, bool, str, bool | None]] = Counter()
    by = ("name", pl.col("item").is_not_null(), "status", "passed")
    for frame in frames(source.table, {name: name for name in ("name", "item", "status", "passed")}):
        for *key, n in frame.group_by(*by).len().iter_rows():
            verdicts[tuple(key)] += n
    return Judged(source.name, verdicts, judges_in([source.table]))


def frames(table: Table, paths: Mapping[str, str]) -> Iterator[pl.DataFrame]:
    """Leaf columns of a table, by what they are to be called, some rows at a time.

    Of a leaf in a list of structs it is the greatest. One that a file does not have is null. Raises ``UserError`` for a
    shard that is missing, damaged or of a newer version.
    """
    for shard in table.shards():
        # Reads the version alone, and refuses a file that is missing, damaged or of a newer one.
        read_columns(shard, table.record_type, [])
        with opened_file(shard) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=list(paths.values())):
                frame = pl.DataFrame(pl.from_arrow(batch))
                yield frame.select(leaf(path, frame.columns).alias(name) for name, path in paths.items())


def leaf(path: str, present: Sequence[str]) -> pl.Expr:
    """A leaf column by its path, if its column is ``present``."""
    name, *inner = path.split(".")
    if name not in present:
        return pl.lit(None)
    if inner[:2] == ["list", "element"]:
        return pl.col(name).list.eval(pl.element().struct.field(inner[2])).list.max()
    return pl.col(name).struct.field(inner[0]) if inner else pl.col(name)


def elsewhere(run: Run) -> list[Source]:
    """The tables that the entries of ``data`` name, where they are still there."""
    given = {name: place for name, place in run.recipe.data.items() if not is_address(place)}
    places = {name: place_of(run.folder, run.recipe.run_dir, place) for name, place in given.items()}
    tables = [Source(name, Table.open(folder)) for name, folder in places.items() if is_table(folder)]
    return [each for each in tables if each.record in RECORDS]


def names_of(sources: Iterable[Source], ids: Sequence[str]) -> dict[str, str]:
    """What these environments are called, in their order: name, family, and the beginning of the id."""
    names = {each: each for each in ids}
    paths = {name: name for name in ("environment_id", "name", "family")}
    for source in sources:
        for frame in frames(source.table, paths):
            for each, name, family in frame.filter(pl.col("environment_id").is_in(ids)).iter_rows():
                names[each] = f"{name} ({family}) {each}"
    short = {each: name.replace(each, each[:8]) for each, name in names.items()}
    return short if len(set(short.values())) == len(names) else names
