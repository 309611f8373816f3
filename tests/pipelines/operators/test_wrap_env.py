"""Toolboxes through the stages: from nothing to admitted tasks, wrapped, solved by the expert, and judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.errors import user_error
from tests.pipelines.engine.stages import bytes_of, dropped_of, rows_of
from tests.pipelines.operators.steps import job, model, run

WRAPPERS = {"twins": 2, "hidden": 1, "faults": 0.2, "hints": True}


def synthesize(folder: Path) -> Path:
    run(folder, "spec_env", "proposed_environments", family="toolbox", n=6, held_out=0.3)
    run(folder, "admit", "environments", of="proposed_environments")
    run(folder, "propose", "proposed_tasks", of="environments", n=5)
    run(folder, "evolve", "evolved_tasks", of="proposed_tasks", environments="environments")
    run(folder, "admit", "tasks", of=["proposed_tasks", "evolved_tasks"], environments="environments")
    run(folder, "wrap_env", "wrapped_environments", of="environments", **WRAPPERS)
    run(folder, "wrap_env", "wrapped_tasks", of="tasks", environments="wrapped_environments")
    return folder


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthesize(tmp_path_factory.mktemp("toolboxes"))


def test_tasks_are_admitted_and_no_two_are_alike(worlds: Path) -> None:
    tasks = rows_of(worlds / "tasks")
    assert len(tasks) >= 40
    assert len({task.structure_digest for task in tasks}) == len(tasks)
    assert all(task.gold and task.difficulty and task.admission for task in tasks)


def test_the_expert_solves_wrapped_tasks_and_the_outcome_is_checked_by_replay(worlds: Path) -> None:
    experts = {"actor": model("expert")}
    run(
        worlds,
        "expert",
        "demonstrations",
        experts,
        policy="planner",
        tasks="wrapped_tasks",
        environments="wrapped_environments",
        scaffold="tools",
    )
    run(
        worlds,
        "check_outcome",
        "verdicts",
        of="demonstrations",
        tasks="wrapped_tasks",
        environments="wrapped_environments",
    )
    verdicts = rows_of(worlds / "verdicts")
    assert len(verdicts) == len(rows_of(worlds / "wrapped_tasks")) >= 40
    assert all(verdict.passed for verdict in verdicts)


def test_the_same_seed_gives_the_same_bytes(worlds: Path, tmp_path: Path) -> None:
    synthesize(tmp_path)
    for name in ("environments", "tasks", "wrapped_environments", "wrapped_tasks"):
        assert bytes_of(tmp_path / name) == bytes_of(worlds / name), name


def test_worlds_without_wrappers_are_kept_as_dropped(tmp_path: Path) -> None:
    run(tmp_path, "spec_env", "planning", family="pddl", n=1)
    assert run(tmp_path, "wrap_env", "wrapped", of="planning", twins=1).reasons == {"no_wrapper": 1}
    assert "family pddl have no wrappers" in dropped_of(tmp_path / "wrapped")[0].detail


def test_a_task_whose_world_was_not_wrapped_is_dropped(worlds: Path, tmp_path: Path) -> None:
    for name in ("tasks", "environments"):
        (tmp_path / name).symlink_to(worlds / name)
    run(tmp_path, "spec_env", "strange", family="toolbox", n=1, seed=99)
    run(tmp_path, "wrap_env", "elsewhere", of="strange", hints=True)
    manifest = run(tmp_path, "wrap_env", "wrapped", of="tasks", environments="elsewhere")
    assert manifest.reasons == {"world_error": len(rows_of(tmp_path / "tasks"))}


def test_a_world_that_was_wrapped_twice_leaves_open_which_one_is_meant(worlds: Path, tmp_path: Path) -> None:
    for name in ("tasks", "environments", "wrapped_environments"):
        (tmp_path / name).symlink_to(worlds / name)
    run(tmp_path, "wrap_env", "others", of="environments", hints=True)
    with user_error("records-conflict", "EnvironmentSpec"):
        run(tmp_path, "wrap_env", "wrapped", of="tasks", environments=["wrapped_environments", "others"])


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"of": "environments"}, ("key-not-for-this", "twins: 3")),
        ({"of": "tasks"}, ("needs-another-key", "environments")),
        ({"of": "tasks", "environments": "environments", "twins": 2}, ("needs-another-key", "environments", "tasks")),
    ],
)
def test_what_is_missing_is_said(parameters: dict[str, object], expected: tuple[str, ...], worlds: Path) -> None:
    with user_error(*expected):
        job(worlds, "wrap_env", "wrapped_wrongly", **parameters)
