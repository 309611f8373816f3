"""The recipes of the proof: each is planned over what ``skill`` leaves, controls are trained as long as treatments, and
what several seeds measured is pooled as it should be."""

from __future__ import annotations

import importlib
import itertools
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.evaluation import Episode, bootstrap_mean, sign_test
from agentmill.pipelines.operators.evaluate import Evaluate
from agentmill.pipelines.operators.propose import Propose
from agentmill.pipelines.operators.train import Training
from agentmill.pipelines.recipes.estimate import estimate
from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.recipes.plan import Plan, make_plan
from agentmill.schemas.records.rows import SftRow
from tests.builders import trajectory, verdict
from tests.pages import ROOT
from tests.pipelines.cli.tables import agentmill, write_environments

OUTSIDE = ("mixed", "outside")
"""Recipes on an environment that is not ours, whose tests are in ``test_outside``."""
NAMES = sorted(path.stem for path in (ROOT / "configs/proof").glob("*.yaml") if path.stem not in OUTSIDE)
FORKED = [name for name in NAMES if "fork:" in (ROOT / f"configs/proof/{name}.yaml").read_text()]
BY_STEPS = ("steps_20", "steps_40")
"""The routes that differ by their steps, which is what ``curves`` is about."""


@pytest.fixture(scope="module")
def proof() -> Iterator[Any]:
    """``benchmarks/proof.py``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield importlib.import_module("proof")
    for name in ("proof", "proof_table", "pooling", "attempts", "recipes"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def skilled(proof: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A study under seed 5 with tables as ``skill`` leaves them, of a few rows."""
    study = proof.Study(files=proof.recipe_files(), seeds=[5], out=tmp_path_factory.mktemp("proof"))
    folder = study.place("skill", 5)
    write_environments(folder)
    seed_table(folder / "demonstrations", [trajectory()])
    seed_table(folder / "demonstrated", [verdict(name="check_outcome")])
    row = SftRow(row_id="r", trajectory_id="t1", view="sft", view_parameters={}, messages=[])
    seed_table(folder / "rows", [row])
    return study


def in_process(arguments: Sequence[str]) -> int:
    return agentmill(*arguments)


def plan_of(study: Any, name: str) -> Plan:
    return make_plan(read_recipe(study.files[name], study.overrides(name, 5)))


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_is_short_and_can_be_planned_after_skill(skilled: Any, name: str) -> None:
    file = skilled.files[name]
    plan = plan_of(skilled, name)
    assert (plan.recipe.name, plan.recipe.seed, plan.run_dir) == (file.stem, 5, skilled.out / "seed-5" / name)
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 40
    assert estimate(plan).episodes
    assert any(isinstance(step.parameters, Evaluate) for step in plan.steps)
    written = read_recipe(file, ())
    assert written.run_dir == f"runs/proof/seed-0/{name}"
    changed = [*plan.recipe.data.values(), *(str(model.model) for model in plan.recipe.models.values())]
    assert not any("seed-0" in path for path in changed)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "skill"])
def test_no_recipe_draws_the_tasks_of_skill_anew_in_its_environments(skilled: Any, name: str) -> None:
    """The seed of a step follows from its name, so under the same name they would be the same tasks."""
    known = {step.name for step in plan_of(skilled, "skill").steps if isinstance(step.parameters, Propose)}
    recipe = read_recipe(skilled.files[name], ())
    if "skill/environments" in str(recipe.data.get("environments")):
        own = {step.name for step in plan_of(skilled, name).steps if isinstance(step.parameters, Propose)}
        assert known.isdisjoint(own)


def test_recipes_are_run_after_those_that_they_need(proof: Any, tmp_path: Path) -> None:
    files = proof.recipe_files()
    assert list(files)[:3] == ["outside", "scale", "skill"]
    assert {name: proof.needs(files, name) for name in ("outside", "skill", "mixed", "rounds")} == {
        "outside": [],
        "skill": [],
        "mixed": ["outside"],
        "rounds": ["skill"],
    }
    assert "scale" not in proof.study_of([]).files
    assert list(proof.study_of(["--only", "scale"]).files) == ["scale"]
    study = proof.study_of(["--only", "mixed", "--out", str(tmp_path), "--preview", "3"])
    assert list(study.files) == ["outside", "mixed"]
    overrides = study.overrides("mixed", 2)
    assert f"data.levels={tmp_path}/seed-2/outside-preview/levels" in overrides
    assert "data.household=runs/simulated_household/trajectories" in overrides


@pytest.mark.parametrize("name", FORKED)
def test_controls_are_trained_as_long_as_treatments(skilled: Any, name: str) -> None:
    plan = plan_of(skilled, name)
    by_route: dict[str, list[Training]] = {}
    evaluated = [step.parameters.models for step in plan.steps if isinstance(step.parameters, Evaluate)]
    for step in plan.steps:
        if isinstance(step.parameters, Training) and "/" in step.name:
            by_route.setdefault(step.name.partition("/")[0], []).append(step.parameters)
    compared = {route: steps for route, steps in by_route.items() if route not in BY_STEPS}
    assert len(compared) >= 2
    assert all([*models] == [*by_route] for models in evaluated)
    assert len({sum(each.max_steps or 0 for each in steps) for steps in compared.values()}) == 1
    shapes = [(len(steps), steps[0].max_steps, steps[0].batch_size, steps[0].scheduler) for steps in compared.values()]
    assert len({*shapes}) == 1
    assert shapes[0][1]
    rates = {(type(each), each.learning_rate) for steps in compared.values() for each in steps}
    assert len(rates) == len({kind for kind, _ in rates})


def episode(task: str, environment: str, success: bool, attempt: int = 0) -> Episode:
    return Episode(
        task_id=task,
        environment_id=environment,
        attempt=attempt,
        success=success,
        actions=2,
        invalid=0,
        turns=2,
        looped=False,
        truncated=False,
    )


def of_one_seed(proof: Any, seed: int, better: Sequence[str]) -> Any:
    """Two tasks in each of the environments a, b and c; the base solves one of a, the tuned model all of ``better``."""
    pooling = importlib.import_module("pooling")
    tasks = [(f"{name}{n}", name) for name, n in itertools.product("abc", (1, 2))]
    base = [episode(task, name, task == "a1") for task, name in tasks]
    tuned = [episode(task, name, name in better) for task, name in tasks]
    sides = {
        label: [pooling.of_seed(each, seed, {}) for each in own]
        for label, own in {"base": base, "tuned": tuned}.items()
    }
    begun = {"base": len(base), "tuned": len(tuned) + 1}
    return pooling.Evaluation(
        recipe="skill", name="short", models=["base", "tuned"], episodes={"new": sides}, begun={"new": begun}
    )


def test_two_seeds_are_pooled_as_different_environments(proof: Any) -> None:
    pooling = importlib.import_module("pooling")
    found: dict[tuple[str, str], Any] = {}
    pooling.add(found, of_one_seed(proof, 0, "ab"))
    pooling.add(found, of_one_seed(proof, 7, "b"))
    (effect,) = pooling.effects([*found.values()])
    groups = [[0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [-1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
    assert (effect.control_success, effect.treatment_success) == (2 / 12, 6 / 12)
    assert effect.difference.value == pytest.approx(4 / 12)
    assert effect.difference.ci95 == bootstrap_mean(groups)
    assert (effect.difference.n, effect.difference.environments) == (12, 6)
    assert effect.difference.p_value == sign_test(3, 1)
    assert effect.by_seed == pytest.approx({"0": 3 / 6, "7": 1 / 6})
    assert effect.spread == pytest.approx((2 / 6) / 2**0.5)
    measured = pooling.measures(found["skill", "short"])
    assert measured["new"]["tuned"]["success"] == 0.5
    assert (measured["new"]["base"]["unscored"], measured["new"]["tuned"]["unscored"]) == (0, 2)


def test_models_between_are_compared_and_constrained_ones_among_themselves(proof: Any) -> None:
    pooling = importlib.import_module("pooling")
    own = of_one_seed(proof, 0, "a")
    labels = own.episodes["new"]
    labels |= {"other": labels["tuned"], "base_constrained": labels["base"], "tuned_constrained": labels["tuned"]}
    own.models = ["base", "other", "tuned"]
    pairs = [(each.control, each.treatment) for each in pooling.effects([own])]
    assert pairs == [("base", "other"), ("base", "tuned"), ("base_constrained", "tuned_constrained")]


SKILL = """
name: skill
run_dir: runs/proof/seed-0/skill
defaults: {tasks: tasks, environments: environments, splits: [held_out_environments]}
models: {planner: {policy: expert}, actor: {policy: expert, mistakes: 0.9}}
data: {given_tasks: GIVEN/tasks, given_environments: GIVEN/environments}
steps:
  - {wrap_env: environments, of: given_environments, rename: symbols}
  - {wrap_env: tasks, of: given_tasks, environments: environments}
  - {evaluate: short, models: {base: actor, tuned: planner}, max_turns: 6, by: [environment_id]}
"""
WORDING = """
name: wording
run_dir: runs/proof/seed-0/wording
defaults: {splits: [held_out_environments]}
models: {planner: {policy: expert}}
data: {tasks: runs/proof/seed-0/skill/tasks, environments: runs/proof/seed-0/skill/environments}
steps:
  - {wrap_env: other_environments, of: environments, rename: words}
  - {wrap_env: other_tasks, of: tasks, environments: other_environments}
  - {evaluate: plain, models: {tuned: planner}, tasks: tasks, environments: environments}
  - {evaluate: renamed, models: {tuned: planner}, tasks: other_tasks, environments: other_environments}
"""
"""A recipe whose treatment is a planner and whose control errs, and one about its wording."""


@pytest.fixture
def small(proof: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Recipes without models in the place of those of the proof; the folder of what they measure."""
    recipes = tmp_path / "recipes"
    recipes.mkdir()
    write_environments(tmp_path / "given", copies=3)
    (recipes / "skill.yaml").write_text(SKILL.replace("GIVEN", str(tmp_path / "given")))
    (recipes / "wording.yaml").write_text(WORDING)
    monkeypatch.setattr(proof, "RECIPES", recipes)
    return tmp_path / "out"


def test_what_is_finished_is_not_run_again_and_all_of_it_is_in_the_table(
    proof: Any, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--seeds", "0", "--out", str(small)]
    assert proof.main(given, in_process) == 0
    before = {path: path.stat().st_mtime_ns for path in small.rglob("*.parquet")}
    attempts = (small / proof.ATTEMPTS).read_text()
    assert "skill, seed 0: up to " in capsys.readouterr().out
    assert proof.main([*given, "--only", "wording"], in_process) == 0
    assert {path: path.stat().st_mtime_ns for path in small.rglob("*.parquet")} == before
    assert (small / proof.ATTEMPTS).read_text() == attempts
    results = json.loads((small / "proof.json").read_text())
    assert [(run["name"], run["finished"]) for run in results["runs"]] == [("skill", True), ("wording", True)]
    skill, wording = results["effects"]
    assert (skill["control"], skill["treatment"], skill["treatment_success"]) == ("base", "tuned", 1.0)
    assert skill["difference"]["value"] > 0
    assert (wording["control"], wording["treatment"]) == ("tuned (plain)", "tuned (renamed)")
    assert (wording["difference"]["value"], wording["difference"]["n"]) == (0.0, skill["difference"]["n"])
    summary = json.loads((small / "seed-0/wording/summary.json").read_bytes())
    assert [*summary["evaluation"]] == ["plain/held_out_environments", "renamed/held_out_environments"]
    text = (small / "proof.md").read_text()
    assert "| skill | short | held_out_environments | base |" in text
    assert "## skill/short, by groups of tasks" in text
    assert "100.0 % of 3 |" in text
    assert "No evidence" not in text


def test_runs_of_two_machines_are_pooled_by_their_episodes(proof: Any, small: Path) -> None:
    there, here, both = (small / name for name in ("there", "here", "both"))
    for seeds, out in ((["0"], there), (["1"], here), (["0", "1"], both)):
        assert proof.main(["--seeds", *seeds, "--out", str(out)], in_process) == 0
    shutil.rmtree(there / "seed-0")
    other = ["--pool", str(there / "episodes")]
    assert proof.main([*other, "--out", str(here)], in_process) == 0
    pooled, whole = (json.loads((out / "proof.json").read_text()) for out in (here, both))
    assert [(run["seed"], run["name"]) for run in pooled["runs"]] == [
        (seed, name) for seed in (0, 1) for name in ("skill", "wording")
    ]
    assert (pooled["effects"], pooled["measures"]) == (whole["effects"], whole["measures"])
    for name in ("skill", "wording"):
        file = f"episodes/seed-0/{name}.json.gz"
        assert (there / file).read_bytes() == (both / file).read_bytes()
    # Nothing is run, also where nothing is there.
    assert proof.main([*other, "--out", str(small / "new")], in_process) == 0
    assert sorted(each.name for each in (small / "new").iterdir()) == ["proof.json", "proof.md"]


def test_a_run_whose_tables_were_moved_is_pooled_by_its_episodes(
    proof: Any, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--seeds", "0", "--out", str(small)]
    assert proof.main(given, in_process) == 0
    before = json.loads((small / "proof.json").read_text())
    (small / "seed-0/skill").rename(small / "moved")
    assert proof.main(["--pool", str(small / "episodes"), "--out", str(small)], in_process) == 0
    assert json.loads((small / "proof.json").read_text())["effects"] == before["effects"]
    errors = capsys.readouterr().err
    assert "wording, seed 0: pooled by" in errors
    assert "wording.json.gz is left out" in errors
    shutil.rmtree(small / "episodes")
    # What can be read is pooled all the same.
    (small / "moved").rename(small / "seed-0/skill")
    (small / "seed-0/wording/other_tasks").rename(small / "moved")
    written, whole = proof.study_of(given).write()
    assert not whole
    assert "wording, seed 0: left out: there is no table at" in capsys.readouterr().err
    assert "Finished, and left out since it cannot be read: wording (seed 0)." in written.read_text()
    assert json.loads((small / "proof.json").read_text())["effects"] == before["effects"][:1]


def test_what_was_tried_is_named_also_where_nothing_is_left_of_it(proof: Any, small: Path) -> None:
    given = ["--seeds", "0", "1", "--out", str(small)]
    assert proof.main(given, lambda arguments: 1) == 1
    assert "Begun and not finished: skill (seed 0), skill (seed 1)." in (small / "proof.md").read_text()
    assert proof.main(given, in_process) == 0
    assert "not finished" not in (small / "proof.md").read_text()
    for folder in ("seed-1", "episodes/seed-1"):
        shutil.rmtree(small / folder)
    proof.study_of(given).write()
    assert "Finished, and no longer here: skill (seed 1), wording (seed 1)." in (small / "proof.md").read_text()
    # Its episodes are kept, and what is tried now fails.
    shutil.rmtree(small / "seed-0/wording")
    assert proof.main([*given[:1], "0", *given[3:]], lambda arguments: int("wording" in arguments[1])) == 1
    assert "Begun and not finished: wording (seed 0)." in (small / "proof.md").read_text()
    elsewhere = small / "elsewhere"
    assert proof.main(["--pool", str(small / "episodes"), "--out", str(elsewhere)], in_process) == 0
    text = (elsewhere / "proof.md").read_text()
    assert "Begun and not finished: wording (seed 0)." in text
    assert "Finished, and no longer here: skill (seed 1), wording (seed 1)." in text


def test_the_recipe_that_is_kept_is_that_of_the_finished_run(proof: Any, small: Path) -> None:
    given = ["--seeds", "0", "--out", str(small)]
    assert proof.main(given, in_process) == 0
    file = small / "episodes/seed-0/wording.json.gz"
    before = file.read_bytes()
    (proof.RECIPES / "wording.yaml").write_text(f"{WORDING}# changed\n")
    assert proof.main(given, lambda arguments: int("wording" in arguments[1])) == 1
    assert file.read_bytes() == before
    assert "Changed between attempts: wording (2 versions)." in (small / "proof.md").read_text()


def test_damaged_files_are_named_and_a_line_that_is_not_whole_is_passed_over(
    proof: Any, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--seeds", "0", "--out", str(small)]
    assert proof.main(given, in_process) == 0
    attempts = small / proof.ATTEMPTS
    with attempts.open("ab") as file:
        file.write(b'{"seed":0,"na')
    shutil.rmtree(small / "seed-0/wording")
    assert proof.main(given, in_process) == 0
    assert len(proof.study_of(given).attempts()) == len(attempts.read_bytes().splitlines()) - 1

    there = small / "there"
    shutil.copytree(small / "episodes", there)
    (there / "seed-1").mkdir()
    shutil.copy(there / "seed-0/skill.json.gz", there / "seed-1/skill.json.gz")
    torn = there / "seed-0/wording.json.gz"
    torn.write_bytes(torn.read_bytes()[:-20])
    capsys.readouterr()
    assert proof.main(["--pool", str(there), "--out", str(small / "new")], in_process) == 1
    errors = capsys.readouterr().err
    assert f"wording, seed 0: left out: {torn} is damaged" in errors
    assert "seed-1/skill.json.gz is of skill under seed 0; expected it as seed-0/skill.json.gz" in errors
    attempts.write_text('{"seed": "none"}\n')
    assert proof.main(given, in_process) == 2
    assert f"{attempts}, line 1, is no attempt" in capsys.readouterr().err


def test_models_that_cannot_be_compared_are_in_the_table_all_the_same(proof: Any) -> None:
    pooling, table = importlib.import_module("pooling"), importlib.import_module("proof_table")
    own = of_one_seed(proof, 0, "ab")
    own.episodes["new"]["tuned"] = []
    found, measured = pooling.effects([own]), {"skill/short": pooling.measures(own)}
    text = table.page("proof", [], [], [], found, measured)
    assert not found
    assert "Not compared, since no scored task is that of its control, too: skill/short new base" in text
    assert "skill/short new tuned." in text
    assert "| skill/short | new | tuned | - | - | 0 | 0 | 7 |" in text


def test_effects_are_shown_with_their_seeds(proof: Any) -> None:
    pooling, table = importlib.import_module("pooling"), importlib.import_module("proof_table")
    found: dict[tuple[str, str], Any] = {}
    for seed, better in ((0, "ab"), (7, "b")):
        pooling.add(found, of_one_seed(proof, seed, better))
    (effect,) = pooling.effects([*found.values()])
    assert "0: +50.0, 7: +16.7" in table.effect_cells(effect)


def test_development_says_that_it_is_no_evidence_and_a_run_that_failed_is_named(proof: Any, small: Path) -> None:
    given = ["--development", "--seeds", "1004", "--out", str(small)]

    def failing(arguments: Sequence[str]) -> int:
        if "wording" not in arguments[1]:
            return in_process(arguments)
        (small / "seed-1004/wording").mkdir(exist_ok=True)
        return 1

    assert proof.main(given, failing) == 1
    text = (small / "development.md").read_text()
    assert "**No evidence.**" in text
    assert "Begun and not finished: wording (seed 1004)." in text
    assert not (small / "proof.md").exists()
    (proof.RECIPES / "wording.yaml").write_text(f"{WORDING}# changed\n")
    assert proof.main(given, failing) == 1
    assert "Changed between attempts: wording (2 versions)." in (small / "development.md").read_text()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--seeds", "1000"], "--development"),
        (["--development", "--seeds", "3"], "1000 or more"),
        (["--only", "skil"], "invalid choice"),
        (["--preview", "1"], "2 or more"),
        (["--pool", "no/such"], "no seed-N/NAME.json.gz in no/such"),
        (["--pool", "x", "--only", "skill"], "does not go with --seeds, --only"),
    ],
)
def test_mistakes_on_the_command_line_are_refused(
    proof: Any, given: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        proof.study_of(given)
    assert named in capsys.readouterr().err


def test_nothing_is_run_after_a_skill_that_did_not_end(
    proof: Any, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert proof.main(["--seeds", "0", "1", "--out", str(small)], lambda arguments: 1) == 1
    attempts = [json.loads(line) for line in (small / proof.ATTEMPTS).read_text().splitlines()]
    assert [(each["seed"], each["name"], each["finished"]) for each in attempts] == [
        (0, "skill", False),
        (1, "skill", False),
    ]
    assert "wording, seed 0: not run, since skill is not finished" in capsys.readouterr().err


def test_a_recipe_that_cannot_be_planned_says_why(
    proof: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = proof.Study(files=proof.recipe_files(), seeds=[3], out=tmp_path)
    assert not study.run("rounds", 3, in_process)
    assert f"{tmp_path / 'seed-3/skill'}" in capsys.readouterr().err


def test_success_is_that_of_the_tasks_that_both_sides_have(proof: Any) -> None:
    pooling = importlib.import_module("pooling")
    own = of_one_seed(proof, 0, "ab")
    sides = own.episodes["new"]
    sides["tuned"] = [each for each in sides["tuned"] if not each.task_id.endswith("a1")]
    (effect,) = pooling.effects([own])
    assert (effect.control_success, effect.treatment_success) == (0.0, 3 / 5)
    assert effect.difference.value == pytest.approx(effect.treatment_success - effect.control_success)
    assert (effect.difference.n, effect.unpaired) == (5, 1)


def test_a_recipe_that_was_changed_after_it_was_finished_or_killed_is_named(proof: Any, small: Path) -> None:
    given = ["--seeds", "0", "--out", str(small)]
    assert proof.main(given, in_process) == 0
    assert "Changed between attempts" not in (small / "proof.md").read_text()
    file = proof.RECIPES / "wording.yaml"
    file.write_text(WORDING.replace("tuned: planner", "other: planner, tuned: planner"))
    proof.as_written.cache_clear()
    assert proof.main(given, in_process) == 0
    assert "Changed between attempts: wording (2 versions)." in (small / "proof.md").read_text()

    def killed(arguments: Sequence[str]) -> int:
        raise KeyboardInterrupt

    again = ["--seeds", "7", "--only", "skill", "--out", str(small)]
    with pytest.raises(KeyboardInterrupt):
        proof.main(again, killed)
    lines = [json.loads(line) for line in (small / proof.ATTEMPTS).read_text().splitlines()]
    assert (lines[-1]["seed"], lines[-1]["name"], lines[-1]["finished"]) == (7, "skill", False)
    # A preview is no attempt of the proof.
    proof.main([*again, "--preview", "3"], lambda arguments: 1)
    assert not any(each.preview for each in proof.study_of(again).attempts())
    assert all(each.preview for each in proof.study_of([*again, "--preview", "3"]).attempts())
