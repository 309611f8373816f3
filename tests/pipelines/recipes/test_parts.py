"""Parts of a recipe: what is left out and why, and that the plain command goes on from there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.recipes.parts import Part
from agentmill.pipelines.recipes.plan import Plan, make_plan
from tests.errors import shows, user_error
from tests.pipelines.cli.tables import CHECK, COMPARE, DEMONSTRATE, EXPORT, agentmill, write_environments, write_recipe

VLLM = {"policy": "vllm", "model": "bundled:smollm2-135m-instruct"}
ASTRAY = {"policy": "expert", "mistakes": 0.3}
TRAIN = {"operator": "train_sft", "rows": "rows", "model": "actor", "as": "tuned"}
SAMPLE = {**DEMONSTRATE, "operator": "sample", "policy": "actor@last", "as": "explored"}
CHECK_EXPLORED = {**CHECK, "of": "explored", "as": "explored_verdicts"}
LOOP = {"operator": "iterate", "as": "loop", "rounds": 2, "steps": [SAMPLE, CHECK_EXPLORED]}
STEPS = [DEMONSTRATE, CHECK, EXPORT, TRAIN, LOOP, COMPARE]


def plan_of(folder: Path, part: Part, actor: dict[str, Any] = VLLM, steps: list[dict[str, Any]] = STEPS) -> Plan:
    write_environments(folder)
    models = {"planner": {"policy": "expert"}, "babbler": {"policy": "scripted", "turns": ["dance"]}, "actor": actor}
    return make_plan(read_recipe(write_recipe(folder, *steps, models=models), ()), part)


def test_data_is_all_but_trainings_evaluations_and_what_trained_models_do(tmp_path: Path) -> None:
    assert plan_of(tmp_path, Part(only="data")).left_out == {
        "tuned": "a training",
        "loop/round-01/explored": "needs tuned",
        "loop/round-01/explored_verdicts": "needs loop/round-01/explored",
        "loop/round-02/explored": "needs tuned",
        "loop/round-02/explored_verdicts": "needs loop/round-02/explored",
        "evaluation": "an evaluation",
    }


def test_a_model_that_cannot_be_trained_acts_in_the_place_of_the_trained_one(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, Part(only="data"), ASTRAY)
    assert plan.left_out == {"tuned": "a training", "evaluation": "an evaluation"}
    explored = next(step for step in plan.steps if step.name == "loop/round-02/explored")
    assert explored.models["actor"].mistakes == 0.3
    with user_error("model-of-wrong-kind", "tuned", "actor", "--only data"):
        plan_of(tmp_path, Part(), ASTRAY)
    assert "tuned" in plan_of(tmp_path, Part(until="rows"), ASTRAY).left_out


def test_routes_name_what_cannot_be_trained_also_after_an_earlier_training(tmp_path: Path) -> None:
    routes = {"once": [TRAIN | {"as": "again"}], "twice": [TRAIN | {"as": "again"}]}
    compare = {**COMPARE, "models": {"once": "actor@once", "twice": "actor@twice"}, "constrained": []}
    steps = [DEMONSTRATE, CHECK, EXPORT, TRAIN, {"operator": "fork", "routes": routes}, compare]
    assert [*plan_of(tmp_path, Part(only="data"), ASTRAY, steps).left_out] == [
        "tuned",
        "once/again",
        "twice/again",
        "evaluation",
    ]


def test_a_trained_adapter_is_no_data_either(tmp_path: Path) -> None:
    train = {**TRAIN, "lora": {"merge": False}}
    left_out = plan_of(tmp_path, Part(only="data"), VLLM, [DEMONSTRATE, CHECK, EXPORT, train, LOOP]).left_out
    assert left_out["loop/round-01/explored"] == "needs tuned"


def test_until_a_step_names_its_first_round_or_one_of_them(tmp_path: Path) -> None:
    steps = [DEMONSTRATE, CHECK, LOOP | {"steps": [{**SAMPLE, "policy": "planner"}, CHECK_EXPLORED]}, EXPORT]
    first = plan_of(tmp_path, Part(until="explored"), VLLM, steps).left_out
    second_round = ["loop/round-02/explored", "loop/round-02/explored_verdicts"]
    assert list(first) == ["loop/round-01/explored_verdicts", *second_round, "rows"]
    assert set(first.values()) == {"after loop/round-01/explored"}
    second = plan_of(tmp_path, Part(until="loop/round-02/explored"), VLLM, steps).left_out
    assert list(second) == ["loop/round-02/explored_verdicts", "rows"]
    assert plan_of(tmp_path, Part(until="rows"), VLLM, steps).left_out == {}


def test_a_skipped_step_takes_with_it_what_needs_its_table(tmp_path: Path) -> None:
    steps = [DEMONSTRATE, CHECK, EXPORT, COMPARE]
    left_out = plan_of(tmp_path, Part(skip=("verdicts",)), VLLM, steps).left_out
    assert left_out == {"verdicts": "skipped", "rows": "needs verdicts"}


@pytest.mark.parametrize("part", [Part(until="demonstration"), Part(skip=("rows", "demonstration"))])
def test_an_unknown_step_is_answered_with_the_nearest(tmp_path: Path, part: Part) -> None:
    with user_error("unknown-name", "'demonstration'", "Did you mean 'demonstrations'?"):
        plan_of(tmp_path, part)


def test_a_partial_run_is_not_finished_and_the_plain_command_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_environments(tmp_path)
    recipe = write_recipe(tmp_path, DEMONSTRATE, CHECK, EXPORT)
    assert agentmill("run", recipe, "--until", "demonstrations", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["left_out"] == {"verdicts": "after demonstrations", "rows": "after demonstrations"}
    assert (found["made"], list(found["summary"]["stages"])) == (1, ["demonstrations"])
    assert not (tmp_path / "run/summary.json").exists()
    assert (tmp_path / "run/recipe.yaml").exists()
    made = (tmp_path / "run/demonstrations/manifest.json").stat().st_mtime_ns
    assert agentmill("run", recipe, "--skip", "demonstrations") == 0
    assert "left out (skipped): demonstrations" in capsys.readouterr().out
    assert agentmill("run", recipe) == 0
    assert (tmp_path / "run/summary.json").exists()
    assert (tmp_path / "run/demonstrations/manifest.json").stat().st_mtime_ns == made
    before = (tmp_path / "run/summary.json").read_bytes()
    assert agentmill("run", recipe, "--until", "verdicts") == 0
    assert "nothing to do: the 2 steps that were asked for were done before" in capsys.readouterr().err
    assert (tmp_path / "run/summary.json").read_bytes() == before


def test_a_part_of_a_finished_run_that_makes_nothing_leaves_its_recipe(tmp_path: Path) -> None:
    write_environments(tmp_path)
    recipe, run = write_recipe(tmp_path, DEMONSTRATE, CHECK, EXPORT), tmp_path / "run"
    assert agentmill("run", recipe) == 0
    before = [(run / name).read_bytes() for name in ("recipe.yaml", "summary.json")]
    other = ["steps.rows.where=failure"]
    assert agentmill("run", recipe, "--until", "verdicts", *other) == 0
    assert [(run / name).read_bytes() for name in ("recipe.yaml", "summary.json")] == before
    assert agentmill("run", recipe, "--until", "verdicts", "--replace", "steps.demonstrations.k=2", *other) == 0
    assert "where: failure" in (run / "recipe.yaml").read_text()
    assert not (run / "summary.json").exists()


def test_a_dry_run_lists_what_would_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_environments(tmp_path)
    recipe = write_recipe(tmp_path, DEMONSTRATE, CHECK, EXPORT, COMPARE)
    assert agentmill("run", recipe, "--dry-run", "--only", "data", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [step["name"] for step in found["steps"]] == ["demonstrations", "verdicts", "rows"]
    assert found["left_out"] == {"evaluation": "an evaluation"}
    for skip in (["--skip", "verdicts,rows"], ["--skip", "verdicts", "--skip", "rows"]):
        assert agentmill("run", recipe, "--dry-run", *skip, "--json") == 0
        assert {"verdicts", "rows"} <= {*json.loads(capsys.readouterr().out)["left_out"]}
    assert agentmill("run", recipe, "--skip", "row") == 2
    assert shows(capsys.readouterr().err, "unknown-name", "'row'", "'rows'")
