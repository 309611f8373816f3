"""One recipe run with several seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from scipy.stats import t

from agentmill.pipelines.recipes.seeds import over_seeds, seed_overrides, seed_rows
from agentmill.pipelines.recipes.summary import Summary


def summary(seed: int, **success: float | None) -> Summary:
    models: dict[str, Any] = {name: {"success": value} for name, value in success.items()}
    given = {"name": "small", "seed": seed, "run_dir": f"runs/small/seed-{seed}"}
    given |= {"evaluation": {"test": {**models, "paired_difference": {"value": 0.5}}}, "stages": {}}
    fields = msgspec.structs.fields(Summary)
    blank = {field.name: None for field in fields if field.required}
    return Summary(**{**blank, **given})


def test_each_seed_has_a_folder_of_its_own(tmp_path: Path) -> None:
    recipe = tmp_path / "small.yaml"
    recipe.write_text("name: small\nseed: 4\nsteps:\n- {operator: spec_env, as: environments}\n")
    assert seed_overrides(recipe, ["steps.environments.n=2"], 2) == [
        ["steps.environments.n=2", "seed=4", "run_dir=runs/small/seed-4"],
        ["steps.environments.n=2", "seed=5", "run_dir=runs/small/seed-5"],
    ]
    assert seed_overrides(recipe, ["seed=7", "run_dir=x"], 1) == [["seed=7", "run_dir=x", "seed=7", "run_dir=x/seed-7"]]


def test_the_mean_over_seeds_has_an_interval_and_a_deviation() -> None:
    result = over_seeds([summary(0, base=0.2, tuned=0.5), summary(1, base=0.2, tuned=0.52), summary(2, base=None)])
    assert result.run_dirs == {seed: f"runs/small/seed-{seed}" for seed in range(3)}
    base, tuned = result.measures
    assert (base.values, base.mean, base.deviation) == ({0: 0.2, 1: 0.2}, 0.2, 0.0)
    assert base.ci95 is None, "equal values do not tell how much others would differ"
    assert tuned.mean == pytest.approx(0.51)
    assert tuned.deviation == pytest.approx(0.01 * 2**0.5)
    assert tuned.ci95 == pytest.approx(t.interval(0.95, 1, loc=0.51, scale=0.01))
    assert seed_rows(result)[1][:3] == ["test", "tuned", 2]


def test_warnings_of_each_run_are_there() -> None:
    few = {
        "success": 0.5,
        "n": 5,
        "episodes": 5,
        "unscored": 95,
        "environments": 2,
        "pass_at_k_tasks": {"1": 5, "2": 4},
    }
    lost = msgspec.structs.replace(summary(3), evaluation={"test": {"base": few}})
    whole = msgspec.structs.replace(
        summary(4), evaluation={"test": {"base": {**few, "unscored": 0, "environments": 20, "pass_at_k_tasks": {}}}}
    )
    environments, unscored, attempts = over_seeds([lost, whole]).warnings
    assert environments.startswith("seed 3: test: warning: only 2 environments")
    assert unscored.startswith("seed 3: test: warning: 95 of 100 episodes of base were dropped")
    assert attempts.startswith("seed 3: test: warning: pass@2 of base is over 4 of 5 tasks")


def test_one_value_has_no_interval() -> None:
    (only,) = over_seeds([summary(0, base=0.25)]).measures
    assert (only.mean, only.ci95, only.deviation) == (0.25, None, None)
