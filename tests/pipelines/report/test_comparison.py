"""Models side by side, also where they have other figures than each other."""

from __future__ import annotations

from pathlib import Path

import msgspec

from agentmill.pipelines.evaluation import Episode, measure
from agentmill.pipelines.operators.evaluate import RESULT
from agentmill.pipelines.report.comparison import comparison_section, pass_sheets
from agentmill.pipelines.runs.run import read_run
from agentmill.schemas.records.record import JsonObject
from tests.pipelines.report.example_run import write_run


def measures(*attempts: int) -> JsonObject:
    """A model whose first attempt at each of some tasks succeeded, after so many attempts at each."""
    plain = {"actions": 4, "invalid": 0, "turns": 4, "looped": False, "truncated": False}
    episodes = [
        Episode(task_id=f"t{task}", environment_id=f"e{task}", attempt=k, success=k == 0, **plain)  # type: ignore[arg-type]
        for task, tried in enumerate(attempts)
        for k in range(tried)
    ]
    found: JsonObject = msgspec.to_builtins(measure(episodes))
    return found


def test_models_may_have_pass_at_k_of_other_k(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run")
    file = root / "round-02/evaluation" / RESULT
    held = msgspec.json.decode(file.read_bytes())
    old = {name: value for name, value in measures(1, 1).items() if name != "pass_at_k_tasks"}
    held["splits"] = {"s": {"base": measures(3, 3), "tuned": measures(4, 3), "none": measures(), "old": old}}
    file.write_bytes(msgspec.json.encode(held))
    run = read_run(root)
    (stage,) = [each for each in run.stages if each.name == "round-02/evaluation"]
    assert stage.comparison is not None
    (sheet,) = pass_sheets(stage, stage.comparison.splits)
    assert sheet.columns == ["split", "model", "k", "tasks", "pass@k"]
    assert sheet.rows == [
        ["s", "base", 1, 2, "33.3 %"],
        ["s", "base", 2, 2, "66.7 %"],
        ["s", "base", 3, 2, "100.0 %"],
        ["s", "tuned", 1, 2, "29.2 %"],
        ["s", "tuned", 2, 2, "58.3 %"],
        ["s", "tuned", 4, 1, "100.0 %"],
        ["s", "old", 1, 2, "100.0 %"],
    ]
    assert any("pass@4 of tuned is over 1 of 2 tasks" in line for line in comparison_section(run).words)
