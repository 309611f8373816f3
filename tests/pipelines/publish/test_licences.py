"""Which licence what is made of others' work may be published under; what is not known stands in the way."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.publish.bundle import Bundle, Published, gather
from agentmill.pipelines.publish.checks import licences
from agentmill.pipelines.publish.licences import (
    OBLIGATIONS,
    SourceCount,
    conflicts,
    declared_or_common,
    known,
    sources_of,
    with_stated,
)
from agentmill.schemas.ids import digest
from agentmill.schemas.records.manifest import write_manifest
from agentmill.schemas.records.rows import Message, SftRow
from agentmill.schemas.tables import Table
from agentmill.synthesis.generators.inspirations import built_in
from tests.builders import run_of_source, spec, trajectory
from tests.errors import user_error


def material(*tables: Table) -> Bundle:
    """Tables that were made from nothing else."""
    published = [Published(each.folder.name, each) for each in tables]
    return Bundle(tables=published, run=None, origins=list(tables), unknown={})


def exported(folder: Path, **inputs: str) -> Table:
    """A table of training rows that was made from ``inputs``, which are elsewhere."""
    row = SftRow(row_id="r", trajectory_id="t", view="sft", view_parameters={}, messages=[Message(role="user")])
    table = seed_table(folder, [row])
    write_manifest(folder, msgspec.structs.replace(table.manifest, operator="sft", inputs=inputs))
    return Table.open(folder)


def source(licence: str | None, dataset: str = "org/a") -> SourceCount:
    return SourceCount(dataset, licence)


def test_sources_are_counted_and_a_licence_is_said_where_they_say_none(tmp_path: Path) -> None:
    rows = [
        run_of_source("org/a", "MIT", "a"),
        run_of_source("org/b", None, "b"),
        run_of_source("org/b", "CC-BY-4.0", "c"),
        trajectory("d"),
    ]
    found = sources_of(material(seed_table(tmp_path / "runs", rows)))
    told = [(each.dataset, each.licence, each.converter, each.trajectories) for each in found]
    assert told == [
        ("org/a", "MIT", "openai 1", 1),
        ("org/b", "CC-BY-4.0", "openai 1", 1),
        ("org/b", None, "openai 1", 1),
    ]
    assert conflicts("apache-2.0", found) == [
        "org/b has no licence; say which it is with --source-licence org/b=LICENCE"
    ]
    answered = with_stated(found, {"org/b": "cc-by-4.0"})
    assert conflicts("apache-2.0", answered) == []
    assert [each.stated for each in answered] == [False, False, True]


def test_a_data_set_of_which_no_record_was_kept_is_a_source_as_well(tmp_path: Path) -> None:
    """Its dropped records are published as they were; nobody asked what they are under."""
    config = {"dataset": "org/a", "split": None, "licence": "CC-BY-NC-ND-4.0", "format": "openai"}
    for name, row in (("lost", trajectory("a")), ("kept", run_of_source("org/a", "CC-BY-NC-ND-4.0"))):
        table = seed_table(tmp_path / name, [row])
        write_manifest(table.folder, msgspec.structs.replace(table.manifest, operator="normalize", config=config))
    found = sources_of(material(Table.open(tmp_path / "lost")))
    assert found == [SourceCount("org/a", "CC-BY-NC-ND-4.0", None, "openai", 0)]
    assert licences("mit", found).level == "refused"
    twice = sources_of(material(Table.open(tmp_path / "kept"), Table.open(tmp_path / "lost")))
    assert [(each.dataset, each.trajectories) for each in twice] == [("org/a", 1)]


@pytest.mark.parametrize(
    ("held", "declared", "kept"),
    [
        ("mit", "apache-2.0", True),
        ("CC-BY-4.0", "mit", True),
        ("cc-by-4.0", "cc0-1.0", False),
        ("cc-by-sa-4.0", "mit", False),
        ("cc-by-sa-4.0", "cc-by-sa-4.0", True),
        ("cc-by-nc-4.0", "cc-by-4.0", False),
        ("cc-by-nc-4.0", "cc-by-nc-sa-4.0", True),
        ("cc-by-nd-4.0", "cc-by-nd-4.0", False),
        ("GPL-3.0-or-later", "gpl-3.0", True),
        ("ODC-By-1.0", "mit", True),
        ("llama3.1", "mit", False),
        ("llama3.1", "llama3.1", True),
        ("custom", "mit", False),
        ("other", "mit", False),
        ("other", "other", False),
        ("mit", "other", True),
        ("cc-by-sa-4.0", "other", False),
    ],
)
def test_no_obligation_is_lost(held: str, declared: str, kept: bool) -> None:
    assert (conflicts(declared, [source(held)]) == []) is kept


def test_rows_whose_runs_are_not_here_are_refused_until_their_licence_is_said(tmp_path: Path) -> None:
    """The rows of runs under a licence that forbids it looked like those of nobody."""
    exported(tmp_path / "rows", **{"from/runs": "0" * 32, "verdicts/verdicts": "1" * 32})
    found = sources_of(gather(tmp_path / "rows", []))
    check = licences("mit", found)
    assert check.level == "refused"
    assert "rows (inputs that are not here: from/runs, verdicts/verdicts) has no licence" in check.detail
    assert "say which it is with --source-licence rows=LICENCE" in check.detail
    with user_error("licence-missing"):
        declared_or_common(None, found)
    assert licences("mit", with_stated(found, {"rows": "cc-by-nc-4.0"})).level == "refused"
    assert licences("mit", with_stated(found, {"rows": "apache-2.0"})).level == "passed"


def test_a_licence_is_said_of_sources_that_tell_none_that_is_known_and_of_no_others() -> None:
    assert with_stated([source("llama-9")], {"org/a": "llama3.1"})[0].licence == "llama3.1"
    assert with_stated([source("other")], {"org/a": "mit"})[0].licence == "mit"
    assert with_stated([source("MIT")], {"org/a": "mit"}) == [source("MIT")]
    with user_error("licence-differs", "CC-BY-NC-4.0"):
        with_stated([source("CC-BY-NC-4.0")], {"org/a": "mit"})
    with user_error("unknown-name", "'org/a'"):
        with_stated([source(None)], {"org/aa": "mit"})
    with user_error("unknown-name", "org/a"):
        with_stated([], {"org/a": "mit"})


def test_environments_of_texts_that_are_not_ours_need_a_licence(tmp_path: Path) -> None:
    table = seed_table(tmp_path / "worlds", [spec()])
    ids = [each.inspiration_id for each in built_in()]
    for seeds, told in ((ids, []), (ids[:3], []), (["f" * 32], ["worlds"])):
        config = {"seeds": digest(seeds)}
        write_manifest(table.folder, msgspec.structs.replace(table.manifest, operator="spec_env", config=config))
        found = sources_of(material(Table.open(table.folder)))
        assert [each.dataset for each in found] == told
    assert "the texts of its `inspiration`) has no licence" in licences("mit", found).detail


def test_a_licence_is_declared_or_that_of_all_sources() -> None:
    one, other = source("MIT", "a"), source("cc-by-4.0", "b")
    assert declared_or_common(None, [one]) == "mit"
    assert declared_or_common("Apache-2.0", [one, other]) == "apache-2.0"
    for sources in ([], [one, other], [one, source(None)], [one, source("other")], [source("custom")]):
        with user_error("licence-missing"):
            declared_or_common(None, sources)
    with user_error("unknown-name", "'apache'", "apache-2.0"):
        known("apache")
    assert set(OBLIGATIONS) == {each.lower() for each in OBLIGATIONS}
