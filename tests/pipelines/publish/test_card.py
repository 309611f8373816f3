"""The card of a data set tells what its manifests say, and no text out of these becomes part of its markup."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from huggingface_hub import DatasetCard
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.publish.bundle import Bundle, Published
from agentmill.pipelines.publish.card import CARD, FUNNEL, OUTCOMES, CardDetails, dataset_card
from agentmill.pipelines.publish.checks import Allowed, all_checks
from agentmill.pipelines.publish.facts import Bar, bars, verifiers
from agentmill.pipelines.publish.layout import split_name
from agentmill.pipelines.publish.licences import sources_of
from agentmill.pipelines.publish.scan import scan
from agentmill.pipelines.publish.text_columns import cell, code, code_cell, tex
from agentmill.schemas.config import dump_yaml
from agentmill.schemas.records.manifest import Counts, write_manifest
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.trajectory import Source
from agentmill.schemas.tables import Table
from tests.builders import generation, seen, spec, trajectory, verdict
from tests.pipelines.test_calibration import QWEN, calibrated

HOSTILE = (
    "a | b\n\n# Owned\n---\n```\n[x](http://evil.com/x) ![y](http://evil.com/y.png) <img src=x onerror=y> `c` **b** "
    "__d__ </details> <!-- ~~s~~ \\ &lt; www.evil.com jane@evil.com {{ 7*7 }} {% raw %} \u202eend"
)
PLAIN = " ".join(HOSTILE.replace("\u202e", "").split())
PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
SAYS = CardDetails(repo="org/data", revision="main", licence="apache-2.0")


def changed(table: Table, /, **fields: Any) -> Table:
    """A table whose manifest says something else."""
    write_manifest(table.folder, msgspec.structs.replace(table.manifest, **fields))
    return Table.open(table.folder)


def emptied(folder: Path, row: Record) -> Table:
    """A table whose stage wrote nothing."""
    counts = Counts(read=1, used=1, dropped=0, written=0)
    return changed(seed_table(folder, [row]), files=[], counts=counts)


def card(tables: Mapping[str, Table], says: CardDetails = SAYS, run: Path | None = None) -> dict[str, str]:
    """The card of ``tables`` and its pictures; of its sources the publisher says that they are under MIT."""
    published = [Published(name, table) for name, table in tables.items()]
    material = Bundle(tables=published, run=run, origins=list(tables.values()), unknown={})
    surveys = {name: scan(table, name) for name, table in tables.items()}
    sources = [msgspec.structs.replace(each, licence="mit", stated=True) for each in sources_of(material)]
    checks = all_checks(material, surveys, says.licence, sources, Allowed(), {})
    made = dataset_card(material, surveys, checks, sources, says, [])
    return {name: content.decode() for name, content in made.items()}


def tokens(text: str) -> Iterator[Token]:
    for token in PARSER.parse(text):
        yield token
        yield from token.children or []


def texts(text: str) -> list[str]:
    """What stands in each paragraph, heading or cell, as a reader sees it."""
    found = [token.children or [] for token in PARSER.parse(text) if token.type == "inline"]
    return ["".join(each.content for each in children) for children in found]


def headings(text: str) -> list[str]:
    parsed = PARSER.parse(text)
    return [parsed[at + 1].content for at, token in enumerate(parsed) if token.type == "heading_open"]


def markup(text: str) -> set[str]:
    """Links, pictures and tags of a document."""
    found = set()
    for token in tokens(text):
        if token.type in ("link_open", "image"):
            found.add(str(token.attrs.get("href") or token.attrs.get("src")))
        if token.type in ("html_inline", "html_block"):
            found.update(re.findall(r"<[^>]+>", token.content))
    return found


@pytest.fixture
def hostile(tmp_path: Path) -> dict[str, str]:
    """The card of data whose every text wants to be more than text."""
    source = Source(dataset=HOSTILE, sha256="0", converter=HOSTILE, converter_version="1", licence="mit", split=HOSTILE)
    runs = [trajectory(f"t{n}", source=source, content=[seen("x")], split=HOSTILE, task_id=f"{n}") for n in range(2)]
    acted = {"actor": {"policy": HOSTILE, "name": HOSTILE, "revision": HOSTILE, "sampling": {"stop": [HOSTILE]}}}
    manifest = {"table": HOSTILE, "operator": HOSTILE, "reasons": {HOSTILE: 1}, "config": {"models": acted}}
    counts = Counts(read=3, used=2, dropped=1, written=2)
    tables = {
        "runs": changed(seed_table(tmp_path / "runs", runs), **manifest, counts=counts, versions={HOSTILE: HOSTILE}),
        "verdicts": seed_table(tmp_path / "verdicts", [verdict(name=HOSTILE, judge=HOSTILE)]),
        "worlds": seed_table(tmp_path / "worlds", [spec(family=HOSTILE)]),
    }
    (tmp_path / "recipe.yaml").write_text(dump_yaml({"name": HOSTILE, "seed": HOSTILE, "data": {HOSTILE: "x"}}))
    says = msgspec.structs.replace(SAYS, title=HOSTILE, author=HOSTILE)
    return card(tables, says, tmp_path)


def test_no_text_of_the_data_becomes_markup(hostile: dict[str, str]) -> None:
    body = DatasetCard(hostile[CARD]).text
    details = {"<details>", "</details>", "<summary>", "</summary>", "<code>", "</code>"}
    assert markup(body) - details == {"funnel.svg", "outcomes.svg", "recipe.yaml"}
    assert [each for each in headings(body) if "Owned" in each and PLAIN not in "".join(texts(f"# {each}"))] == []
    assert len([each for each in headings(body) if "Owned" in each]) == 1  # the title
    assert [each for each in tokens(body) if each.type in ("strong_open", "s_open", "em_open", "hr")] == []


def test_it_reads_as_it_is_wherever_it_stands(hostile: dict[str, str]) -> None:
    """A cell that ends early, or a table that does, would cut it."""
    cells = texts(DatasetCard(hostile[CARD]).text)
    for text in (PLAIN, f"{PLAIN} 1", f"{PLAIN} (actor)", f"{PLAIN} (verdicts)"):
        assert text in cells
    (row,) = [each for each in cells if each.startswith(f"split {PLAIN}")]
    assert row == f"split {PLAIN}, read by {PLAIN} 1"
    in_json = msgspec.json.encode({"stop": [HOSTILE]}).decode().replace("\u202e", "")
    assert [each for each in cells if "Owned" in each and PLAIN not in each] == [f"{split_name(HOSTILE)} 2", in_json]


def test_its_metadata_and_pictures_are_whole(hostile: dict[str, str]) -> None:
    data = DatasetCard(hostile[CARD]).data
    assert data.pretty_name == HOSTILE
    assert data.license == "apache-2.0"
    for name in (FUNNEL, OUTCOMES):
        assert ET.fromstring(hostile[name]).tag.endswith("svg")


@given(st.text(alphabet="ab1 .)(|`*_[]<>!~$&#+=-:/@\\\n\u202e{}", max_size=12))
def test_a_cell_holds_what_it_was_given(text: str) -> None:
    table = f"| a | b |\n| --- | --- |\n| {cell(text)} | {code_cell(text)} |\n"
    plain = " ".join(text.replace("\u202e", "").split())
    assert texts(table) == ["a", "b", plain, plain or "–"]
    assert texts(f"- {cell(text)}x, {code(text)}\n") == [f"{plain}x, {plain or '–'}"]


def test_texts_of_a_citation_stay_in_their_braces() -> None:
    assert tex("a}, b = {50% & _\\x") == r"a\}, b = \{50\% \& \_\textbackslash{}x"


def test_a_picture_shows_any_label() -> None:
    picture = bars("t", [Bar("a\x00b" + "c" * 50, 1, 2), Bar("<&>", 0, 0)])
    labels = [each.text for each in ET.fromstring(picture.decode()).iter() if each.get("text-anchor") == "end"]
    assert labels == ["ab" + "c" * 31 + "…", "<&>"]


def test_the_examples_load_a_table_that_has_rows(tmp_path: Path) -> None:
    tables = {
        "rows": emptied(tmp_path / "rows", spec()),
        "worlds": seed_table(tmp_path / "worlds", [spec()]),
    }
    text = card(tables, msgspec.structs.replace(SAYS, revision="next/one"))[CARD]
    assert 'load_dataset("org/data", "worlds", revision="next/one")' in text
    assert 'scan_parquet("hf://datasets/org/data@next%2Fone/worlds/data/*.parquet")' in text
    assert [each["config_name"] for each in DatasetCard(text).data.configs] == ["worlds"]
    assert "tables without rows, which cannot be loaded: rows" in text


def test_a_table_of_verdicts_without_rows_names_no_verifier(tmp_path: Path) -> None:
    tables = {
        "tasks": seed_table(tmp_path / "tasks", [spec()]),
        "verdicts": emptied(tmp_path / "verdicts", verdict(name="decontaminate")),
    }
    assert "Verifiers" not in headings(card(tables)[CARD])
    assert verifiers(tables.values()) == []


def test_it_says_what_was_not_done_and_where_everything_comes_from(tmp_path: Path) -> None:
    runs = [trajectory("a", generation=generation(), content=[seen("x", synthetic=True)])]
    config = {"models": {"actor": {"policy": "vllm", "name": "tiny", "revision": "r1", "sampling": {}}}}
    tables = {
        "runs": changed(seed_table(tmp_path / "runs", runs), config=config, operator="sample"),
        "verdicts": seed_table(tmp_path / "verdicts", [verdict("a")]),
        "worlds": seed_table(tmp_path / "worlds", [spec("env1", family="pddl"), spec("env2", family="toolbox")]),
    }
    text = card(tables)[CARD]
    for told in (
        "| runs | `sample` | k episodes per task by a policy, crossed with scaffold and constraints | 1 | 1 | 0 | 1 |",
        "- Decontamination: no decontamination against benchmarks was run.",
        "No calibration was made",
        "- 1 observations were written by a model in the place of an environment or a person.",
        "- It holds text that tiny wrote",
        "no trajectory was taken from another data set",
        "| `runs` | one run of an agent on a task (`Trajectory`) | 1 | train 1 |",
        "- `pddl`: 1\n- `toolbox`: 1",
    ):
        assert told in text
    foreign = [trajectory("b", source=Source(dataset="org/a", sha256="0", converter="adp", converter_version="1"))]
    text = card({"runs": seed_table(tmp_path / "foreign", foreign)})[CARD]
    assert "| org/a | mit (as the publisher says) | 1 | read by adp 1 |" in text


def test_verdicts_of_a_judge_show_its_calibration(tmp_path: Path) -> None:
    rows = [verdict("a", name="judge", judge=QWEN.judge, evidence={"prompt": QWEN.prompt}), verdict("a")]
    tables = {"verdicts": seed_table(tmp_path / "verdicts", rows)}
    assert "| 1 | 1 | 1 | uncalibrated: no calibration in this run |" in card(tables)[CARD]
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit/calibration.json").write_bytes(msgspec.json.encode(calibrated(QWEN, reference_name=HOSTILE)))
    text = card(tables, run=tmp_path)[CARD]
    assert "No calibration was made" not in text
    shown = texts(DatasetCard(text).text)
    (found,) = [each for each in shown if each.startswith("agreement 70.0 % [56.2, 80.9], kappa 0.40 [")]
    assert found.endswith(f"50 pairs with {PLAIN}")
    assert "environment | 1 | 1 | 1 | – |" in text


def test_two_entries_with_one_model_name_are_two_models(tmp_path: Path) -> None:
    same = {"policy": "openai", "name": "llama", "revision": None, "sampling": {}}
    tables = {
        name: changed(
            seed_table(tmp_path / name, [trajectory(name)]), config={"models": {"actor": {**same, "entry": entry}}}
        )
        for name, entry in (("tried", "small"), ("played", "large"), ("again", "small"))
    }
    text = card(tables)[CARD]
    assert "| small | openai | llama | – | – | again (actor), tried (actor) |" in text
    assert "| large | openai | llama | – | – | played (actor) |" in text


def test_environments_that_no_published_row_is_of_are_not_counted(tmp_path: Path) -> None:
    runs = seed_table(tmp_path / "runs", [trajectory("a", environment_id="env1")])
    worlds = seed_table(tmp_path / "worlds", [spec("env1", family="pddl"), spec("env2", family="pddl")])
    material = Bundle(tables=[Published("runs", runs)], run=None, origins=[runs, worlds], unknown={})
    surveys = {"runs": scan(runs, "runs")}
    checks = all_checks(material, surveys, "mit", [], Allowed(), {})
    assert "- `pddl`: 1\n" in dataset_card(material, surveys, checks, [], SAYS, [])[CARD].decode()
