"""What the manifests of a data set and of its origins say of how it was made."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import polars as pl
import pyarrow.parquet as pq

from pipelines.inspection import Spread, all_categories, all_spreads, list_columns
from pipelines.operators import OPERATORS
from pipelines.publish.material import Material, Published
from pipelines.publish.pictures import Bar
from pipelines.publish.survey import Survey
from pipelines.summary import evaluation_lines, measure_rows
from schemas.record import JsonObject
from schemas.tables import Manifest, Table

SPREAD = "minimum / median / mean / maximum"


def stages(material: Material) -> list[Manifest]:
    """The manifests of all that the data went through, in the order it was made."""
    by_digest = {each.digest: each.manifest for each in material.origins}
    depths: dict[str, int] = {}

    def depth(digest: str) -> int:
        if digest not in depths:
            made_from = [depth(each) for each in by_digest[digest].inputs.values() if each in by_digest]
            depths[digest] = 1 + max(made_from, default=0)
        return depths[digest]

    return [by_digest[each] for each in sorted(by_digest, key=lambda each: (depth(each), by_digest[each].table))]


def purpose(operator: str) -> str:
    """What an operator makes, in the words of its documentation; empty for one that is not known here."""
    return first_sentence(OPERATORS.load(operator)) if operator in OPERATORS else ""


def first_sentence(documented: type) -> str:
    """The first sentence of what a class says of itself, without its full stop."""
    text = " ".join(str(documented.__doc__).split()).replace("``", "")
    return re.split(r"\.(?:\s|$)", text)[0]


def funnel(material: Material) -> list[Bar]:
    """Of what each stage read, how much it used."""
    return [Bar(f"{each.table} ({each.operator})", each.counts.used, each.counts.read) for each in stages(material)]


def models(material: Material) -> list[JsonObject]:
    """The models that took part, by the stages that say so; two entries of a recipe are two, whatever their name."""
    found: dict[str, JsonObject] = {}
    for manifest in stages(material):
        said_of = manifest.config.get("models")
        for role, said in said_of.items() if isinstance(said_of, dict) else ():
            identity = {key: said.get(key) for key in ("entry", "policy", "name", "revision", "sampling")}
            entry = found.setdefault(msgspec.json.encode(identity).decode(), {**identity, "stages": []})
            entry["stages"].append(f"{manifest.table} ({role})")
    return list(found.values())


def environments(tables: Iterable[Table], surveys: Iterable[Survey]) -> dict[str, int]:
    """How many environments of each family the published rows are of, as far as ``tables`` hold these."""
    marks = pl.concat([each.marks for each in surveys]).filter(pl.col("kind") == "environment_id")
    named = marks.select(environment_id="key")
    specs = [
        columns(each, ["environment_id", "family"]) for each in tables if each.manifest.record == "EnvironmentSpec"
    ]
    held = [each for each in specs if len(each)]
    if not held:
        return {}
    there = pl.concat(held).unique("environment_id").join(named, on="environment_id", how="semi")
    families = there.get_column("family").value_counts().sort("count", "family", descending=[True, False])
    return {str(family): int(n) for family, n in families.iter_rows()}


def verifiers(tables: Iterable[Table]) -> list[JsonObject]:
    """Who judged: verdicts by name and judge, and how many passed."""
    found = []
    for table in tables:
        if table.manifest.record != "Verdict":
            continue
        frame = columns(table, ["name", "judge", "status", "passed"])
        for (name, judge), rows in sorted(frame.group_by("name", "judge"), key=lambda pair: str(pair[0])):
            scored = rows.filter(pl.col("status") == "scored")
            passed = int(scored.get_column("passed").sum())
            found.append({"name": name, "judge": judge, "table": table.manifest.table, "verdicts": len(rows),
                          "scored": len(scored), "passed": passed})  # fmt: skip
    return found


def synthetic(tables: Iterable[Table]) -> int:
    """How many observations of trajectories a model made."""
    shards = [shard for each in tables if each.manifest.record == "Trajectory" for shard in each.shards()]
    frames = [pl.from_arrow(pq.ParquetFile(shard).read(columns=["content.list.element.synthetic"])) for shard in shards]
    marks = [frame.explode("content").unnest("content") for frame in frames if isinstance(frame, pl.DataFrame)]
    return sum(int(frame.get_column("synthetic").sum() or 0) for frame in marks if len(frame))


def outcomes(tables: Sequence[Published]) -> list[Bar]:
    """Of the trajectories of each table, how many ended in success."""
    found = []
    for each in tables:
        if each.table.manifest.record == "Trajectory":
            frame = columns(each.table, ["outcome.status"])
            ended = frame.unnest("outcome").get_column("status") if len(frame) else pl.Series([], dtype=pl.String)
            found.append(Bar(each.name, int((ended == "success").sum()), len(ended)))
    return found


def columns(table: Table, names: Sequence[str]) -> pl.DataFrame:
    """Some columns of all rows of a table, in Polars."""
    frames = [pl.from_arrow(pq.ParquetFile(shard).read(columns=list(names))) for shard in table.shards()]
    kept = [frame for frame in frames if isinstance(frame, pl.DataFrame) and len(frame)]
    return pl.concat(kept) if kept else pl.DataFrame()


def usage(table: Table) -> dict[str, int]:
    """What the trajectories of a table cost in tokens, as far as that was reported."""
    if table.manifest.record != "Trajectory":
        return {}
    kinds = ["prompt_tokens", "completion_tokens"]
    frame = columns(table, [f"usage.{kind}" for kind in kinds])
    if not len(frame):
        return {}
    sums = frame.unnest("usage").sum().row(0, named=True)
    return {kind: int(sums[kind]) for kind in kinds if sums[kind]}


def statistics(each: Published) -> list[list[Any]]:
    """Column, what, and how much: categories with their counts, numbers and lengths with their spread.

    What tells rows apart is left out (ids, seeds, values that no two rows share), and columns with one value only.
    """
    shards = each.table.shards()
    if not each.table.manifest.counts.written:
        return []
    lists = dict(list_columns(shards))
    named = [
        [path, value or "–", f"{n:,}"]
        for path, held in all_categories(shards).items()
        if not path.endswith("_id") and len(held) > 1 and max(held.values()) > 1
        for value, n in held.items()
    ]
    spread = [
        [path, f"{'items: ' * (path in lists)}{SPREAD}", " / ".join(f"{number:,.4g}" for number in ends(held))]
        for path, held in all_spreads(shards).items()
        if not path.endswith("seed") and held.minimum < held.maximum
    ]
    return [*named, *spread]


def ends(spread: Spread) -> tuple[float, float, float, float]:
    """The figures of a spread."""
    return spread.minimum, spread.median, spread.mean, spread.maximum


def evaluation(material: Material) -> tuple[list[list[Any]], list[str]]:
    """The rows of the table that compares models, and what is said of their differences; empty without a summary."""
    summary = material.summary
    if summary is None:
        return [], []
    return [list(row) for row in measure_rows(summary)], evaluation_lines(summary)
