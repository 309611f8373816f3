"""Which step a run takes next, and by which plan; whole runs are in ``tests/pipelines/cli/test_run.py``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from agentmill.pipelines.operators.evaluate import RESULT, Evaluate
from agentmill.pipelines.operators.run_context import RunContext
from agentmill.pipelines.operators.task_step import StepResult
from agentmill.pipelines.recipes.plan import Plan
from agentmill.pipelines.recipes.runner import RecipeRunner
from agentmill.pipelines.recipes.step import Step
from agentmill.pipelines.recipes.summary import StageSummary
from agentmill.pipelines.terminal.progress import progress_for
from agentmill.schemas.errors import NothingUsed
from agentmill.schemas.tables import Counts
from tests.pipelines.recipes.test_plan import EVALUATE, LOOP, WORLD, loop, plan_of

RUNNER = "agentmill.pipelines.recipes.runner"
NO_ROWS = Counts(read=0, used=0, dropped=0, written=0)


def context_of(plan: Plan) -> RunContext:
    return RunContext("test", plan.run_dir, plan.recipe.runner, progress_for(sys.stderr), False, lambda: None)


class GivenMeasures(RecipeRunner):
    """Makes no tables and no models; each ``evaluate`` step writes the next of ``measures``."""

    def __init__(self, plan: Plan, measures: list[float]) -> None:
        super().__init__(plan, context_of(plan))
        self._measures = iter(measures)

    def check_inputs(self) -> None:
        """There are none."""

    def _make(self, step: Step) -> None:
        if isinstance(step.parameters, Evaluate):
            step.folder.mkdir(parents=True)
            splits = {"train": {"now": {"success": next(self._measures)}}}
            (step.folder / RESULT).write_text(json.dumps({"models": ["now"], "splits": splits}))
        self._stages[step.name] = StageSummary.of(
            NO_ROWS, operator=step.context.operator, where="", reasons={}, seconds=0.0
        )


@pytest.mark.parametrize("measures", [[0.3, 0.5, 0.4], [0.3, 0.5, 0.1]], ids=["all rounds", "the last one is worse"])
def test_the_best_round_is_known_to_the_run_that_has_just_evaluated_it(tmp_path: Path, measures: list[float]) -> None:
    until = {"metric": "evaluation.success", "falls": 0.2}
    body = [*LOOP, {**EVALUATE, "models": {"now": "actor@last"}, "as": "evaluation"}]
    final = {**EVALUATE, "models": {"now": "actor@best"}, "as": "final"}
    runner = GivenMeasures(plan_of(tmp_path, [*WORLD, loop(*body, until=until), final]), measures)
    while (step := runner.next_step()) is not None and step.name != "final":
        runner.run(step)
    assert step is not None
    assert step.models["now"].model == str(tmp_path / "run/round-02/tuned")


def test_an_evaluation_that_used_less_than_min_used_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = Counts(read=100, used=80, dropped=20, written=80)
    result = StepResult(counts=counts, reasons={"disconnected": 5, "timeout": 15}, seconds=1.0)
    monkeypatch.setattr(Evaluate, "run", lambda *_: result)
    monkeypatch.setattr(f"{RUNNER}.opened", lambda _: {})

    def evaluate(least: float) -> None:
        plan = plan_of(tmp_path, [*WORLD, {**EVALUATE, "min_used": least}])
        runner = RecipeRunner(plan, context_of(plan))
        monkeypatch.setattr(runner, "check_inputs", lambda: None)
        runner.run(plan.steps[-1])

    evaluate(0.8)
    text = r"used 80, less than min_used 0.81, of its 100 inputs \(timeout 15, disconnected 5\)\n.*delete .*/evaluate"
    with pytest.raises(NothingUsed, match=text):
        evaluate(0.81)
