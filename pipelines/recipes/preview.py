"""A recipe in small: the same steps with few environments, tasks and inputs, to see within seconds whether it works."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.operators.operator import Operator
from agentmill.pipelines.recipes.grammar import Recipe
from agentmill.pipelines.recipes.plan import revisions_of
from agentmill.pipelines.recipes.short_forms import inner_steps, operator_type
from agentmill.pipelines.sources.hub import pinned
from agentmill.schemas.config import at_home
from agentmill.schemas.ids import digest
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.tables import Table

SMALL_DATA = ".data"
"""The folder in a preview's run directory with the first rows of what the recipe reads from elsewhere."""

SUFFIX = "-preview"
CUT = (Task.__name__, Trajectory.__name__)
"""The tables of ``data`` that are cut; others are looked up by these, so they stay whole.

Trajectories look their tasks up, too, so tasks of those that are left stay.
"""


def preview(recipe: Recipe, n: int, *, dry: bool = False) -> Recipe:
    """``recipe`` in small, in a run directory of its own; with ``dry`` no table is written, and ``data`` stay whole.

    Steps propose at most ``n`` environments, and ``n`` tasks for each; trainings take ``n`` optimizer steps, and
    ``select_diverse`` keeps ``n`` trajectories, whatever its ``quotas``; this and a ``mix`` may fall short of their
    ``size``; a ``share`` of tasks is all of them. Of ``data`` the first ``n`` trajectories are read with their tasks,
    and the first ``n`` tasks of each split.
    """
    run_dir = f"{recipe.run_dir.rstrip('/')}{SUFFIX}"
    changes: dict[str, Any] = {"run_dir": run_dir, "steps": [small_step(step, n) for step in recipe.steps]}
    if not dry:
        changes["data"] = small_data(recipe.places, Path(at_home(run_dir)), n)
    return recipe.model_copy(update=changes).ordered([*dict.fromkeys([*recipe.order, *changes])])


def small_step(step: Mapping[str, Any], n: int) -> dict[str, Any]:
    """A step with its numbers lowered, and all steps in it."""
    found = dict(step)
    inner = list(inner_steps(step))
    if inner:
        for path, steps in inner:
            small = [small_step(each, n) for each in steps]
            found[path[0]] = {**found[path[0]], path[1]: small} if len(path) == 2 else small
        return found
    operator = operator_type(step)
    changes = {} if operator is None else lowered(operator, step, n)
    if "max_steps" in changes:
        # A training takes one of them.
        found.pop("epochs", None)
    return {**found, **changes}


def lowered(operator: type[Operator], step: Mapping[str, Any], n: int) -> dict[str, Any]:
    """The parameters of a step that a preview changes."""
    fields = operator.model_fields
    changes: dict[str, Any] = {}
    corpora = step.get("corpus")
    if "n" not in step and corpora is not None:
        # There are as many environments as corpora.
        changes["n"] = min(n, len(corpora) if isinstance(corpora, list) else 1)
    for name in (each for each in operator.counted if each not in changes):
        given = step.get(name, fields[name].default)
        changes[name] = min(given, n) if isinstance(given, int) else n
    share = step.get("held_out")
    if isinstance(share, int | float) and 0 < share * n < 1:
        # At least one has to be set aside.
        changes["held_out"] = math.ceil(1000 / n) / 1000
    if "share" in fields and "share" in step:
        changes["share"] = 1.0
    quotas = step.get("quotas")
    if "size" in operator.counted and isinstance(quotas, list) and all(isinstance(each, Mapping) for each in quotas):
        # Among so few there are few values, and a share of them is less than a row: none is bounded.
        changes["quotas"] = [{**each, "share": None, "at_most": n} for each in quotas]
    if "short" in fields and "size" in step:
        changes["short"] = "allow"
    return changes


def small_data(places: Mapping[str, str], run_dir: Path, n: int) -> dict[str, str]:
    """The folders of the tables of ``data`` in small. Raises ``UserError`` for one that cannot be read."""
    tables = {name: Table.open(pinned(path, revisions_of(run_dir))) for name, path in places.items()}
    runs = [each for each in tables.values() if each.manifest.record == Trajectory.__name__]
    first = chain.from_iterable(islice(each.rows(), n) for each in runs)
    wanted = frozenset(row.task_id for row in first if row.task_id is not None)
    return {name: small_table(name, table, run_dir / SMALL_DATA, n, wanted) for name, table in tables.items()}


def small_table(name: str, table: Table, below: Path, n: int, wanted: Set[str]) -> str:
    """The folder of the first rows of a table, and of ``wanted`` tasks, or of one that is not cut."""
    if table.manifest.record not in CUT or table.manifest.counts.written <= n:
        return str(table.folder)
    folder = below / f"{name}-{n}-{digest([table.digest, *sorted(wanted)])[:12]}"
    if not (folder / "manifest.json").exists():
        seed_table(folder, list(first_rows(table.rows(), n, wanted)))
    return str(folder)


def first_rows(rows: Iterator[Record], n: int, wanted: Set[str]) -> Iterator[Record]:
    """The first ``n`` trajectories, or the first ``n`` tasks of each split and those with ``wanted`` ids."""
    seen: Counter[str | None] = Counter()
    for row in rows:
        if not isinstance(row, Task):
            yield from chain([row], islice(rows, n - 1))
            return
        seen[row.split] += 1
        if seen[row.split] <= n or row.task_id in wanted:
            yield msgspec.structs.replace(row)
