"""What the manifests of a data set and of its origins say of how it was made."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import polars as pl
import pyarrow.parquet as pq

from agentmill.pipelines.calibration import Calibration, calibration_text, judges_in
from agentmill.pipelines.operators.registry import OPERATORS
from agentmill.pipelines.operators.train import RECORD
from agentmill.pipelines.publish.bundle import Bundle, Published, opened, reachable, with_origins
from agentmill.pipelines.publish.licences import SourceCount, sources_of
from agentmill.pipelines.publish.scan import Scan
from agentmill.pipelines.publish.text_columns import one_line
from agentmill.pipelines.recipes.summary import evaluation_lines, measure_rows
from agentmill.pipelines.runs.tables import run_of
from agentmill.pipelines.serving.model_folders import BUNDLED
from agentmill.pipelines.tables.inspection import Spread, all_categories, all_spreads, list_columns
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.hub import is_address
from agentmill.schemas.model_hub import cached_model, hub_model
from agentmill.schemas.models import cache_folder
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.tables import Manifest, Table


class Settings(msgspec.Struct, frozen=True):
    """What we read of the settings of a training: where its rows and its base lay."""

    rows: str = ""
    model: str = ""


class Trained(msgspec.Struct, frozen=True):
    """What we read of the record of a training; older ones may say less."""

    rows_digest: str | None = None
    settings: Settings = Settings()


def trainings(folder: Path) -> tuple[list[tuple[Path, Trained]], bool]:
    """The folder and training of a model and those of its bases, and whether these lie here. Raises ``UserError``."""
    found: list[tuple[Path, Trained]] = []
    seen: set[Path] = set()
    base: Path | None = folder
    while base is not None and (path := base / RECORD).is_file() and base.resolve() not in seen:
        seen.add(base.resolve())
        try:
            trained = msgspec.json.decode(path.read_bytes(), type=Trained)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UserError(f"{path} is damaged ({error}); run its training again", ErrorCode.DAMAGED_FILE) from None
        found.append((base, trained))
        base = base_of(base, trained.settings.model)
    return found, base is not None


def base_of(folder: Path, model: str) -> Path | None:
    """Where the ``model`` lies that the one in ``folder`` started from; ``None`` if it is not on this machine.

    Of a bundled model no further training is known: it is ``folder`` itself.
    """
    hub = hub_model(model)
    if hub is not None and hub.is_pinned:
        return cached_model(hub, weights=False)
    # In a recipe, a bundled model is named by where it was converted to.
    if not model or model.startswith(BUNDLED) or Path(model).parent == cache_folder():
        return folder
    # A relative path is one from where the training was started, most likely above what it made.
    places = [Path(model).expanduser(), *(parent / model for parent in folder.resolve().parents)]
    return next((place for place in places if place.is_dir()), None)


def rows_of(folder: Path, trained: Trained) -> Table | None:
    """The table that a model was trained on, by its digest: in its run, or where the training was to look for it."""
    rows = trained.settings.rows
    places = [] if not rows or is_address(rows) else [Path(rows)]
    near = [table for place in [folder, *places] for table in reachable(run_of(place), set())]
    near += filter(None, map(opened, places))
    return next((table for table in near if table.digest == trained.rows_digest), None)


class RowSources(NamedTuple):
    """The sources of all rows that made a model.

    ``missing`` is of how many trainings the rows are not here, and ``base_missing`` whether a model is not that one of
    them started from.
    """

    found: list[SourceCount]
    missing: int
    base_missing: bool


def sources(folder: Path) -> RowSources:
    """The sources of the rows that made the model in ``folder``, as far as they can be known. Raises ``UserError``."""
    trained, complete = trainings(folder)
    tables = [rows_of(*each) for each in trained]
    found: dict[SourceCount, None] = {}
    for table in filter(None, tables):
        bundle = with_origins([Published(table.folder.name, table)], run_of(table.folder))
        found.update(dict.fromkeys(sources_of(bundle)))
    return RowSources(list(found), tables.count(None), not complete)


WIDTH, LABEL, BAR, GAP, TOP = 760, 220, 18, 8, 34
LONGEST_LABEL = 34
"""In characters, as many as there is room for."""


class Bar(NamedTuple):
    """One line of a chart: ``part`` of ``whole``, both counts."""

    label: str
    part: int
    whole: int


def bars(title: str, lines: Sequence[Bar]) -> bytes:
    """A chart with one bar per line: the whole pale, the part dark, both numbers with it."""
    height = TOP + len(lines) * (BAR + GAP) + GAP
    longest = max((line.whole for line in lines), default=0) or 1
    body = "".join(drawn(line, TOP + index * (BAR + GAP), longest) for index, line in enumerate(lines))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="#ffffff"/>\n'
        f'<text x="8" y="20" font-size="14" font-weight="bold" fill="#222222">{escape(title)}</text>\n{body}</svg>\n'
    ).encode()


def drawn(line: Bar, y: int, longest: int) -> str:
    """A bar with its label and its numbers."""
    scale = (WIDTH - LABEL - 150) / longest
    whole, part = line.whole * scale, line.part * scale
    middle = y + BAR - 5
    label = one_line(line.label)
    label = label if len(label) <= LONGEST_LABEL else f"{label[: LONGEST_LABEL - 1]}…"
    return (
        f'<text x="{LABEL - 8}" y="{middle}" text-anchor="end" fill="#222222">{escape(label)}</text>\n'
        f'<rect x="{LABEL}" y="{y}" width="{whole:.1f}" height="{BAR}" fill="#c9d8ea"/>\n'
        f'<rect x="{LABEL}" y="{y}" width="{part:.1f}" height="{BAR}" fill="#2f6db3"/>\n'
        f'<text x="{LABEL + whole + 6:.1f}" y="{middle}" fill="#222222">{line.part:,} of {line.whole:,}</text>\n'
    )


SPREAD = "minimum / median / mean / maximum"


def stages(bundle: Bundle) -> list[Manifest]:
    """The manifests of all that the data went through, in the order it was made."""
    by_digest: dict[str, list[int]] = defaultdict(list)
    for place, table in enumerate(bundle.origins):
        by_digest[table.digest].append(place)
    inputs = [set(table.manifest.inputs.values()) for table in bundle.origins]
    made_from = {
        place: {
            other
            for digest in inputs[place]
            for other in by_digest.get(digest, ())
            # Those that changed nothing have the digest of their input, and were made of the one that has another.
            if digest != table.digest or digest not in inputs[other]
        }
        for place, table in enumerate(bundle.origins)
    }
    # In as many rounds as there are tables at most, also where two name each other.
    depths = dict.fromkeys(made_from, 0)
    for _ in made_from:
        deeper = {place: 1 + max((depths[each] for each in found), default=0) for place, found in made_from.items()}
        if deeper == depths:
            break
        depths = deeper
    manifests = [table.manifest for table in bundle.origins]
    return [manifests[place] for place in sorted(made_from, key=lambda each: (depths[each], manifests[each].table))]


def purpose(operator: str) -> str:
    """What an operator makes, in the words of its documentation; empty for one that is not known here."""
    return first_sentence(OPERATORS.load(operator)) if operator in OPERATORS else ""


def first_sentence(documented: type) -> str:
    """The first sentence of what a class says of itself, without its full stop."""
    text = " ".join(str(documented.__doc__).split()).replace("``", "")
    return re.split(r"\.(?:\s|$)", text)[0]


def funnel(bundle: Bundle) -> list[Bar]:
    """Of what each stage read, how much it used."""
    return [Bar(f"{each.table} ({each.operator})", each.counts.used, each.counts.read) for each in stages(bundle)]


def models(bundle: Bundle) -> list[JsonObject]:
    """The models that took part, by the stages that say so; two entries of a recipe are two, whatever their name."""
    found: dict[str, JsonObject] = {}
    for manifest in stages(bundle):
        model_entries = manifest.config.get("models")
        for role, identity_of in model_entries.items() if isinstance(model_entries, dict) else ():
            identity = {key: identity_of.get(key) for key in ("entry", "policy", "name", "revision", "sampling")}
            entry = found.setdefault(msgspec.json.encode(identity).decode(), {**identity, "stages": []})
            entry["stages"].append(f"{manifest.table} ({role})")
    return list(found.values())


def environments(tables: Iterable[Table], surveys: Iterable[Scan]) -> dict[str, int]:
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


def verifiers(tables: Iterable[Table], calibrations: Sequence[Calibration] = ()) -> list[JsonObject]:
    """Who judged: verdicts by name and judge, how many passed, and of judges how well they are calibrated."""
    found = []
    for table in tables:
        if table.manifest.record != "Verdict":
            continue
        judges = judges_in([table])
        frame = columns(table, ["name", "judge", "status", "passed"])
        if not len(frame):
            continue
        for (name, judge), rows in sorted(frame.group_by("name", "judge"), key=lambda pair: str(pair[0])):
            scored = rows.filter(pl.col("status") == "scored")
            passed = int(scored.get_column("passed").sum())
            own = [each for each in judges.get(str(name), ()) if each.judge == judge]
            found.append({"name": name, "judge": judge, "table": table.manifest.table, "verdicts": len(rows),
                          "scored": len(scored), "passed": passed,
                          "calibration": calibration_text(str(name), own, calibrations)})  # fmt: skip
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
    """Some columns of all rows of a table, in Polars; of a table without rows, a frame without columns."""
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

    What distinguishes rows is left out (ids, seeds, values that no two rows share), and columns with one value only.
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


def evaluation(bundle: Bundle) -> tuple[list[list[Any]], list[str]]:
    """The rows of the table that compares models, and their differences; empty without a summary."""
    summary = bundle.summary
    if summary is None:
        return [], []
    return [list(row) for row in measure_rows(summary)], evaluation_lines(summary)
