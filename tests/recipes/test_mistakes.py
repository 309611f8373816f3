"""Twenty mistakes in recipes: each answer is a line or two, and names the step, the key and the nearest right one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.schemas.config import dump_yaml
from agentmill.synthesis.environments.pddl.environment import PddlEnvironment
from tests.pipelines.cli.tables import agentmill

MODELS = {"planner": {"policy": "expert"}, "actor": {"policy": "vllm", "model": "bundled:smollm2-135m-instruct"}}
SHOWN = {"expert": "shown", "policy": "planner"}
CHECKED = {"check_outcome": "verdicts", "of": "shown"}

KEPT = {"filter": "kept", "of": "shown", "verdicts": "verdicts", "where": "success"}
ROWS = [{"sft": "rows", "of": "shown"}, {"scorer_rows": "scored", "of": "shown"}]
SMALL = "small"

PLANNED: dict[str, tuple[str | list[dict[str, Any]], list[str], list[str]]] = {
    "1 an unknown key and a missing one": (
        [{"sample": "explored", "model": "actor"}],
        [],
        ["explored (sample", "unknown key 'model'", "Did you mean 'policy', which is missing?"],
    ),
    "1 another word for the tables that a step works on": (
        SMALL,
        ["steps.verdicts.from=[shwn]"],
        ["verdicts (check_outcome", "unknown table 'shwn'", "Did you mean 'shown'?"],
    ),
    "2 a mistake in a step of a loop": (
        "eto",
        ["steps.loop.steps.0.temprature=0.7"],
        ["loop/round-01/explored (sample, steps.8.steps.0)", "'temprature'", "Did you mean 'temperature'?"],
    ),
    "3 an override of a step in a loop by another name": (
        "eto",
        ["steps.explord.temperature=0.7"],
        ["steps.explord.temperature", "no step is called 'explord'", "Did you mean 'explored'?"],
    ),
    "4 successes without verdicts": (
        SMALL,
        ["steps.kept.verdicts=null"],
        ["kept (filter", "`where: {verdict: check_outcome}`", "needs `verdicts`"],
    ),
    "5 two models where there is one": (
        SMALL,
        ["steps.shown.policy=[planner, actor]"],
        ["shown (expert", "policy: expected a valid string"],
    ),
    "5 two tables where there is one": (
        "eto",
        ["steps.preferring.rows=[pairs, rows]"],
        ["loop/round-01/preferring (train_dpo", "rows: expected at most 1 entry", "['pairs', 'rows']"],
    ),
    "5 rows of two kinds in one training": (
        [*ROWS, {"train_sft": "tuned", "rows": ["rows", "scored"], "model": "actor"}],
        [],
        ["tuned_rows (mix", "ScorerRow and SftRow records", "expected tables of one kind"],
    ),
    "6 a round that there was not": (
        "eto",
        ["steps.pairs.of=[demonstrations, explored@9]"],
        ["loop/round-01/pairs (trajectory_pairs", "unknown round of 'explored' '9'", "known: 1, all, previous"],
    ),
    "6 an unknown table of the round before": (
        "eto",
        ["steps.pairs.of=[demonstrations, explord@previous]"],
        ["loop/round-01/pairs (trajectory_pairs", "unknown table 'explord'", "Did you mean 'explored'?"],
    ),
    "7 a model of a round that there is not": (
        "eto",
        ["steps.evaluation.models={base: actor@base, tuned: actor@round-03}"],
        ["evaluation (evaluate", "'round-03'", "round-01, round-02", "Did you mean 'round-02'?"],
    ),
    "8 a model that cannot be trained": (
        "eto",
        ["models.actor={policy: expert}"],
        ["imitating (train_sft", "model 'actor' cannot be trained", "expected policy: vllm", "--only data"],
    ),
    "9 a verdict that nothing writes": (
        "agentrefine",
        ["steps.refined.where=[{verdict: check_outcom, passed: true}]"],
        ["refined (filter", "`where: {verdict: check_outcom}`", "Did you mean 'check_outcome'?"],
    ),
    "9 a field that there is not": (
        "agentrefine",
        ["steps.refined.where=[{field: outcome.rewrad, at_least: 1}]"],
        ["refined (filter", "where.0: `field: outcome.rewrad`", "Did you mean 'reward'?"],
    ),
    "10 a label compared with another type": (
        "atlas",
        ["steps.rows.steps=[{label: critical, equals: true}]"],
        ["rows (sft", "steps.0: `label: critical` is text", "write 'true', in quotes"],
    ),
    "11 admissible actions where not all are listed": (
        "agentrefine",
        ["steps.taught.constrain=admissible", "steps.taught.scaffold=text"],
        ["taught (sample", "`constrain: admissible`", "'toolbox'", "such as pddl"],
    ),
    "12 a split that has no tasks": (
        "eto",
        ["steps.explored.split=trian"],
        ["loop/round-01/explored (sample", "split 'trian'", "Did you mean 'train'?"],
    ),
    "13 nothing is held out, and an evaluation asks for it": (
        "eto",
        ["steps.proposed_environments.held_out=0", "steps.proposed_tasks.held_out=0"],
        ["evaluation (evaluate", "split 'held_out_tasks'", "known: train", "`held_out` of propose"],
    ),
    "14 an unknown family": (
        "agentgen",
        ["steps.proposed_environments.family=pdll"],
        ["proposed_environments (spec_env", "family: unknown family 'pdll'", "Did you mean 'pddl'?"],
    ),
    "14 a family whose tasks have no generator of this kind": (
        "agentgen",
        ["steps.proposed_environments.family=search"],
        ["proposed_environments (spec_env", "`family: search` needs `corpus`", "a folder of .txt"],
    ),
    "14 an unknown file of environments": (
        "eto",
        ["include.0=environments/pdll"],
        ["include", "environments/pdll.yaml", "Did you mean 'environments/pddl'?"],
    ),
    "15 lengths of plans that cannot be": (
        "eto",
        ["steps.proposed_tasks.plan_length=[6, 2]"],
        ["proposed_tasks (propose", "plan_length: [6, 2] is no range", "[fewest, most] with 1 <= fewest"],
    ),
    "18 a name that is taken": (
        "eto",
        ["steps.verdicts.as=demonstrations"],
        ["demonstrations (check_outcome", "the name 'demonstrations' is taken", "as: …"],
    ),
}
"""A recipe or the steps of a small one, overrides, and what the answer to ``agentmill plan`` holds."""


def write_small(folder: Path, *steps: dict[str, Any]) -> Path:
    """A recipe on the planning environments of the tests."""
    examples = PddlEnvironment.examples()
    tasks = [msgspec.structs.replace(task, split="train") for _, task in examples]
    seed_table(folder / "environments", [spec for spec, _ in examples])
    seed_table(folder / "tasks", tasks)
    recipe = {
        "name": "small",
        "run_dir": str(folder / "run"),
        "defaults": {"tasks": "tasks", "environments": "environments", "split": "train"},
        "models": MODELS,
        "data": {name: str(folder / name) for name in ("environments", "tasks")},
        "steps": [SHOWN, *steps],
    }
    (folder / "small.yaml").write_text(dump_yaml(recipe), encoding="utf-8")
    return folder / "small.yaml"


def check(error: str, expected: list[str]) -> None:
    """The answer has at most two lines, with all that is expected."""
    answer = error.partition("agentmill: ")[2]
    assert 1 <= len(answer.splitlines()) <= 2, answer
    for each in expected:
        assert each in answer


@pytest.mark.parametrize("mistake", PLANNED)
def test_a_mistake_is_answered_while_planning(mistake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, overrides, expected = PLANNED[mistake]
    steps = [CHECKED, KEPT] if given == SMALL else given
    recipe = Path(steps) if isinstance(steps, str) else write_small(tmp_path, *steps)
    assert agentmill("plan", recipe, *overrides) == 2
    check(capsys.readouterr().err, expected)


def test_16_step_pairs_without_turns_to_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_small(tmp_path, {"step_pairs": "pairs", "of": "shown", "min_gap": 0.5})
    assert agentmill("run", recipe) == 1
    check(
        capsys.readouterr().err, ["step pairs used none", "no_partner", "no other turn from its state, as branch makes"]
    )


def test_17_a_selection_that_keeps_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = {"filter": "kept", "of": "shown", "where": [{"field": "outcome.reward", "at_least": 7}]}
    recipe = write_small(tmp_path, kept, {"sft": "rows", "of": "shown", "selections": "kept"})
    assert agentmill("run", recipe) == 1
    check(capsys.readouterr().err, ["step rows used none", "not_selected", "kept: outcome.reward"])


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["run", "etoo"], ["no recipe called etoo.", "Did you mean 'eto'?"]),  # 19
        (["plan", "agent_bank"], ["no recipe called agent_bank.", "Did you mean 'agentbank'?"]),
        (
            ["run", "quickstart"],
            ["no recipe called quickstart. Did you mean 'configs/quickstart.yaml'? [", "list recipes"],
        ),
        (["plan", "line"], ["no recipe called line. Did you mean 'configs/line.yaml'? ["]),
        (["new", "x", "--from", "quik_start"], ["Did you mean 'configs/quickstart.yaml'?"]),
        (["list", "recipe"], ["unknown kind 'recipe'", "Did you mean 'recipes'?"]),  # 20
        (["show", "recipes", "eto"], ["unknown kind 'recipes'", "Did you mean 'recipe'?"]),
    ],
)
def test_recipes_by_nearly_their_names(
    command: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert agentmill(*command) == 2
    check(capsys.readouterr().err, expected)


def test_20_list_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    assert agentmill("list", "recipes") == 0
    assert "eto" in capsys.readouterr().out
