"""What a report is told of a run: its steps, who reads what, how far it is, and what is no run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipelines.recipe import read_recipe
from pipelines.report.run import read_run
from pipelines.report.steps import planned
from schemas.errors import UserError
from tests.pipelines.report.world import BODY, STEPS, compare, write_recipe, write_table


def reads_of(root: Path) -> dict[str, list[str]]:
    return {step.name: step.reads for step in planned(read_recipe(root / "recipe.yaml", []))}


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
    explored, other = planned(read_recipe(root / "recipe.yaml", []))
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
        with pytest.raises(UserError, match=f"look at it with: agentmill inspect {run}/tasks$"):
            read_run(path)


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no recipe.yaml; expected what agentmill run has made"):
        read_run(tmp_path)
    with pytest.raises(UserError, match="is no folder"):
        read_run(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("summary.json", "{"),
        ("summary.json", '{"name": 3}'),
        ("recipe.yaml", "name: [\n"),
        ("round-01/tuned/training.json", "\xff"),
        ("round-01/evaluation/evaluation.json", '{"inputs": {}, "splits": {"all": {"base": {"n": 3}}}}'),
        ("tasks/manifest.json", '{"record": "Task", "schema_version": "1.0"}'),
    ],
)
def test_a_damaged_file_is_named(run: Path, tmp_path: Path, file: str, text: str) -> None:
    root = tmp_path / "run"
    shutil.copytree(run, root)
    (root / file).write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=file):
        read_run(root)


def test_a_table_that_no_step_makes_is_left_out(tmp_path: Path) -> None:
    root = write_recipe(tmp_path, STEPS[:1])
    write_table(root / "worlds-of-another-recipe", [])
    found = read_run(root)
    assert [(stage.name, stage.state, stage.tables) for stage in found.stages] == [("worlds", "not begun", [])]
