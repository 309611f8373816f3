"""``diagnose``: success and failures by skill, difficulty and environment, and the tasks with a weak skill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.diagnosis import diagnosis_rows, group_lines, groups_of
from agentmill.pipelines.evaluation import wilson
from agentmill.pipelines.operators import diagnose as module
from agentmill.pipelines.report.page import write_report
from agentmill.schemas.config import dump_yaml
from agentmill.schemas.records.task import Difficulty, EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Outcome, Trajectory
from agentmill.schemas.records.verdict import TaskSelection, Verdict
from agentmill.schemas.tables import Counts, Manifest
from tests.builders import agent_message, called, instruction, outcome, seen, spec, task, trajectory, verdict
from tests.errors import user_error
from tests.pipelines.cli.tables import agentmill
from tests.pipelines.engine.stages import rows_of, write_table
from tests.pipelines.operators.steps import run, stage

SKILLS = {"a": ["stack"], "b": ["stack", "pick"], "c": ["pick"], "d": []}
WINS = {"a": 0, "b": 2, "c": 4, "d": 4}
"""Of four attempts at each task."""


def attempts() -> list[Trajectory]:
    return [
        trajectory(
            f"{name}{number}",
            task_id=name,
            environment_id="env1",
            attempt=number,
            outcome=outcome("success" if number < wins else "failure"),
            content=[instruction(), agent_message("go", 1), seen("No.", 1, error=number % 2 == 1)],
        )
        for name, wins in WINS.items()
        for number in range(4)
    ]


@pytest.fixture
def tried(tmp_path: Path) -> Path:
    tasks = [
        task(name, environment_id="env1", skills=skills, difficulty=Difficulty(level=0.25 * place))
        for place, (name, skills) in enumerate(SKILLS.items())
    ]
    write_table(tmp_path / "tasks", [tasks[:2], tasks[2:]], Task)
    write_table(tmp_path / "tried", [attempts()], Trajectory)
    return tmp_path


def diagnose(folder: Path, name: str = "weak", **parameters: Any) -> Manifest:
    return run(folder, "diagnose", name, **{"of": "tasks", "attempts": "tried", **parameters})


def found(folder: Path, name: str = "weak") -> dict[str, tuple[bool, str | None, float | None]]:
    return {each.task_id: (each.kept, each.reason, each.score) for each in rows_of(folder / name)}


def test_success_and_rates_by_skill_and_the_tasks_with_a_weak_one(tried: Path) -> None:
    manifest = diagnose(tried, by=["skills"])
    stack, pick = sorted(groups_of(manifest.metrics), key=lambda each: each.success)
    assert (stack.value, stack.attempts, stack.success, stack.ci95) == ("stack", 8, 0.25, wilson(2, 8))
    assert (pick.value, pick.attempts, pick.success, pick.invalid_rate) == ("pick", 8, 0.75, 0.5)
    assert manifest.counts == Counts(read=4, used=4, dropped=0, written=4)
    assert found(tried) == {
        "a": (True, "weak: skills stack", 0.25),
        "b": (True, "weak: skills stack", 0.25),
        "c": (False, "not_weak", 0.75),
        "d": (False, "not_measured", None),
    }
    [line] = stage("diagnose", of="t", attempts="x", by=["skills"]).notes(manifest)
    assert line == "weak at skills stack: 25.0 % [7.1, 59.1] of 8"
    diagnose(tried, "strict", by=["skills"], min_attempts=9)
    assert not any(kept for kept, _, _ in found(tried, "strict").values())
    diagnose(tried, "easy", by=["skills"], weak=0.2)
    assert not any(kept for kept, _, _ in found(tried, "easy").values())


def test_difficulty_is_in_fifths_and_environments_have_families(tried: Path) -> None:
    write_table(tried / "environments", [[spec("env1", family="pddl")]], EnvironmentSpec)
    by = ["difficulty", "environment.family", "environment_id"]
    groups = groups_of(diagnose(tried, environments="environments", by=by).metrics)
    values = {(each.by, each.value): each.attempts for each in groups}
    assert values == {
        ("difficulty", "0.0 to 0.2"): 4,
        ("difficulty", "0.2 to 0.4"): 4,
        ("difficulty", "0.4 to 0.6"): 4,
        ("difficulty", "0.6 to 0.8"): 4,
        ("environment.family", "pddl"): 16,
        ("environment_id", "env1"): 16,
    }


def test_failures_are_named_by_verdicts_and_counts(tried: Path) -> None:
    failing = trajectory(
        "x",
        task_id="a",
        content=[instruction(), called("fetch", 1), seen("No.", 1, error=True)],
        outcome=Outcome(status="failure", truncated=True, reason="max_turns"),
    )
    write_table(tried / "tried", [[failing]], Trajectory)
    verdicts = [
        verdict("x", passed=False, name="rules", evidence={"violated": ["legal", "short"]}),
        verdict("x", passed=False, name="rules/legal"),
        verdict("x", passed=False, name="first_error", evidence={"item": 1}),
        verdict("x", passed=False, name="judge", reason="free words: too many"),
        verdict("x", passed=False, name="answer", reason="wrong"),
        verdict("x", passed=None, score=9.5, name="scorer"),
        verdict("x", passed=None, score=None, status="unscored", name="other", reason="cut_off"),
        verdict("x", passed=None, score=None, status="error", name="replay", reason="state_differs"),
    ]
    write_table(tried / "verdicts", [verdicts], Verdict)
    run(tried, "quality", "counts", of="tried")
    manifest = diagnose(tried, by=["skills"], verdicts="verdicts", quality="counts", score="passed:answer")
    [group] = groups_of(manifest.metrics)
    kinds = (
        *("answer wrong", "first_error at fetch", "judge", "outcome max_turns"),
        *("replay state_differs", "rules/legal", "rules/short"),
    )
    assert group.failures == dict.fromkeys(kinds, 1)
    assert (group.share("truncated"), group.share("looped"), group.invalid_rate) == (1.0, 0.0, 1.0)
    assert "rules/legal 1" in str(diagnosis_rows("weak", manifest)[0][-1])


def test_attempts_without_a_score_and_of_others_are_counted(tried: Path) -> None:
    more = [*attempts(), trajectory("u", task_id="a", outcome=Outcome()), trajectory("z", task_id="elsewhere")]
    write_table(tried / "tried", [more], Trajectory)
    manifest = diagnose(tried, by=["skills"])
    assert (manifest.metrics["attempts_unscored"], manifest.metrics["attempts_of_other_tasks"]) == (1, 1)
    assert len([each for each in stage("diagnose", of="t", attempts="x").notes(manifest) if "warning" in each]) == 2
    assert sum(each.attempts for each in groups_of(manifest.metrics)) == 16


def test_selections_leave_tasks_out_of_all_groups(tried: Path) -> None:
    kept = [TaskSelection(task_id=name, name="s", kept=name != "a", reason=None) for name in SKILLS]
    write_table(tried / "chosen", [kept], TaskSelection)
    manifest = diagnose(tried, by=["skills"], selections="chosen")
    assert {each.value: each.success for each in groups_of(manifest.metrics)} == {"stack": 0.5, "pick": 0.75}
    assert found(tried)["a"][:2] == (False, "not_selected")


def test_rare_values_are_counted_together(tried: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_VALUES", 1)
    groups = groups_of(diagnose(tried, by=["skills"]).metrics)
    assert {each.value: each.attempts for each in groups} == {"pick": 8, "(others)": 8}


def test_the_summary_and_the_report_show_it(tried: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = {name: str(tried / name) for name in ("tasks", "tried")}
    steps = [{"diagnose": "weak", "of": "tasks", "attempts": "tried"}]
    recipe = tried / "recipe.yaml"
    recipe.write_text(dump_yaml({"name": "d", "run_dir": str(tried / "run"), "data": data, "steps": steps}))
    assert agentmill("run", recipe) == 0
    assert "weak: weak at skills stack: 25.0 % [7.1, 59.1] of 8" in capsys.readouterr().out
    write_report(tried / "run", tried / "page.html")
    page = (tried / "page.html").read_text(encoding="utf-8")
    assert "Diagnoses" in page
    assert "[7.1, 59.1]" in page


@pytest.mark.parametrize(
    ("given", "reads", "message"),
    [
        ({"score": "reward"}, {}, ("rule-broken", "`score: reward` is no success")),
        ({"by": ["skills", "skills"]}, {}, ("rule-broken", "twice")),
        ({"by": ["skill"]}, {}, ("field-missing", "skill")),
        ({"by": ["trajectory.split"]}, {}, ("key-not-for-this", "trajectory.split")),
        ({"by": ["environment.family"]}, {}, ("needs-another-key", "`environments`")),
        ({"environments": "e"}, {"environments": ["EnvironmentSpec"]}, ("key-not-for-this", "`environments`")),
        ({"selections": "s"}, {"selections": ["Selection"]}, ("wrong-record-type", "selections of tasks")),
        ({"score": "passed:judge"}, {}, ("needs-another-key", "verdicts")),
    ],
)
def test_mistakes(given: dict[str, Any], reads: dict[str, list[str]], message: tuple[str, str]) -> None:
    with user_error(*message):
        stage("diagnose", of="t", attempts="x", **given).writes({"of": ["Task"], "attempts": ["Trajectory"], **reads})


def test_success_by_group_is_some_groups_a_line() -> None:
    groups = {str(n): {"success": 0.5, "ci95": [0.25, 0.75], "n": 1000 + n} for n in range(5)}
    first, second = group_lines({"train": {"base": {"success": 0.5, "by": {"difficulty.plan_length": groups}}}})
    assert first.startswith("train, base, tasks by difficulty.plan_length: 0: 50.0 % [25.0, 75.0] of 1,000; 1: ")
    assert second == "train, base, tasks by difficulty.plan_length: 4: 50.0 % [25.0, 75.0] of 1,004"
    long = {f"{n}" * 200: groups[f"{n}"] for n in range(3)}
    lines = group_lines({"train": {"base": {"by": {"environment_id": long}}}})
    assert [line.count(" % [") for line in lines] == [1, 1, 1]
