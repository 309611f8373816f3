"""Selections in a report: kept and left out with reasons, by environment, difficulty and outcome."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentmill.pipelines.report.page import write_report
from agentmill.pipelines.report.selections import UNKNOWN, group_rows, selections_section
from agentmill.pipelines.runs.run import read_run
from agentmill.schemas.records.task import Difficulty
from agentmill.schemas.records.verdict import Selection, TaskSelection
from tests.builders import spec, task
from tests.pipelines.report.example_run import run_of, write_recipe, write_table

STEPS = [
    {"operator": "dedup", "of": "explored", "as": "unique"},
    {"operator": "pick", "of": "explored", "selections": "unique", "as": "picked"},
]
REASONS = {"a1": None, "a2": "duplicate: equal to a1", "a3": "duplicate: equal to a1", "b1": None, "gone": "not_first"}


def selection(trajectory_id: str, reason: str | None, item: int | None = None) -> Selection:
    return Selection(trajectory_id=trajectory_id, name="unique", kept=reason is None, reason=reason, item=item)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run that selects among trajectories that were made elsewhere."""
    write_table(tmp_path / "elsewhere/worlds", [spec("env1", name="boxes"), spec("env2", name="locks")])
    levels = {"a1": 0.1, "a2": 0.19, "a3": 1.0}
    write_table(
        tmp_path / "elsewhere/tasks", [task(name, difficulty=Difficulty(level=n)) for name, n in levels.items()]
    )
    runs = [run_of("a1", True, 1), run_of("a2", False, 1), run_of("a3", False, 1), run_of("b1", True, 1, "env2")]
    write_table(tmp_path / "elsewhere/explored", runs)
    data = {name: str(tmp_path / "elsewhere" / name) for name in ("explored", "tasks", "worlds")}
    root = write_recipe(tmp_path / "run", STEPS, data=data)
    rows = [selection(name, reason) for name, reason in REASONS.items()]
    metrics = {"kept": 2, "left_out.duplicate": 2, "left_out.not_first": 1}
    write_table(root / "unique", rows, **metrics)
    return root


def test_each_selection_has_its_counts_and_reasons(folder: Path) -> None:
    (selections, groups) = selections_section(read_run(folder)).sheets
    assert selections.rows == [["unique", "dedup", 5, 2, 3, "duplicate 2, not_first 1"]]
    assert len(groups.rows) == 3 + 3 + 3


def test_environments_that_were_made_elsewhere_have_their_names_in_all_sections(tmp_path: Path) -> None:
    write_table(tmp_path / "elsewhere/worlds", [spec("env1", name="boxes")])
    steps = [{"operator": "expert", "policy": "p", "tasks": "worlds", "environments": "worlds", "as": "explored"}]
    root = write_recipe(tmp_path / "run", steps, data={"worlds": str(tmp_path / "elsewhere/worlds")})
    write_table(root / "explored", [run_of("a1", True, 1)])
    write_report(root, tmp_path / "page.html")
    assert "boxes (pddl) env1" in (tmp_path / "page.html").read_text("utf-8")


def test_selections_by_environment_difficulty_and_outcome(folder: Path) -> None:
    found = {(row[1], row[2]): row[3:] for row in group_rows(read_run(folder))}
    assert found == {
        ("environment", "boxes (pddl) env1"): [3, 1, "33.3 %", "duplicate 2"],
        ("environment", "locks (pddl) env2"): [1, 1, "100.0 %", ""],
        ("environment", "all others"): [1, 0, "0.0 %", "not_first 1"],
        ("difficulty", "0.0 to 0.2"): [2, 1, "50.0 %", "duplicate 1"],
        ("difficulty", "0.8 to 1.0"): [1, 0, "0.0 %", "duplicate 1"],
        ("difficulty", UNKNOWN): [2, 1, "50.0 %", "not_first 1"],
        ("outcome", "failure"): [2, 0, "0.0 %", "duplicate 2"],
        ("outcome", "success"): [2, 2, "100.0 %", ""],
        ("outcome", UNKNOWN): [1, 0, "0.0 %", "not_first 1"],
    }


def test_trajectories_that_are_not_there_any_more_are_unknown(folder: Path) -> None:
    for name in ("explored", "tasks", "worlds"):
        (folder.parent / "elsewhere" / name / "manifest.json").unlink()
    found = {(row[1], row[2]): row[3:5] for row in group_rows(read_run(folder))}
    assert found == {(group, UNKNOWN): [5, 2] for group in ("environment", "difficulty", "outcome")}


def test_selections_of_steps_are_not_counted_as_trajectories(folder: Path) -> None:
    write_table(folder / "picked", [selection("a1", None), selection("a1", "not_first", item=3)], kept=1)
    rows = [row for row in group_rows(read_run(folder)) if row[0] == "picked"]
    assert [row[3] for row in rows] == [1, 1, 1]


def test_selections_of_tasks_by_environment_and_difficulty(folder: Path) -> None:
    reasons = {"a1": None, "a2": "too_easy", "a3": "too_hard", "gone": "too_easy"}
    rows = [
        TaskSelection(task_id=name, name="band", kept=reason is None, reason=reason) for name, reason in reasons.items()
    ]
    write_table(folder / "picked", rows, kept=1, **{"left_out.too_easy": 2, "left_out.too_hard": 1})
    found = {(row[1], row[2]): row[3:] for row in group_rows(read_run(folder)) if row[0] == "picked"}
    assert found == {
        ("environment", "boxes (pddl) env1"): [3, 1, "33.3 %", "too_easy 1, too_hard 1"],
        ("environment", "all others"): [1, 0, "0.0 %", "too_easy 1"],
        ("difficulty", "0.0 to 0.2"): [2, 1, "50.0 %", "too_easy 1"],
        ("difficulty", "0.8 to 1.0"): [1, 0, "0.0 %", "too_hard 1"],
        ("difficulty", UNKNOWN): [1, 0, "0.0 %", "too_easy 1"],
    }
    (selections, _) = selections_section(read_run(folder)).sheets
    assert selections.rows[1] == ["picked", "pick", 4, 1, 3, "too_easy 2, too_hard 1"]


def test_the_page_shows_them(folder: Path) -> None:
    write_report(folder, folder.parent / "report.html")
    page = (folder.parent / "report.html").read_text("utf-8")
    assert "Trajectories and tasks that selections keep" in page
    assert "duplicate 2, not_first 1" in page


def test_a_run_without_selections_says_so(tmp_path: Path) -> None:
    root = write_recipe(tmp_path / "run", STEPS, data={"explored": "nowhere"})
    section = selections_section(read_run(root))
    assert section.words == ["This run selects no trajectories and no tasks."]
    assert not section.sheets
