"""The card of a data set: metadata for the Hub, and everything that its manifests say, for people.

The same material makes the same card, so that publishing again changes nothing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from agentmill.pipelines.publish import facts
from agentmill.pipelines.publish.bundle import Bundle, Published
from agentmill.pipelines.publish.checks import Check
from agentmill.pipelines.publish.facts import bars
from agentmill.pipelines.publish.layout import (
    HELD_OUT,
    SPLITS,
    UNSPLIT,
    configs,
    in_order,
    is_default,
    mixes,
    size_category,
    split_name,
    splits,
)
from agentmill.pipelines.publish.licences import SourceCount
from agentmill.pipelines.publish.scan import Scan
from agentmill.pipelines.publish.text_columns import cell, code, code_cell, markdown, one_line, tex
from agentmill.pipelines.recipes.summary import MEASURE_COLUMNS
from agentmill.schemas.config import dump_yaml
from agentmill.schemas.records.record import SCHEMA_VERSION, JsonObject
from agentmill.schemas.tables import RECORDS

CARD, FUNNEL, OUTCOMES = "README.md", "funnel.svg", "outcomes.svg"
PICTURES = (FUNNEL, OUTCOMES)


class CardDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What only the publisher can say: where it goes, the licence, and words of their own."""

    repo: str
    revision: str
    licence: str
    title: str | None = None
    description: str | None = None
    author: str | None = None

    @property
    def name(self) -> str:
        """The title."""
        return self.title or self.repo.partition("/")[2]


def metadata(bundle: Bundle, scans: Mapping[str, Scan], details: CardDetails, sources: Sequence[SourceCount]) -> Any:
    """The YAML at the top, as the Hub's client has it. Raises what that raises for what the Hub would refuse."""
    from huggingface_hub import DatasetCardData

    records = {each.table.manifest.record for each in bundle.tables}
    return DatasetCardData(
        license=details.licence,
        pretty_name=details.name,
        task_categories=["text-generation"],
        size_categories=[size_category(sum(each.rows for each in scans.values()))],
        source_datasets=["extended" if sources else "original"],
        tags=["agentmill", "agent", *(["trajectories"] if "Trajectory" in records else [])],
        configs=configs(bundle.tables, scans),
    )


def dataset_card(
    bundle: Bundle,
    scans: Mapping[str, Scan],
    checks: Sequence[Check],
    sources: Sequence[SourceCount],
    details: CardDetails,
    copies: Sequence[str],
) -> dict[str, bytes]:
    """``README.md`` and its pictures, by name."""
    template_values = {
        "title": details.name,
        "description": details.description or described(bundle),
        "schema_version": SCHEMA_VERSION,
        "tables": [table_facts(each, scans[each.name]) for each in in_order(bundle.tables)],
        "copies": list(copies),
        "checks": checks,
        "limits": limits(bundle, checks),
        "licence": details.licence,
        "sources": [source_facts(each) for each in sources],
        "author": details.author or details.repo.partition("/")[0],
        **loading(bundle, scans, details),
        **making(bundle, scans),
    }
    header = dump_yaml(metadata(bundle, scans, details, sources).to_dict())
    text = f"---\n{header}---\n\n{rendered('dataset_card.md.jinja', template_values)}"
    pictures = {FUNNEL: bars("what each step read, and used of it", facts.funnel(bundle))}
    if outcomes := facts.outcomes(bundle.tables):
        pictures[OUTCOMES] = bars("trajectories that ended in success", outcomes)
    return {CARD: text.encode(), **pictures}


def loading(bundle: Bundle, scans: Mapping[str, Scan], details: CardDetails) -> JsonObject:
    """What the card says of loading it; its example is the default configuration, or the first with rows."""
    tables = in_order(bundle.tables)
    known = configs(bundle.tables, scans)
    default = next((each for each in known if "default" in each), known[0] if known else None)
    config = tables[0].config if default is None else str(default["config_name"])
    example = next(each for each in tables if config in (each.config, f"{each.config}.{HELD_OUT}"))
    paths = f"{example.name}/data/*.parquet" if default is None else default["data_files"][0]["path"]
    repo = f"hf://datasets/{details.repo}@{quote(details.revision, safe='')}"
    names = {split for name, each in scans.items() for split in splits(name, each)}
    return {
        "repo": details.repo,
        "revision": details.revision,
        "cite_key": re.sub(r"\W+", "_", details.repo),
        "example": config,
        "scanned": f"{repo}/{paths}" if isinstance(paths, str) else [f"{repo}/{path}" for path in paths],
        "address": f"hf://{details.repo}@REVISION/{example.name}",
        "held_out": [each["config_name"] for each in known if not any(map(is_default, splits_of(each)))],
        "mixed": any(map(mixes, scans.values())),
        "splits_folder": SPLITS,
        "unsplit": UNSPLIT in names,
    }


def splits_of(config: JsonObject) -> list[str]:
    """The splits of a configuration."""
    return [str(each["split"]) for each in config["data_files"]]


def plain_text(content: bytes) -> str:
    """A card without the backslashes of Markdown, so that addresses in it are found."""
    return re.sub(r"\\([^\w\s])", r"\1", content.decode())


def making(bundle: Bundle, scans: Mapping[str, Scan]) -> JsonObject:
    """What the card says of how it was made, and how to make it again."""
    rows, lines = facts.evaluation(bundle)
    calibrations = bundle.calibrations
    recipe = bundle.recipe
    run_dir = one_line(f"runs/{recipe.get('name')}")
    return {
        "recipe": recipe,
        "given": sorted(recipe.get("data") or {}),
        "command": f"agentmill run recipe.yaml run_dir={shlex.quote(run_dir)}",
        "stages": facts.stages(bundle),
        "models": facts.models(bundle),
        "environments": facts.environments(bundle.origins, scans.values()),
        "verifiers": facts.verifiers(bundle.origins, calibrations),
        "calibrated": bool(calibrations),
        "has_outcomes": bool(bundle.of("Trajectory")),
        "evaluation": markdown(MEASURE_COLUMNS, rows) if rows else "",
        "differences": lines,
        "versions": versions(bundle),
    }


def table_facts(each: Published, scan: Scan) -> JsonObject:
    """What the card says of a table."""
    record = each.table.manifest.record
    return {
        "config": each.config,
        "record": record,
        "meaning": meaning(record),
        "rows": scan.rows,
        "splits": split_facts(scan),
        "characters": scan.characters,
        "stored_tokens": scan.stored_tokens,
        "repeated": scan.repeated,
        "usage": facts.usage(each.table),
        "statistics": facts.statistics(each),
    }


def meaning(record: str) -> str:
    """What one row is, in the words of its schema."""
    sentence = facts.first_sentence(RECORDS[record])
    return sentence[:1].lower() + sentence[1:]


def split_facts(scan: Scan) -> str:
    """The splits that ``load_dataset`` knows of a table, and how many rows tell which."""
    return ", ".join(f"{split_name(split)} {n:,}" for split, n in sorted(scan.splits.items()))


def source_facts(source: SourceCount) -> JsonObject:
    """What the card says of a source."""
    parts = [source.split and f"split {source.split}", source.converter and f"read by {source.converter}"]
    return {**msgspec.structs.asdict(source), "way": source.about or ", ".join(part for part in parts if part)}


def described(bundle: Bundle) -> str:
    """One line, where the publisher gave none."""
    kinds = ", ".join(dict.fromkeys(f"`{each.table.manifest.record}`" for each in in_order(bundle.tables)))
    return f"Data for training language-model agents: tables of {kinds}."


def limits(bundle: Bundle, checks: Sequence[Check]) -> list[str]:
    """What a reader should know before using it; nothing here is guessed."""
    tables = [each.table for each in bundle.tables]
    made_up = facts.synthetic(tables)
    writers = sorted({str(each["name"]) for each in facts.models(bundle) if each["name"]})
    found = [f"{each.name.capitalize()}: {each.detail}." for each in checks if each.level == "note"]
    if made_up:
        found.append(f"{made_up:,} observations were written by a model in the place of an environment or a person.")
    if writers:
        found.append(f"It holds text that {', '.join(writers)} wrote; terms of use of models may bind users of it.")
    dropped = sum(each.manifest.counts.dropped for each in tables)
    if dropped:
        found.append(f"{dropped:,} inputs of these tables were dropped; each is in dropped/ with its reason.")
    return [*found, "Success is what the named verifiers say it is; names and postal addresses were not looked for."]


def versions(bundle: Bundle) -> str:
    """Packages and versions of the newest table."""
    newest = max((each.table.manifest for each in bundle.tables), key=lambda each: each.created)
    return ", ".join(f"{name} {number}" for name, number in newest.versions.items())


def rendered(template: str, template_values: Mapping[str, Any]) -> str:
    """A template of this package, filled in; a name that it uses and that is not there is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown; what comes from the data goes through the first four filters
    )
    environment.filters.update(
        cell=cell, code=code, code_cell=code_cell, tex=tex, json=in_json, thousands="{:,}".format, purpose=facts.purpose
    )
    return re.sub(r"\n{3,}", "\n\n", environment.get_template(template).render(template_values))


def in_json(value: Any) -> str:
    """``value`` as JSON, which Python reads, too, where it is a text."""
    return msgspec.json.encode(value).decode()
