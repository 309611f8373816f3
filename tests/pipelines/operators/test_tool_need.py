"""``tool_need``: which tasks need tools, by attempts without any whose pass rates are known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import ApiAction, OutcomeStatus, Trajectory
from agentmill.schemas.records.verdict import Verdict
from agentmill.schemas.tables import Counts
from tests.builders import agent_message, instruction, outcome, tool_trajectory, trajectory, verdict
from tests.errors import user_error
from tests.pipelines.engine.stages import rows_of, write_table
from tests.pipelines.operators.steps import job, model, run, stage
from tests.ruin_environment import SPEC, registered, ruin_task

ON = {"tasks": "tasks", "environments": "environments"}
OF = {"of": "own", "attempts": "attempts"}
ANSWERED = {**OF, "score": "passed:answer_match"}
HAND = {**OF, "score": "outcome"}


@pytest.fixture
def ruin(tmp_path: Path) -> Iterator[Path]:
    """Tasks whose answers are 4 and 5, played with tools; and an agent that has learnt the answer 5 by heart."""
    write_table(tmp_path / "tasks", [[ruin_task(2, 4), ruin_task(2, 5)]], Task)
    write_table(tmp_path / "environments", [[SPEC]], EnvironmentSpec)
    with registered():
        run(tmp_path, "expert", "own", {"actor": model("expert")}, policy="p", scaffold="tools", **ON)
        sayer = {"actor": model("sayer", turns=["5"])}
        manifest = run(tmp_path, "sample", "attempts", sayer, policy="p", tools="none", k=4, **ON)
        assert (manifest.counts.written, manifest.metrics["turns"], manifest.metrics["success"]) == (8, 8, 0)
        run(tmp_path, "answer_match", "answers", of="attempts", tasks="tasks", gold="goal.number")
        yield tmp_path


def test_a_task_whose_answer_is_known_needs_no_tools(ruin: Path) -> None:
    step = job(ruin, "tool_need", "found", verdicts="answers", **ANSWERED)
    manifest = step.run()
    assert step.parameters.notes(manifest) == []
    rows = {row.trajectory_id: row for row in rows_of(ruin / "own")}
    verdicts = {rows[each.trajectory_id].task_id: each for each in rows_of(ruin / "found")}
    needed, known = verdicts["ruin-2-4"], verdicts["ruin-2-5"]
    assert (needed.score, needed.passed, needed.evidence["pass_rate"]) == (1.0, True, 0.0)
    assert (known.score, known.passed, known.evidence["pass_rate"]) == (0.0, False, 1.0)
    assert known.evidence == {"attempts": 4, "unscored": 0, "pass_rate": 1.0, "tool_steps": 3}
    assert {(each.name, each.judge, each.item) for each in verdicts.values()} == {("tool_need", "attempts", None)}
    for label in rows_of(ruin / "found/labels"):
        row = rows[label.trajectory_id]
        assert label.value == ("needed" if row.task_id == "ruin-2-4" else "not_needed")
        assert label.item is None or isinstance(row.content[label.item], ApiAction)
    assert manifest.metrics["labels.needed"] == 1 + 2
    assert manifest.metrics["labels.not_needed"] == 1 + 3
    assert manifest.metrics["attempts_of_others"] == 0


def test_a_view_trains_on_calls_that_are_needed(ruin: Path) -> None:
    run(ruin, "tool_need", "found", verdicts="answers", **ANSWERED)
    needed = [{"label": "tool_need", "equals": "needed"}]
    manifest = run(ruin, "sft", "rows", **{"from": "own", "labels": "found/labels", "steps": needed})
    assert (manifest.counts.used, manifest.counts.dropped) == (1, 1)
    [row] = rows_of(ruin / "rows")
    assert sum(message.train for message in row.messages) == 2
    run(ruin, "filter", "kept", of="own", labels="found/labels", where=needed)
    assert {each.kept for each in rows_of(ruin / "kept")} == {True, False}


def attempt(number: int, status: OutcomeStatus = "success", task_id: str | None = "task1", **fields: Any) -> Trajectory:
    """An answer without tools."""
    content = [instruction(), agent_message("On the floor.")]
    values: dict[str, Any] = {"content": content, "outcome": outcome(status), "task_id": task_id}
    return trajectory(f"attempt{number}", **{**values, **fields})


def needs(folder: Path, attempts: list[Trajectory], **parameters: Any) -> Verdict:
    """The verdict on a trajectory of ``task1``, given attempts at it."""
    write_table(folder / "own", [[tool_trajectory(task_id="task1")]], Trajectory)
    write_table(folder / "attempts", [attempts], Trajectory)
    run(folder, "tool_need", "found", **{**HAND, **parameters})
    [found] = rows_of(folder / "found")
    assert isinstance(found, Verdict)
    return found


@pytest.mark.parametrize(
    ("passes", "n", "parameters", "needed"),
    [
        (1, 4, {}, True),
        (2, 4, {}, False),
        (2, 4, {"pass_rate_at_most": 0.5}, True),
        (0, 4, {"pass_rate_at_most": 0}, True),
        (1, 4, {"pass_rate_at_most": 0}, False),
        # 0.1 ten times is no 1.0 in floating point.
        (3, 10, {"pass_rate_at_most": 0.3}, True),
        (0, 3, {}, None),
        (0, 3, {"min_attempts": 3}, True),
    ],
)
def test_thresholds(passes: int, n: int, parameters: dict[str, Any], needed: bool | None, tmp_path: Path) -> None:
    found = needs(tmp_path, [attempt(i, "success" if i < passes else "failure") for i in range(n)], **parameters)
    assert found.passed is needed
    assert found.evidence["attempts"] == n
    if needed is None:
        assert (found.status, found.reason, found.score) == ("unscored", "too_few_attempts", None)
        assert rows_of(tmp_path / "found/labels") == []
    else:
        assert found.score == pytest.approx(1 - passes / n)
        labels = [(each.item, each.value) for each in rows_of(tmp_path / "found/labels")]
        value = "needed" if needed else "not_needed"
        assert sorted(labels, key=lambda each: each[0] or 0) == [(None, value), (1, value)]


def test_attempts_without_a_score_do_not_count(tmp_path: Path) -> None:
    found = needs(tmp_path, [attempt(0), attempt(1, "unknown"), attempt(2, "unknown")], min_attempts=2)
    assert (found.reason, found.evidence) == ("too_few_attempts", {"attempts": 1, "unscored": 2})
    found = needs(tmp_path / "other", [attempt(0), attempt(1, "unknown")], min_attempts=1)
    assert (found.passed, found.evidence["unscored"]) == (False, 1)


def test_attempts_at_other_tasks_do_not_count(tmp_path: Path) -> None:
    others = [attempt(1, "failure", "task2"), attempt(2, "failure", None)]
    write_table(tmp_path / "own", [[tool_trajectory(task_id="task1"), trajectory("t3", task_id=None)]], Trajectory)
    write_table(tmp_path / "attempts", [[attempt(0), *others]], Trajectory)
    step = job(tmp_path, "tool_need", "found", min_attempts=1, **HAND)
    manifest = step.run()
    verdicts = {each.trajectory_id: each for each in rows_of(tmp_path / "found")}
    assert (verdicts["t2"].passed, verdicts["t3"].reason) == (False, "no_task")
    assert manifest.counts == Counts(read=2, used=2, dropped=0, written=2)
    assert manifest.metrics["attempts_of_others"] == 2
    assert any("2 trajectories of `attempts`" in note for note in step.parameters.notes(manifest))


def test_attempts_with_tools_are_refused(tmp_path: Path) -> None:
    with user_error("attempt-with-tools", "attempt1", "item 1", "tools: none") as caught:
        needs(tmp_path, [attempt(0), attempt(1, content=tool_trajectory().content)])
    assert len(str(caught.value).splitlines()) == 2


def test_the_verdict_that_is_asked_must_be_there(tmp_path: Path) -> None:
    with user_error("needs-another-key", "passed:answer_match", "verdicts"):
        needs(tmp_path, [attempt(0)], score="passed:answer_match")
    write_table(tmp_path / "verdicts", [[verdict("attempt0", name="judge")]], Verdict)
    found = needs(tmp_path, [attempt(0)], score="passed:judge", verdicts="verdicts", min_attempts=1)
    assert found.evidence["pass_rate"] == 1.0


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"min_attempts": 0}, ("invalid-value", "min_attempts")),
        ({"pass_rate_at_most": 1}, ("invalid-value", "pass_rate_at_most")),
        ({"score": None}, ("invalid-value", "score")),
        ({"score": "wins"}, ("rule-broken", "'wins' is no score")),
        ({"branches": "b"}, ("unknown-key", "branches")),
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, Any], words: tuple[str, ...]) -> None:
    with user_error(*words):
        stage("tool_need", **{**HAND, **parameters})
