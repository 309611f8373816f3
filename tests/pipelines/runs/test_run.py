"""What a report is told of a run: its steps, who reads what, how far it is, and what is no run."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from agentmill.pipelines.engine.provenance import provenance
from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.recipes.outline import planned
from agentmill.pipelines.report.page import resume
from agentmill.pipelines.runs.run import STALE, read_run
from agentmill.schemas.tables import Table, write_manifest
from tests.builders import spec, task, verdict
from tests.errors import user_error
from tests.pipelines.report.example_run import BODY, STEPS, compare, run_of, write_recipe, write_table


def reads_of(root: Path) -> dict[str, list[str]]:
    return {step.name: step.reads for step in planned(read_recipe(root / "recipe.yaml", []), root)}


def test_steps_read_what_the_plan_of_the_run_would_give_them(tmp_path: Path) -> None:
    reads = reads_of(write_recipe(tmp_path, STEPS))
    assert list(reads)[:3] == ["worlds", "tasks", "round-01/explored"]
    assert reads["tasks"] == ["worlds"]
    assert reads["round-01/explored"] == ["tasks", "worlds"]
    assert reads["round-02/explored"] == ["tasks", "worlds", "round-01/tuned"]
    assert reads["round-02/tuned"] == ["round-02/rows", "round-01/tuned"]
    assert set(reads["round-02/evaluation"]) == {"tasks", "worlds", "round-02/tuned"}


def test_routes_are_known_by_their_names_after_a_fork(tmp_path: Path) -> None:
    fork = {"operator": "fork", "routes": {"long": BODY[:4], "short": BODY[:4]}}
    after = {**BODY[4], "models": {"one": "actor@long", "other": "actor@short", "it": "short/tuned"}}
    again = {**BODY[1], "of": "long/explored"}
    reads = reads_of(write_recipe(tmp_path, [*STEPS[:2], fork, after, again]))
    assert reads["short/rows"] == ["short/explored", "short/verdicts"]
    assert reads["short/explored"] == ["tasks", "worlds"]
    assert reads["evaluation"] == ["tasks", "worlds", "long/tuned", "short/tuned"]
    assert reads["verdicts"] == ["long/explored", "tasks", "worlds"]


def test_tables_from_elsewhere_and_operators_from_elsewhere(tmp_path: Path) -> None:
    steps = [{**BODY[0], "policy": "actor"}, {"operator": "of_a_plug_in", "of": "explored", "as": "other"}]
    root = write_recipe(tmp_path, steps, data={"tasks": "/gone/tasks", "worlds": "/gone/worlds"})
    explored, other = planned(read_recipe(root / "recipe.yaml", []), root)
    assert (explored.reads, explored.data) == ([], ["tasks", "worlds"])
    assert (other.name, other.operator, other.reads) == ("other", "of_a_plug_in", [])


def test_a_finished_run_has_counts_of_every_stage(run: Path) -> None:
    found = read_run(run)
    assert found.finished
    counts = {stage.name: stage.summary and (stage.summary.read, stage.summary.dropped) for stage in found.stages}
    assert len(counts) == 12
    assert counts["round-01/explored"] == (10, 6)
    assert counts["round-02/tuned"] == (4, 1)
    assert counts["round-02/evaluation"] == (6, 0)
    assert [each.name for each in found.stages[-1].tables][:2] == [
        "round-02/evaluation/held_out_tasks/base/trajectories",
        "round-02/evaluation/held_out_tasks/base/verdicts",
    ]


def test_how_far_an_unfinished_run_is(run: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    shutil.copytree(run, root)
    (root / "summary.json").unlink()
    shutil.rmtree(root / "round-02/tuned")
    (root / "round-02/.tuned.work").mkdir()
    shutil.rmtree(root / "round-02/evaluation")
    (root / "round-02/rows/manifest.json").unlink()
    found = read_run(root)
    states = {stage.name: stage.state for stage in found.stages}
    assert not found.finished
    assert states["round-02/verdicts"] == "done"
    assert states["round-02/rows"] == states["round-02/tuned"] == "begun"
    assert states["round-02/evaluation"] == "not begun"


def test_an_evaluation_whose_tables_were_made_anew_is_not_done(run: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    shutil.copytree(run, root)
    held = (root / "round-02/evaluation/evaluation.json").read_bytes()
    shutil.rmtree(root / "round-02/evaluation")
    compare(root / "round-02/evaluation", {"base": 3, "tuned": 3})
    (root / "round-02/evaluation/evaluation.json").write_bytes(held)
    assert read_run(root).stages[-1].state == "begun"
    assert not read_run(root).finished


def test_a_table_is_refused_with_the_command_for_it(run: Path) -> None:
    for path in (run / "tasks", run / "tasks/data"):
        with user_error("not-a-run", f"{run}/tasks"):
            read_run(path)


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with user_error("not-a-run", "recipe.yaml"):
        read_run(tmp_path)
    with user_error("not-a-run"):
        read_run(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("summary.json", "{"),
        ("summary.json", '{"name": 3}'),
        ("recipe.yaml", "name: [\n"),
        ("round-01/tuned/training.json", "\xff"),
        ("round-01/evaluation/evaluation.json", '{"inputs": {}, "splits": {"all": {"base": {"n": 3}}}}'),
        ("round-01/evaluation/evaluation.json", '{"inputs": {}, "splits": {}}'),
        ("tasks/manifest.json", '{"record": "Task", "sch'),
        ("round-01/evaluation/held_out_tasks/base/verdicts/manifest.json", "{"),
        ("tasks/manifest.json", '{"record": "Task", "schema_version": "1.0"}'),
    ],
)
def test_a_damaged_file_is_named(run: Path, tmp_path: Path, file: str, text: str) -> None:
    root = tmp_path / "run"
    shutil.copytree(run, root)
    (root / file).write_text(text, encoding="latin-1")
    with user_error("not-yaml" if file == "recipe.yaml" else "damaged-file", file):
        read_run(root)


def test_a_table_that_no_step_makes_is_left_out(tmp_path: Path) -> None:
    root = write_recipe(tmp_path, STEPS[:1])
    write_table(root / "worlds-of-another-recipe", [])
    found = read_run(root)
    assert [(stage.name, stage.state, stage.tables) for stage in found.stages] == [("worlds", "not begun", [])]


def test_a_table_is_of_the_step_with_the_longest_name(tmp_path: Path) -> None:
    expert = {**BODY[0], "policy": "actor", "as": "round-01"}
    root = write_recipe(tmp_path, [*STEPS[:2], expert, {**STEPS[2], "rounds": 1, "steps": BODY[:2]}])
    for name in ("worlds", "tasks", "round-01", "round-01/explored", "round-01/explored/nodes"):
        write_table(root / name, [run_of(name, True, 1)])
    tables = {stage.name: [each.name for each in stage.tables] for stage in read_run(root).stages}
    assert tables["round-01"] == ["round-01"]
    assert tables["round-01/explored"] == ["round-01/explored", "round-01/explored/nodes"]


def test_rounds_and_groups_are_those_of_the_plan(tmp_path: Path) -> None:
    fork = {"operator": "fork", "routes": {"a-round-1": [{**STEPS[2], "steps": BODY[:2]}], "b": BODY[:1]}}
    steps = planned(read_recipe(write_recipe(tmp_path, [*STEPS[:2], fork]) / "recipe.yaml", []), tmp_path)
    assert [(step.name, step.group, step.round) for step in steps[1:]] == [
        ("tasks", "tasks", 0),
        ("a-round-1/round-01/explored", "a-round-1/explored", 1),
        ("a-round-1/round-01/verdicts", "a-round-1/verdicts", 1),
        ("a-round-1/round-02/explored", "a-round-1/explored", 2),
        ("a-round-1/round-02/verdicts", "a-round-1/verdicts", 2),
        ("b/explored", "b/explored", 0),
    ]


def made_from(table: Table, **inputs: Table) -> Table:
    """The table as one that was made from these."""
    held = {f"{role}/{each.folder.name}": each.digest for role, each in inputs.items()}
    write_manifest(table.folder, msgspec.structs.replace(table.manifest, inputs=held))
    return Table.open(table.folder)


def states(root: Path) -> dict[str, str]:
    return {stage.name: stage.state for stage in read_run(root).stages}


def test_what_was_made_from_other_tables_is_not_done_nor_what_follows(tmp_path: Path) -> None:
    root = write_recipe(tmp_path, [*STEPS[:2], *BODY[:2]])
    worlds = write_table(root / "worlds", [spec()])
    tasks = made_from(write_table(root / "tasks", [task()]), of=worlds)
    explored = write_table(root / "explored", [run_of("a", True, 1)])
    explored = made_from(explored, tasks=tasks, environments=worlds)
    made_from(write_table(root / "verdicts", [verdict("a")]), of=explored, tasks=tasks, environments=worlds)
    (root / "summary.json").write_bytes(msgspec.json.encode(read_run(root).summary()))
    assert read_run(root).finished
    made_from(write_table(root / "tasks", [task("another")]), of=worlds)
    run = read_run(root)
    assert not run.finished
    assert states(root) == {"worlds": "done", "tasks": "done", "explored": STALE, "verdicts": STALE}
    assert [each.name for each in run.tables] == ["worlds", "tasks"]
    assert resume(run) == f"agentmill run {root}/recipe.yaml --replace"
    (root / "tasks/manifest.json").unlink()
    assert states(root) == {"worlds": "done", "tasks": "begun", "explored": STALE, "verdicts": STALE}


def test_tables_from_elsewhere_are_not_compared(tmp_path: Path) -> None:
    root = write_recipe(tmp_path, BODY[:2], data={"tasks": "/gone/tasks", "worlds": "/gone/worlds"})
    tasks, worlds = write_table(tmp_path / "gone/tasks", [task()]), write_table(tmp_path / "gone/worlds", [spec()])
    explored = write_table(root / "explored", [run_of("a", True, 1)])
    explored = made_from(explored, tasks=tasks, environments=worlds)
    made_from(write_table(root / "verdicts", [verdict("a")]), of=explored, tasks=tasks, environments=worlds)
    assert states(root) == {"explored": "done", "verdicts": "done"}
    write_table(root / "explored", [run_of("b", True, 1)])
    assert states(root) == {"explored": "done", "verdicts": STALE}


def test_a_training_on_other_rows_is_not_done(run: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    shutil.copytree(run, root)
    rows = Table.open(root / "round-02/rows")
    plan = root / "trainings/round-02/tuned/plan.json"
    plan.parent.mkdir(parents=True)
    plan.write_bytes(msgspec.json.encode(provenance("train_sft", {}, {"rows": [rows]})))
    assert read_run(root).finished
    write_table(rows.folder, [verdict("other", name="row")])
    assert {name for name, state in states(root).items() if state == STALE} == {
        "round-02/tuned",
        "round-02/evaluation",
    }
