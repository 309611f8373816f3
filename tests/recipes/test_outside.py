"""The data half of the comparison on an environment that is not ours, and of the mixture with a foreign format."""

from __future__ import annotations

import json
from pathlib import Path

from agentmill.pipelines.recipes.estimate import estimate
from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.recipes.plan import make_plan
from agentmill.schemas.records.trajectory import Action, ApiAction
from benchmarks.outside_data import record
from tests.pipelines.cli.tables import agentmill
from tests.recipes.data_half import rows

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
FEW = ("steps.proposed_planning.n=2", "steps.proposed_levels.n=8", "steps.proposed_missions.n=4")


def test_babyai_rows_and_a_foreign_data_set_are_made_and_mixed(tmp_path: Path) -> None:
    outside = tmp_path / "runs/outside"
    given = [*FEW, "steps.proposed_planning_tasks.n=2", f"run_dir={outside}"]
    assert agentmill("run", CONFIGS / "proof/outside.yaml", "--only", "data", *given) == 0
    missions = {each.task_id: each for each in rows(outside / "missions")}
    assert {each.split for each in missions.values()} == {"train", "held_out_tasks", "held_out_environments"}
    made = rows(outside / "babyai_rows")
    assert made
    assert {missions[row.task_id].split for row in made} == {"train"}
    assert all(f"Goal: {missions[row.task_id].instruction[6:]}" in row.messages[1].content for row in made)
    assert {row.split for row in rows(outside / "planning_rows")} == {"train"}

    Path("data").mkdir(exist_ok=True)
    records = [json.dumps(record(number)) for number in range(60)]
    Path("data/simulated_household.jsonl").write_text("\n".join(records), encoding="utf-8")
    assert agentmill("normalize", "--config", CONFIGS / "datasets/simulated_household.yaml") == 0
    trajectories = rows(Path("runs/simulated_household/trajectories"))
    assert len(trajectories) == 60
    actions = [item for each in trajectories for item in each.content if isinstance(item, Action)]
    assert {item.function for item in actions if isinstance(item, ApiAction)} >= {"go", "take", "put", "open"}

    assert agentmill("run", CONFIGS / "proof/mixed.yaml", "--only", "data", "steps.rows.repeat=60") == 0
    mixed = rows(Path("runs/mixed/rows"))
    foreign = [row for row in mixed if row.environment_id is None]
    assert len(foreign) * 2 == len(mixed) > 0
    assert "Action: put" in foreign[0].messages[-1].content


def test_both_comparisons_can_be_planned(tmp_path: Path) -> None:
    plan = make_plan(read_recipe(CONFIGS / "proof/outside.yaml", [f"run_dir={tmp_path}"]))
    assert estimate(plan).episodes
    assert [step.name for step in plan.steps][-3:] == ["transfer", "tuned", "evaluation"]
