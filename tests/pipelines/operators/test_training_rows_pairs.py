"""Pairs as stages: who is paired over shards and tables, what is counted, and why the rest is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.engine.runner import RunnerConfig
from agentmill.schemas.records.trajectory import Outcome, Trajectory
from agentmill.schemas.records.verdict import Selection, Value, Verdict
from agentmill.schemas.tables import Counts
from agentmill.schemas.views.preference import TrajectoryPairs
from tests.builders import agent_message, instruction, outcome, seen, trajectory, verdict
from tests.errors import user_error
from tests.pipelines.cli.tables import agentmill
from tests.pipelines.engine.line import ROOT
from tests.pipelines.engine.stages import bytes_of, dropped_of, rows_of, write_table
from tests.pipelines.operators.steps import job, run

FROM = {"from": ["shown", "tried"]}


def played(name: str, task: str, *commands: str, good: bool = False, **fields: Any) -> Trajectory:
    content = [instruction()]
    for turn, command in enumerate(commands, 1):
        content += [agent_message(command, turn), seen(f"{command}: done", turn)]
    values = {"content": content, "task_id": task, "outcome": outcome("success" if good else "failure"), **fields}
    return trajectory(name, **values)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Demonstrations of three tasks, and what was tried at them and at a fourth one, in three shards."""
    shown = [played(f"e{task}", f"task{task}", "go", "take", good=True) for task in range(3)]
    tried = [
        [played("a0", "task0", "go", "sit"), played("a1", "task1", "go", "take")],
        [played("b0", "task0", "run"), played("b2", "task2", "go", "rest", good=True)],
        [played("c3", "task3", "sit"), played("d0", "task0", outcome=Outcome())],
    ]
    write_table(tmp_path / "shown", [shown], Trajectory)
    write_table(tmp_path / "tried", tried, Trajectory)
    return tmp_path


def pairs_of(table: Path) -> set[tuple[str, str]]:
    return {(row.chosen_id, row.rejected_id) for row in rows_of(table)}


def reasons_of(table: Path) -> dict[str, str]:
    return {letter.input_id: letter.reason for letter in dropped_of(table)}


def test_runs_are_paired_over_shards_and_tables(folder: Path) -> None:
    manifest = run(folder, "trajectory_pairs", "pairs", **FROM)
    assert manifest.counts == Counts(read=9, used=3, dropped=6, written=2)
    assert pairs_of(folder / "pairs") == {("e0", "a0"), ("e0", "b0")}
    expected = {"e1": "equivalent", "a1": "equivalent", "e2": "tie", "b2": "tie", "c3": "no_partner", "d0": "no_step"}
    assert reasons_of(folder / "pairs") == expected
    assert {letter.blamed for letter in dropped_of(folder / "pairs")} == {"curation"}
    row = min(rows_of(folder / "pairs"), key=lambda row: row.rejected_id)
    assert [message.content for message in row.rejected] == ["go", "go: done", "sit"]


def test_steps_are_paired_over_shards_and_tables(folder: Path) -> None:
    manifest = run(folder, "step_pairs", "pairs", **FROM, max_pairs=1)
    assert manifest.counts == Counts(read=9, used=3, dropped=6, written=2)
    assert {(row.chosen_id, row.rejected_id, row.chosen_item) for row in rows_of(folder / "pairs")} == {
        ("e0", "a0", 3),
        ("e0", "b0", 1),
    }
    details = {letter.input_id: letter.detail for letter in dropped_of(folder / "pairs")}
    assert details["e1"].endswith("of 2 steps: equivalent 2")
    assert reasons_of(folder / "pairs")["b2"] == "tie"


def test_every_parameter_reaches_the_view(folder: Path) -> None:
    wide = {"min_gap": 0.5, "min_chosen": 0.9, "cut_rejected": "chosen+5", "max_pairs": 1, "weight": "gap"}
    run(folder, "trajectory_pairs", "pairs", **FROM, **wide)
    (row,) = rows_of(folder / "pairs")
    assert row.view_parameters == {**row.view_parameters, **wide, "score": "outcome"}
    assert reasons_of(folder / "pairs")["b0"] == "capped"
    run(folder, "trajectory_pairs", "default", **FROM)
    assert row.row_id not in {other.row_id for other in rows_of(folder / "default")}


def test_what_is_not_chosen_makes_no_pair(folder: Path) -> None:
    selections = [Selection(trajectory_id=name, name="s", kept=name != "a0") for name in ("e0", "e1", "a0", "b0", "a1")]
    write_table(folder / "selections", [selections], Selection)
    manifest = run(folder, "trajectory_pairs", "pairs", **FROM, selections={"all": "selections", "strict": True})
    assert pairs_of(folder / "pairs") == {("e0", "b0")}
    assert manifest.reasons == {"not_selected": 5, "equivalent": 2}
    write_table(folder / "verdicts", [[verdict(name) for name in ("e0", "a0")]], Verdict)
    chosen = run(folder, "trajectory_pairs", "where", **FROM, verdicts="verdicts", where="success")
    assert pairs_of(folder / "where") == {("e0", "a0")}
    assert chosen.reasons == {"unscored": 7}


def test_scores_come_from_other_tables(folder: Path) -> None:
    values = [
        Value(trajectory_id=name, name="mc", value=value, estimator="mc", n=5, item=item)
        for name, item, value in (("e0", 1, 0.4), ("b0", 1, 0.8), ("e0", 3, 0.6), ("a0", 3, 0.4))
    ]
    write_table(folder / "values", [values], Value)
    run(folder, "step_pairs", "pairs", **FROM, values="values", score="value:mc", min_gap=0.35)
    assert pairs_of(folder / "pairs") == {("b0", "e0")}
    assert reasons_of(folder / "pairs")["a0"] == "gap_too_small"
    with user_error("needs-another-key", "score: value:mc", "values"):
        job(folder, "step_pairs", "none", **FROM, score="value:mc")
    with user_error("needs-another-key", "labels"):
        job(folder, "step_pairs", "none", **FROM, prefer={"label": "kind", "equals": "fixed"})


def test_a_trajectory_that_breaks_the_view_is_dropped_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    candidates = TrajectoryPairs.candidates

    def broken(self: TrajectoryPairs, one: Trajectory, evidence: Any) -> Any:
        if one.trajectory_id == "a0":
            raise RuntimeError("no")
        return candidates(self, one, evidence)

    monkeypatch.setattr(TrajectoryPairs, "candidates", broken)
    manifest = run(folder, "trajectory_pairs", "pairs", **FROM)
    assert pairs_of(folder / "pairs") == {("e0", "b0")}
    assert manifest.reasons["unexpected_error"] == 1


def test_the_same_trajectory_in_two_tables_is_a_mistake(folder: Path) -> None:
    write_table(folder / "again", [[played("a0", "task0", "go")]], Trajectory)
    with user_error("record-twice", "Trajectory"):
        run(folder, "trajectory_pairs", "pairs", **{"from": ["shown", "tried", "again"]})


def test_the_command_line_exports_pairs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = [folder / "shown", folder / "tried"]
    parameters = ["cut_rejected=chosen+5", "score=reward"]
    assert agentmill("export", *tables, "--to", "trajectory_pairs", "--out", folder / "out", *parameters) == 0
    assert "read 9, used 3, dropped 6" in capsys.readouterr().out
    assert pairs_of(folder / "out") == {("e0", "a0"), ("e0", "b0")}


def test_two_workers_write_the_same_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    run(folder, "step_pairs", "alone", **FROM)
    shared = job(folder, "step_pairs", "shared", **FROM)
    runner = RunnerConfig(name="multi_processing", workers=2)
    msgspec.structs.replace(shared, runner=runner).run()
    assert bytes_of(folder / "shared") == bytes_of(folder / "alone")
