"""What is published is whole: a run that came to its end, under names that do not meet."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.operators.evaluate import RESULT
from agentmill.pipelines.processes.identity import LOCK, in_use, locked
from agentmill.pipelines.publish.bundle import gather
from agentmill.pipelines.recipes.summary import StageSummary, Summary
from agentmill.pipelines.runs.tables import run_of
from agentmill.schemas.config import dump_yaml
from agentmill.schemas.records.manifest import write_manifest
from agentmill.schemas.tables import Table
from tests.builders import task, trajectory
from tests.errors import user_error
from tests.fake_hub import FakeHub, direct, files_of


def finished(run: Path, **data: str) -> Path:
    """A run of two tables, one of them with a table at its side."""
    seed_table(run / "explored", [trajectory("a"), trajectory("b")])
    seed_table(run / "explored/nodes", [trajectory("n")])
    seed_table(run / "tasks", [task("a")])
    (run / LOCK).touch()
    (run / "recipe.yaml").write_text(dump_yaml({"name": "small", "steps": [], "data": data}))
    tell(run, explored=2, tasks=1)
    return run


def tell(run: Path, **written: int) -> None:
    """Write a summary that tells of tables with these numbers of rows."""
    stages = {name: stage(name, n) for name, n in written.items()}
    summary = Summary(name="small", seed=0, run_dir=str(run), stages=stages)
    (run / "summary.json").write_bytes(msgspec.json.encode(summary))


def stage(name: str, rows: int) -> StageSummary:
    return StageSummary(
        operator="seeds", read=rows, used=rows, dropped=0, written=rows, seconds=0.0, where=name, record="Task"
    )


def test_a_finished_run_is_published_as_a_whole(tmp_path: Path) -> None:
    material = gather(finished(tmp_path / "run"), [])
    assert {each.name for each in material.tables} == {"explored", "explored/nodes", "tasks"}
    assert {path.name for path in material.run_files} == {"recipe.yaml", "summary.json"}
    assert material.summary is not None
    assert not in_use(tmp_path / "run")


def test_a_run_that_is_running_is_not(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    with locked(run):
        with user_error("run-in-use"):
            gather(run, [])
        assert [each.name for each in gather(run, ["tasks"]).tables] == ["tasks"]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"explored": 2, "tasks": 1, "rows": 3}, "lists a table rows with 3 rows, which is not there"),
        ({"explored": 5, "tasks": 1}, "a table explored with 5 rows, which has 2 rows"),
    ],
)
def test_a_run_that_is_not_as_its_summary_tells_is_not(tmp_path: Path, told: dict[str, int], expected: str) -> None:
    run = finished(tmp_path / "run")
    tell(run, **told)
    with user_error("run-unfinished", expected):
        gather(run, [])
    assert gather(run, ["tasks"]).tables


def test_what_its_steps_did_not_make_is_no_reason_to_run_them_again(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    tell(run, explored=2)
    with user_error("table-not-of-run", "summary.json") as error:
        gather(run, [])
    assert "agentmill run" not in str(error.value)
    (run / "tasks").rename(tmp_path / "tasks")
    assert gather(run, []).tables


def test_a_run_without_a_summary_is_not_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    for text in (b'{"name": "small"', b"\xff", b"[]"):
        (run / "summary.json").write_bytes(text)
        with user_error("damaged-file", "summary.json"):
            gather(run, [])
    (run / "summary.json").unlink()
    with user_error("run-unfinished", "summary.json"):
        gather(run, [])


def test_of_several_runs_one_is_named(tmp_path: Path) -> None:
    for name in ("one", "other"):
        finished(tmp_path / name)
    with user_error("several-match", "/one"):
        gather(tmp_path, [])
    seed_table(tmp_path / "loose/tasks", [task("a")])
    assert [each.name for each in gather(tmp_path / "loose", []).tables] == ["tasks"]


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (["a=tasks", "a=explored"], ("name-taken",)),
        (["a=tasks", "a/data=explored"], ("name-taken", "a/data")),
        (["copies=tasks"], ("name-taken",)),
        (["recipe.yaml/x=tasks"], ("name-taken", "recipe.yaml/x")),
        (["../a=tasks"], ("name-malformed",)),
        (["task"], ("unknown-name", "'task'", "tasks")),
    ],
)
def test_names_on_the_hub_do_not_meet(tmp_path: Path, named: list[str], expected: tuple[str, ...]) -> None:
    with user_error(*expected):
        gather(finished(tmp_path / "run"), named)


def test_what_a_run_was_given_from_the_hub_is_looked_up_and_not_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, home = FakeHub(), tmp_path / "cache"
    given = seed_table(tmp_path / "given", [task("g")])
    commit = hub.push("org/given", files_of(tmp_path / "given", "tasks"))
    run = finished(tmp_path / "run", tasks="hf://org/given")
    (run / "revisions.json").write_bytes(msgspec.json.encode({"hf://datasets/org/given": commit}))
    explored = Table.open(run / "explored")
    write_manifest(explored.folder, msgspec.structs.replace(explored.manifest, inputs={"tasks": given.digest}))
    with hub.served() as address:
        direct(monkeypatch, address, home)
        assert gather(run, ["explored"]).unknown == {"explored": ["tasks"]}
        assert hub.requests == []
        Table.open(f"hf://org/given@{commit}/tasks")
    found = gather(run, ["explored"])  # the Hub is gone
    assert found.unknown == {}
    assert {each.digest for each in found.origins} == {explored.digest, given.digest}


def test_a_manifest_of_another_program_is_no_table(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    (run / "page").mkdir()
    (run / "page/manifest.json").write_text('{"name": "a web page"}')
    assert len(gather(run, []).tables) == 3
    assert run_of(run / "explored/nodes") == run


def test_a_table_alone_has_a_name_that_can_be_read_back(tmp_path: Path) -> None:
    for name, code in (("my table", "name-malformed"), ("copies", "name-taken")):
        seed_table(tmp_path / name, [task("a")])
        with user_error(code, name, "--table NAME=TABLE"):
            gather(tmp_path / name, [])
        assert [each.name for each in gather(tmp_path, [f"tasks={name}"]).tables] == ["tasks"]


def test_a_run_of_an_evaluation_alone_has_nothing_to_publish_unless_it_is_named(tmp_path: Path) -> None:
    seed_table(tmp_path / "evaluation/train/base/trajectories", [trajectory("a")])
    (tmp_path / "evaluation" / RESULT).write_text("{}")
    with user_error("not-publishable"):
        gather(tmp_path, [])
    assert gather(tmp_path, ["played=evaluation/train/base/trajectories"]).tables
