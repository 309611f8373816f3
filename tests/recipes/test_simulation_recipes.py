"""Recipes in environments that a model plays: each data half runs in small, and is what makes it that method."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentmill.schemas.records.rows import SftRow
from agentmill.schemas.records.trajectory import Action, Trajectory
from tests.pipelines.cli.tables import agentmill
from tests.recipes.data_half import rows

SMALL = [
    "steps.proposed_environments.n=4",
    "steps.proposed_environments.held_out=0.25",
    "steps.proposed_tasks.n=4",
    "steps.simulated.k=4",
    "models.actor={policy: expert, mistakes: 0.3}",
    "models.simulator={policy: expert, mistakes: 0.2}",
]


@pytest.mark.parametrize("family", ["toolbox", "codegym"])
def test_simia_rows_are_simulated_keep_the_rules_and_have_the_tools_of_their_seeds(family: str, tmp_path: Path) -> None:
    given = [*SMALL, f"include.0=environments/{family}", f"run_dir={tmp_path / 'run'}"]
    assert agentmill("run", "simia", "--only", "data", *given) == 0
    folder = tmp_path / "run"
    seeds: dict[str, Trajectory] = {each.trajectory_id: each for each in rows(folder / "seeds")}
    played: dict[str, Trajectory] = {each.trajectory_id: each for each in rows(folder / "simulated")}
    passed = {each.trajectory_id for each in rows(folder / "ruled") if each.name == "check_rules" and each.passed}
    made: list[SftRow] = rows(folder / "rows")
    ended = {name for name, each in played.items() if each.outcome.terminated}
    assert {row.trajectory_id for row in made} == passed & ended
    assert 0 < len(made) <= len(played)
    assert len(made) < len(played) or family == "codegym", "the expert that errs breaks rules in toolboxes"
    for row in made:
        run = played[str(row.trajectory_id)]
        assert run.trajectory_id in passed
        answers = [item for item in run.content if item.turn > 0 and not isinstance(item, Action)]
        assert answers
        assert all(item.synthetic for item in answers)
        assert run.outcome.status == "unknown"
        examples = [seeds[each] for each in run.extra["recalls"]]
        assert examples
        assert run.task_id not in {each.task_id for each in examples}
        assert len(run.tools) > 1
        assert all(each.tools == run.tools for each in examples)
        assert not any(item.synthetic for each in examples for item in each.content)
    assert not any(item.synthetic for item in [item for each in seeds.values() for item in each.content])
