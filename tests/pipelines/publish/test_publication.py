"""What the publisher adds to a data set is checked as its rows are."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.processes.identity import LOCK
from agentmill.pipelines.publish import facts
from agentmill.pipelines.publish.bundle import gather
from agentmill.pipelines.publish.licences import sources_of
from agentmill.pipelines.publish.publication import Order, dataset
from agentmill.schemas.config import dump_yaml
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.task import Task
from agentmill.schemas.tables import Table, write_manifest
from tests.builders import task, trajectory
from tests.errors import user_error
from tests.pipelines.engine.stages import write_table

TOKEN = "hf_" + "aBcD" * 9


@pytest.mark.parametrize("option", ["title", "description", "author"])
def test_a_secret_in_what_the_publisher_adds_to_the_card_refuses_the_publication(tmp_path: Path, option: str) -> None:
    write_table(tmp_path / "tables/tasks", [[task("t0")]], Task)
    order = Order(path=tmp_path / "tables", repo="org/data", licence="mit", **{option: f"made with {TOKEN}"})
    publication = dataset(order, tmp_path / ".scratch")
    with user_error("check-failed", option) as error:
        publication.check()
    assert TOKEN not in str(error.value)


def step(folder: Path, rows: list[Record], operator: str, *inputs: Table, **config: object) -> Table:
    """A table that a step made of ``inputs``."""
    seed_table(folder, rows)
    manifest = Table.open(folder).manifest
    made_of = {f"of/{each.folder.name}": each.digest for each in inputs}
    write_manifest(folder, msgspec.structs.replace(manifest, operator=operator, inputs=made_of, config=config))
    return Table.open(folder)


def begun(folder: Path) -> Path:
    """The folder of a run without tables."""
    folder.mkdir()
    (folder / LOCK).touch()
    (folder / "recipe.yaml").write_text(dump_yaml({"name": "small", "seed": 0, "steps": []}))
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Rows of others that are cleaned twice, where there is nothing to clean: three tables of one content."""
    folder = begun(tmp_path / "run")
    named = {"dataset": "org/foreign", "licence": "cc-by-nc-4.0"}
    foreign = step(folder / "foreign", [trajectory("a")], "normalize", **named)
    rows = step(folder / "rows", [task("t0")], "propose", foreign)
    once = step(folder / "clean", [task("t0")], "redact", rows)
    step(folder / "again", [task("t0")], "redact", once)
    assert len({Table.open(folder / name).digest for name in ("rows", "clean", "again")}) == 1
    return folder


@pytest.mark.parametrize("name", ["rows", "clean", "again"])
def test_where_rows_are_from_is_seen_through_steps_that_change_nothing(run: Path, name: str) -> None:
    bundle = gather(run, [name])
    assert [(each.dataset, each.licence) for each in sources_of(bundle)] == [("org/foreign", "cc-by-nc-4.0")]
    assert not bundle.unknown
    assert [each.table for each in facts.stages(bundle)][:2] == ["foreign", "rows"]
    publication = dataset(Order(path=run, repo="org/data", licence="mit", tables=[name]), run.parent / ".scratch")
    with user_error("check-failed", "licence"):
        publication.check()


def test_a_table_whose_input_has_its_own_digest_and_is_not_there(tmp_path: Path) -> None:
    rows = step(tmp_path / "tables/rows", [task("t0")], "propose")
    step(tmp_path / "clean", [task("t0")], "redact", rows)
    bundle = gather(tmp_path / "clean", [])
    assert bundle.unknown == {"clean": ["of/rows"]}
    assert [each.table for each in facts.stages(bundle)] == ["clean"]
    order = Order(path=tmp_path / "clean", repo="org/data", licence="mit", source_licences={"clean": "mit"})
    dataset(order, tmp_path / ".scratch").check()


def test_two_tables_that_name_each_other_are_stages_all_the_same(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    one, other = (step(folder / name, [task(name)], "propose") for name in ("one", "other"))
    step(folder / "one", [task("one")], "propose", other)
    step(folder / "other", [task("other")], "propose", one)
    assert {each.table for each in facts.stages(gather(folder, ["one"]))} == {"one", "other"}


def test_what_the_card_tells_of_tables_that_stay_here_is_looked_through(run: Path) -> None:
    secret = {"dataset": "https://alice:s3cr3tPw77abc@data.corp.io/dump", "licence": "mit"}
    foreign = step(run / "foreign", [trajectory("a")], "normalize", **secret)
    step(run / "rows", [task("t0")], "propose", foreign)
    publication = dataset(Order(path=run, repo="org/data", licence="mit", tables=["rows"]), run.parent / ".scratch")
    checks = {each.name: each for each in publication.checks}
    assert (checks["secrets"].level, checks["secrets"].items) == ("refused", ["url_password in README.md"])
