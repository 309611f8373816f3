"""Toolboxes through the stages: from nothing to admitted tasks, wrapped, solved by the expert, and judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.operators.bounds import Rows
from agentmill.pipelines.operators.splits import chosen
from tests.errors import user_error
from tests.pipelines.cli.tables import COMPARE, agentmill, write_environments, write_recipe
from tests.pipelines.engine.stages import bytes_of, dropped_of, rows_of
from tests.pipelines.operators.steps import job, model, run, stage
from tests.synthesis.environments.examples import WAREHOUSE_SPEC

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


def test_families_without_wrappers_are_refused_unless_others_have_some() -> None:
    step = stage("wrap_env", of="environments", rename="words")
    with user_error("key-not-for-this", "family search have no wrappers", "pddl or toolbox"):
        step.families(frozenset({"search"}))
    assert step.families(frozenset({"search", "pddl"})) == {"search", "pddl"}
    assert step.families(None) is None


def test_environments_and_tasks_of_several_families_are_renamed(worlds: Path, tmp_path: Path) -> None:
    for name in ("tasks", "environments"):
        (tmp_path / f"toolbox_{name}").symlink_to(worlds / name)
    run(tmp_path, "spec_env", "pddl_environments", family="pddl", n=2)
    run(tmp_path, "propose", "pddl_tasks", of="pddl_environments", n=2)
    run(tmp_path, "spec_env", "others", family="codegym", n=1)
    environments, tasks = ["toolbox_environments", "pddl_environments"], ["toolbox_tasks", "pddl_tasks"]
    manifest = run(tmp_path, "wrap_env", "renamed", of=[*environments, "others"], rename="words")
    n = sum(len(rows_of(tmp_path / name)) for name in environments)
    assert (manifest.counts.read, manifest.counts.written, manifest.reasons) == (n + 1, n, {"no_wrapper": 1})
    kept = [spec.lineage.notes["renaming"].get("kept", []) for spec in rows_of(tmp_path / "renamed")]
    assert manifest.metrics["names_kept"] == sum(map(len, kept))
    assert "family codegym" in dropped_of(tmp_path / "renamed")[0].detail
    manifest = run(tmp_path, "wrap_env", "renamed_tasks", of=tasks, environments="renamed")
    made = rows_of(tmp_path / "renamed_tasks")
    assert len(made) == manifest.counts.read == sum(len(rows_of(tmp_path / name)) for name in tasks)
    by_id = {spec.environment_id: spec for spec in rows_of(tmp_path / "renamed")}
    assert {by_id[task.environment_id].family for task in made} == {"pddl", "toolbox"}
    twins = run(tmp_path, "wrap_env", "twins", of=environments, rename="symbols", twins=1)
    assert twins.reasons == {"no_wrapper": 2}
    # The expert acts under either names with the same success: the names are all that differs.
    for suffix, of, where in (("base", tasks, environments), ("other", "renamed_tasks", "renamed")):
        experts = {"actor": model("expert")}
        given = {"policy": "planner", "tasks": of, "environments": where}
        run(tmp_path, "expert", f"played_{suffix}", experts, scaffold="tools", **given)
        run(tmp_path, "check_outcome", f"verdicts_{suffix}", of=f"played_{suffix}", tasks=of, environments=where)
        verdicts = rows_of(tmp_path / f"verdicts_{suffix}")
        assert (len(verdicts), all(verdict.passed for verdict in verdicts)) == (len(made), True)


def test_a_share_of_the_tasks_is_wrapped_and_it_is_the_one_that_an_evaluation_plays(
    worlds: Path, tmp_path: Path
) -> None:
    for name in ("tasks", "wrapped_environments", "wrapped_tasks"):
        (tmp_path / name).symlink_to(worlds / name)
    tasks = rows_of(worlds / "tasks")
    wanted = {task.task_id for task in tasks if chosen(task.task_id, 0.4)}
    given: dict[str, Any] = {"of": "tasks", "environments": "wrapped_environments"}
    manifest = run(tmp_path, "wrap_env", "some", **given, share=0.4)
    some = rows_of(tmp_path / "some")
    assert {task.lineage.parents[0] for task in some} == wanted
    assert 0 < len(wanted) < len(tasks)
    assert (manifest.counts.read, manifest.counts.written) == (len(wanted), len(wanted))
    whole = {task.task_id: task for task in rows_of(worlds / "wrapped_tasks")}
    assert all(whole[task.task_id] == task for task in some)
    bound = stage("wrap_env", **given, share=0.4).bounds({"of": Rows(n=100, splits={"train": 100})}, {}).rows
    assert 40 < (bound.n or 0) < 100
    assert bound.splits == {"train": bound.n}
    with user_error("split-empty", "share: 1e-06"):
        none = job(tmp_path, "wrap_env", "none", **given, share=0.000001)
        none.parameters.check_inputs(none.inputs)
    with user_error("key-not-for-this", "`share` is for tasks", "wraps the tasks"):
        stage("wrap_env", of="environments", rename="words", share=0.5).writes({"of": ["EnvironmentSpec"]})


def test_models_are_evaluated_under_base_and_other_names(tmp_path: Path) -> None:
    write_environments(tmp_path)
    renamed = {"environments": "renamed", "tasks": "renamed_tasks"}
    steps: list[dict[str, Any]] = [
        {"operator": "wrap_env", "of": "environments", "rename": "words", "as": "renamed"},
        {"operator": "wrap_env", "of": "tasks", "environments": "renamed", "as": "renamed_tasks"},
        {**COMPARE, "constrained": []},
        {**COMPARE, "constrained": [], **renamed, "as": "robustness"},
    ]
    assert agentmill("run", write_recipe(tmp_path, *steps)) == 0
    found = {
        name: json.loads((tmp_path / "run" / name / "evaluation.json").read_bytes())["splits"]
        for name in ("evaluation", "robustness")
    }
    rates = {
        name: {(split, model): of[model]["success"] for split, of in splits.items() for model in ("base", "tuned")}
        for name, splits in found.items()
    }
    assert rates["evaluation"] == rates["robustness"]
    assert {(model, rate) for (_, model), rate in rates["robustness"].items()} == {("base", 0.0), ("tuned", 1.0)}


def test_names_that_cannot_be_changed_are_counted(tmp_path: Path) -> None:
    source = WAREHOUSE_SPEC.source.replace("depot", "last")
    seed_table(tmp_path / "environments", [msgspec.structs.replace(WAREHOUSE_SPEC, source=source)])
    assert run(tmp_path, "wrap_env", "renamed", of="environments", rename="words").metrics["names_kept"] == 1
    (spec,) = rows_of(tmp_path / "renamed")
    assert spec.lineage.notes["renaming"]["kept"] == ["last"]


def test_tasks_of_environments_that_were_not_wrapped_are_dropped(worlds: Path, tmp_path: Path) -> None:
    for name in ("tasks", "environments"):
        (tmp_path / name).symlink_to(worlds / name)
    manifest = run(tmp_path, "wrap_env", "wrapped", of="tasks", environments="environments")
    assert manifest.reasons == {"world_error": len(rows_of(tmp_path / "tasks"))}
    assert "no wrapped environment" in dropped_of(tmp_path / "wrapped")[0].detail


def test_renaming_again_with_another_seed_gives_another_table(worlds: Path, tmp_path: Path) -> None:
    (tmp_path / "environments").symlink_to(worlds / "environments")
    for name, seed in (("one", 1), ("two", 2), ("same", 1)):
        run(tmp_path, "wrap_env", name, of="environments", rename="words", seed=seed)
    sources = {name: [spec.source for spec in rows_of(tmp_path / name)] for name in ("one", "two", "same")}
    assert sources["one"] == sources["same"]
    assert not {*sources["one"]} & {*sources["two"]}


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
        ({"of": "tasks", "environments": "environments", "rename": "words"}, ("needs-another-key", "environments")),
        ({"of": "environments", "rename": "word"}, ("invalid-value", "rename", "'word'", "words")),
        ({"of": "environments", "rename": "symbols", "names": "action"}, ("invalid-value", "names", "actions")),
        ({"of": "environments", "hints": True, "names": "actions"}, ("rule-broken", "names", "rename: words")),
    ],
)
def test_what_is_missing_is_said(parameters: dict[str, object], expected: tuple[str, ...], worlds: Path) -> None:
    with user_error(*expected):
        job(worlds, "wrap_env", "wrapped_wrongly", **parameters)
