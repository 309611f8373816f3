"""Curricula without an operator of their own: a training for each phase, on selections, from the model before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Verdict
from tests.builders import agent_message, instruction, outcome, trajectory, verdict
from tests.pipelines.engine.stages import rows_of, write_table
from tests.pipelines.operators.steps import run
from tests.pipelines.recipes.test_plan import JUDGED, plan_of

SUCCESSES = {"a": 4, "b": 2, "c": 1, "d": 0}
"""Of four attempts at each task."""


def attempts() -> list[Trajectory]:
    return [
        trajectory(
            f"{task}{number}",
            task_id=task,
            environment_id="kitchen" if task in "ab" else "garden",
            attempt=number,
            outcome=outcome("success" if number < successes else "failure"),
            content=[instruction(), *(agent_message("go", turn) for turn in range(1, 2 + "abcd".index(task)))],
        )
        for task, successes in SUCCESSES.items()
        for number in range(4)
    ]


def rows(folder: Path, phase: str, **parameters: Any) -> set[str]:
    """The tasks of the rows of a phase."""
    run(
        folder, "sft", f"{phase}_rows", **{"from": "explored", "verdicts": "verdicts", "where": "success", **parameters}
    )
    return {str(row.task_id) for row in rows_of(folder / f"{phase}_rows")}


def test_phases_by_difficulty_horizon_and_domain(tmp_path: Path) -> None:
    given = attempts()
    write_table(tmp_path / "explored", [given], Trajectory)
    verdicts = [verdict(each.trajectory_id, passed=each.outcome.status == "success") for each in given]
    write_table(tmp_path / "verdicts", [verdicts], Verdict)
    run(tmp_path, "difficulty_band", "easy", of="explored", at_least=0.5)
    run(tmp_path, "difficulty_band", "hard", of="explored", at_least=0.1, at_most=0.49)
    assert rows(tmp_path, "easy", selections="easy") == {"a", "b"}
    assert rows(tmp_path, "hard", selections={"all": ["hard"], "strict": True}) == {"c"}
    run(tmp_path, "quality", "counts", of="explored")
    short = [{"quality": "turns", "at_most": 1}]
    run(tmp_path, "filter", "short", of="explored", quality="counts", where=short)
    assert rows(tmp_path, "short", selections="short") == {"a"}
    run(tmp_path, "filter", "garden", of="explored", where=[{"field": "environment_id", "equals": "garden"}])
    assert rows(tmp_path, "garden", selections="garden") == {"c"}


def test_each_phase_starts_from_the_model_of_the_one_before(tmp_path: Path) -> None:
    phases: list[dict[str, Any]] = []
    for name, model in (("easy", "actor"), ("hard", "easy_phase")):
        phases += [
            {"difficulty_band": name, "of": "explored", "at_least": 0.5 if name == "easy" else 0.1},
            {"sft": f"{name}_rows", "of": "explored", "selections": name},
            {"train_sft": f"{name}_phase", "rows": f"{name}_rows", "model": model},
        ]
    plan = plan_of(tmp_path, [*JUDGED, *phases])
    trainings = {each.name: each for each in plan.steps if each.name.endswith("_phase")}
    assert trainings["hard_phase"].parameters.policies() == {"model": "easy_phase"}
    assert list(trainings) == ["easy_phase", "hard_phase"]
