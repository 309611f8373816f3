"""``pick``: which trajectory of each task stays, and why the others do not."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmill.pipelines.operators.pick import Candidate, ranked
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Trajectory, Usage
from agentmill.schemas.records.verdict import Selection, Value, Verdict
from agentmill.schemas.tables import Counts
from tests.builders import outcome, trajectory, verdict
from tests.errors import user_error
from tests.pipelines.engine.stages import rows_of, write_table
from tests.pipelines.operators.steps import job, model, run
from tests.ruin_environment import SPEC, registered, ruin_task, win_probability


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Task a: a failure of 1 turn, successes of 2 turns and 20, 30, 10 tokens; task b: one without tokens."""
    short = trajectory().content[:3]
    rows = [
        trajectory("a0", task_id="a", attempt=0, outcome=outcome("failure"), content=short, usage=used(5)),
        trajectory("a1", task_id="a", attempt=1, usage=used(20)),
        trajectory("a2", task_id="a", attempt=2, usage=used(30)),
        trajectory("a3", task_id="a", attempt=3, usage=used(10)),
        trajectory("b0", task_id="b", attempt=0, outcome=outcome("failure")),
    ]
    write_table(tmp_path / "runs", [rows[3:], rows[:3]], Trajectory)
    scores = {"a0": 0.1, "a1": 0.4, "a2": 0.9, "a3": 0.9}
    said = [verdict(name, name="judge", score=score, passed=score > 0.2) for name, score in scores.items()]
    write_table(tmp_path / "verdicts", [said], Verdict)
    values = [Value(trajectory_id="a1", name="reward_model", value=3.0, estimator="m", n=1)]
    write_table(tmp_path / "values", [values], Value)
    chosen = [Selection(trajectory_id=row.trajectory_id, name="f", kept=row.trajectory_id != "a2") for row in rows]
    write_table(tmp_path / "chosen", [chosen], Selection)
    return tmp_path


def used(tokens: int) -> Usage:
    return Usage(completion_tokens=tokens)


def picked(folder: Path, **parameters: Any) -> dict[str, str | None]:
    """Why each was not kept; ``None`` for those that were."""
    manifest = run(folder, "pick", "picked", of="runs", **parameters)
    rows = rows_of(folder / "picked")
    assert manifest.counts == Counts(read=5, used=5, dropped=0, written=5)
    assert manifest.metrics["kept"] == sum(row.kept for row in rows)
    assert all(row.kept is (row.reason is None) for row in rows)
    return {row.trajectory_id: row.reason for row in rows}


@pytest.mark.parametrize(
    ("parameters", "kept", "others"),
    [
        ({}, {"a1", "b0"}, {"a0": "not_best", "a2": "not_best", "a3": "not_best"}),
        ({"k": 2}, {"a1", "a2", "b0"}, {"a0": "not_best", "a3": "not_best"}),
        ({"by": "first"}, {"a0", "b0"}, {"a1": "not_first", "a2": "not_first", "a3": "not_first"}),
        ({"by": "shortest"}, {"a0", "b0"}, {"a1": "not_shortest", "a2": "not_shortest", "a3": "not_shortest"}),
        (
            {"by": "cheapest"},
            {"a0"},
            {"a1": "not_cheapest", "a2": "not_cheapest", "a3": "not_cheapest", "b0": "unscored"},
        ),
        (
            {"score": "verdict:judge", "verdicts": "verdicts"},
            {"a2"},
            {"a0": "not_best", "a1": "not_best", "a3": "not_best", "b0": "unscored"},
        ),
        (
            {"score": "value:reward_model", "values": "values"},
            {"a1"},
            {"a0": "unscored", "a2": "unscored", "a3": "unscored", "b0": "unscored"},
        ),
        (
            {"by": "cheapest", "where": "success", "verdict": "judge", "verdicts": "verdicts"},
            {"a3"},
            {"a0": "not_success", "a1": "not_cheapest", "a2": "not_cheapest", "b0": "unscored"},
        ),
        (
            {"score": "verdict:judge", "verdicts": "verdicts", "selections": "chosen"},
            {"a3"},
            {"a0": "not_best", "a1": "not_best", "a2": "not_selected", "b0": "unscored"},
        ),
    ],
)
def test_one_of_each_task(parameters: dict[str, Any], kept: set[str], others: dict[str, str], runs: Path) -> None:
    assert picked(runs, **parameters) == {**dict.fromkeys(kept), **others}


def test_the_score_that_told_is_kept(runs: Path) -> None:
    picked(runs, score="verdict:judge", verdicts="verdicts")
    assert {row.trajectory_id: row.score for row in rows_of(runs / "picked")} == {
        "a0": 0.1,
        "a1": 0.4,
        "a2": 0.9,
        "a3": 0.9,
        "b0": None,
    }


def test_a_score_needs_its_table(runs: Path) -> None:
    with user_error("needs-another-key", "score: verdict:judge", "verdicts"):
        job(runs, "pick", "picked", of="runs", score="verdict:judge")


@given(
    st.permutations(
        [
            Candidate(name, key, None, attempt)
            for name, key, attempt in (("a", 1.0, 1), ("b", 1.0, 0), ("c", None, 0), ("d", -2.0, 5), ("e", 1.0, 0))
        ]
    )
)
def test_the_order_of_the_tables_does_not_matter(candidates: list[Candidate]) -> None:
    assert [each.trajectory_id for each in ranked(candidates)] == ["d", "b", "e", "a", "c"]


def test_best_of_n_succeeds_as_often_as_it_must(tmp_path: Path) -> None:
    """Of n tries with success probability v the best succeeds with 1 - (1 - v)^n; a 99.9 % interval around that."""
    tasks, n = 120, 4
    value = win_probability(2, 5, 0.5)
    expected = 1 - (1 - value) ** n
    write_table(tmp_path / "tasks", [[ruin_task(2, 5, f"t{number:03d}") for number in range(tasks)]], Task)
    write_table(tmp_path / "environments", [[SPEC]], EnvironmentSpec)
    on = {"tasks": "tasks", "environments": "environments"}
    with registered():
        run(tmp_path, "sample", "tried", {"actor": model("gambler", turns=["0.5"])}, policy="p", k=n, **on)
        run(tmp_path, "check_outcome", "verdicts", of="tried", **on)
        best = {"of": "tried", "verdicts": "verdicts", "score": "verdict:check_outcome"}
        assert run(tmp_path, "pick", "best", **best).metrics == {"kept": tasks}
        rows = run(
            tmp_path, "sft", "rows", **{"from": "tried"}, selections="best", verdicts="verdicts", where="success"
        )
    share = rows.counts.used / tasks
    assert abs(share - expected) < 3.29 * math.sqrt(expected * (1 - expected) / tasks)
    assert rows.reasons["not_selected"] == tasks * (n - 1)
    assert len({row.task_id for row in rows_of(tmp_path / "rows")}) == rows.counts.used
