"""A recipe in small: lowered numbers, cut tables, and a run directory of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.recipes.plan import make_plan
from agentmill.pipelines.recipes.preview import preview
from agentmill.pipelines.recipes.shipped import recipe_files, sketch_files
from agentmill.schemas.config import dump_yaml
from agentmill.schemas.errors import UserError
from agentmill.schemas.tables import Table
from tests.builders import trajectory
from tests.errors import user_error
from tests.pipelines.cli.tables import CHECK, DEMONSTRATE, EXPORT, agentmill, write_environments, write_recipe


def test_numbers_of_steps_are_lowered_also_in_loops_and_forks(tmp_path: Path) -> None:
    make = {"operator": "spec_env", "n": 24, "held_out": 0.1}
    inner = {"operator": "propose", "of": "environments", "held_out": 0.5}
    sample = {"operator": "sample", "policy": "actor", "tasks": "t", "environments": "environments", "share": 0.1}
    train = {"operator": "train_sft", "rows": "rows", "model": "actor"}
    steps = [
        {**make, "as": "environments"},
        {"operator": "iterate", "rounds": 3, "steps": [{**inner, "as": "t"}, {**sample, "k": 4, "as": "explored"}]},
        {"operator": "fork", "routes": {"a": [{**train, "epochs": 3}], "b": [{**train, "max_steps": 2}]}},
        {"operator": "spec_env", "n": 2, "as": "few"},
        {"operator": "select_diverse", "of": "explored", "size": 78, "as": "chosen"},
        {"operator": "mix", "from": ["explored"], "size": 100, "as": "mixed"},
        {"operator": "mix", "from": ["explored"], "as": "all"},
    ]
    path = tmp_path / "recipe.yaml"
    path.write_text(dump_yaml({"name": "big", "run_dir": "runs/big/", "steps": steps}), encoding="utf-8")
    small = preview(read_recipe(path, ()), 4)
    environments, loop, fork, few, chosen, mixed, everything = small.steps
    assert environments == {**make, "n": 4, "held_out": 0.25, "as": "environments"}
    assert loop["rounds"] == 3
    assert loop["steps"][0] == {**inner, "n": 4, "as": "t"}
    assert loop["steps"][1] == {**sample, "share": 1.0, "k": 4, "as": "explored"}
    assert [fork["routes"][route][0]["max_steps"] for route in "ab"] == [4, 2]
    assert "epochs" not in fork["routes"]["a"][0], "a training takes steps or epochs"
    assert few["n"] == 2
    assert chosen["size"] == 4
    assert (mixed["size"], mixed["short"], "short" in everything) == (100, "allow", False)
    assert chosen["short"] == "allow"
    assert small.run_dir == "runs/big-preview"


@pytest.mark.parametrize("name", sorted({**recipe_files(), **sketch_files()}))
def test_every_shipped_recipe_has_a_preview(name: str) -> None:
    recipe = read_recipe(Path(name), ())
    small = preview(recipe, 2, dry=True)
    try:
        whole = make_plan(recipe)
    except UserError as error:
        # It reads files of the user's own.
        with user_error(error.code):
            make_plan(small)
    else:
        assert len(make_plan(small).steps) == len(whole.steps)


def test_a_preview_has_no_more_environments_than_corpora(tmp_path: Path) -> None:
    corpora = [str(tmp_path / name) for name in "abc"]
    steps = [
        {"operator": "spec_env", "family": "search", "corpus": corpora, "as": "all"},
        {"operator": "spec_env", "family": "search", "corpus": corpora[0], "as": "one"},
        {"operator": "spec_env", "family": "search", "corpus": corpora, "n": 3, "as": "three"},
    ]
    path = tmp_path / "recipe.yaml"
    path.write_text(dump_yaml({"name": "big", "steps": steps}), encoding="utf-8")
    recipe = read_recipe(path, ())
    assert [step["n"] for step in preview(recipe, 2).steps] == [2, 1, 2]
    assert [step["n"] for step in preview(recipe, 9).steps] == [3, 1, 3]


def test_tables_of_data_are_cut_and_those_that_are_looked_up_are_not(tmp_path: Path) -> None:
    write_environments(tmp_path, copies=5)
    recipe = read_recipe(write_recipe(tmp_path, DEMONSTRATE, CHECK, EXPORT), ())
    small = preview(recipe, 2)
    tasks = [row.split for row in Table.open(Path(small.data["tasks"])).rows()]
    assert tasks == [split for split in ("train", "held_out_tasks", "held_out_environments") for _ in range(2)]
    assert small.data["environments"] == recipe.data["environments"]
    seed_table(tmp_path / "runs", [trajectory(f"t{n}", task_id=f"train-0000{n}") for n in (4, 3, 1, 0)])
    with_runs = recipe.model_copy(update={"data": {**recipe.data, "runs": str(tmp_path / "runs")}})
    kept = [row.task_id for row in Table.open(Path(preview(with_runs, 2).data["tasks"])).rows()]
    assert kept[:4] == [f"train-0000{n}" for n in (0, 1, 3, 4)], "those of the trajectories stay, too"
    assert len(kept) == 8
    assert preview(recipe, 2).data == small.data, "the small tables are written once"
    assert preview(recipe, 20).data == recipe.data
    assert preview(recipe, 2, dry=True).data == recipe.data
    seed_table(tmp_path / "others", [trajectory(f"t{number}") for number in range(9)])
    read = recipe.model_copy(update={"data": {"runs": str(tmp_path / "others")}})
    cut = Table.open(Path(preview(read, 3).data["runs"]))
    assert [row.trajectory_id for row in cut.rows()] == ["t0", "t1", "t2"]


def test_sizes_and_quotas_of_many_rows_do_not_stop_a_preview(tmp_path: Path) -> None:
    seed_table(tmp_path / "runs", [trajectory(f"t{number}", task_id=f"k{number % 4}") for number in range(20)])
    quotas = [{"by": "task_id", "share": 0.3}]
    steps = [
        {"operator": "select_diverse", "of": "runs", "size": 10, "features": ["text"], "quotas": quotas, "as": "few"},
        {"operator": "mix", "from": ["runs"], "size": 10, "quotas": quotas, "as": "mixed"},
    ]
    path = tmp_path / "recipe.yaml"
    recipe = {"name": "few", "run_dir": str(tmp_path / "run"), "data": {"runs": str(tmp_path / "runs")}, "steps": steps}
    path.write_text(dump_yaml(recipe), encoding="utf-8")
    assert agentmill("run", path) == 0
    assert agentmill("run", path, "--preview", 3) == 0
    small = tmp_path / "run-preview"
    kept = [[row.kept for row in Table.open(small / name).rows()] for name in ("few", "mixed")]
    assert kept == [[True] * 3, [True] * 3]


def test_a_preview_runs_beside_the_recipe(tmp_path: Path) -> None:
    write_environments(tmp_path, copies=5)
    recipe = write_recipe(tmp_path, DEMONSTRATE, CHECK, EXPORT)
    assert agentmill("run", recipe, "--preview", 2) == 0
    assert not (tmp_path / "run").exists()
    assert Table.open(tmp_path / "run-preview/demonstrations").manifest.counts.written == 2
    again = make_plan(read_recipe(tmp_path / "run-preview/recipe.yaml", ()))
    assert again.run_dir == tmp_path / "run-preview"
    assert agentmill("run", tmp_path / "run-preview/recipe.yaml") == 0
    assert agentmill("run", recipe, "--preview", 1) == 2
