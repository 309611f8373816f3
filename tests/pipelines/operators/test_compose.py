"""Several tasks as one: composed, admitted and solved by the expert, in the split of their parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.operators.bounds import Rows
from agentmill.pipelines.operators.compose import Compose
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.verdict import TaskSelection
from agentmill.synthesis.environments.search.examples import ARTICLES
from agentmill.synthesis.environments.search.index import open_index
from tests.builders import spec
from tests.errors import user_error
from tests.pipelines.engine.stages import bytes_of, dropped_of, rows_of, write_table
from tests.pipelines.operators.steps import SEED, job, model, run, stage
from tests.pipelines.recipes.test_plan import plan_of

OF: dict[str, Any] = {"of": "tasks", "environments": "environments"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Toolboxes and their tasks, one environment and some tasks held out."""
    folder = tmp_path_factory.mktemp("toolboxes")
    run(folder, "spec_env", "environments", family="toolbox", n=2, held_out=0.5)
    run(folder, "propose", "proposed", of="environments", n=8, plan_length=(2, 5), held_out=0.3)
    run(folder, "admit", "tasks", of="proposed", environments="environments")
    return folder


def tasks_of(folder: Path) -> list[Task]:
    return [row for row in rows_of(folder) if isinstance(row, Task)]


def test_composed_tasks_are_admitted_and_solved_by_the_expert(made: Path) -> None:
    given = {**OF, "how": ["sequence", "reorder"], "parts": [2, 3], "n": 6}
    manifest = run(made, "compose", "composed", **given)
    assert (manifest.counts.read, manifest.counts.written) == (12, 12)
    parts = {task.task_id: task for task in tasks_of(made / "tasks")}
    for task in tasks_of(made / "composed"):
        assert task.lineage is not None
        assert {parts[each].split for each in task.lineage.parents} == {task.split}
        assert {parts[each].environment_id for each in task.lineage.parents} == {task.environment_id}
    assert run(made, "admit", "kept", of="composed", environments="environments").counts.written == 12
    run(made, "expert", "played", {"actor": model()}, policy="p", tasks="kept", environments="environments")
    assert {each.outcome.status for each in rows_of(made / "played")} == {"success"}
    again = job(made, "compose", "composed", **given).finished()
    assert again == manifest


def test_planning_tasks_are_chained(tmp_path: Path) -> None:
    run(tmp_path, "spec_env", "environments", family="pddl", n=1)
    run(tmp_path, "propose", "tasks", of="environments", n=4, plan_length=(2, 3))
    run(tmp_path, "compose", "composed", **OF, how="sequence", n=2)
    assert run(tmp_path, "admit", "kept", of="composed", environments="environments").counts.written == 2
    run(tmp_path, "expert", "played", {"actor": model()}, policy="p", tasks="kept", environments="environments")
    assert {each.outcome.status for each in rows_of(tmp_path / "played")} == {"success"}


def test_the_order_of_tables_does_not_matter_and_the_seed_does(made: Path, tmp_path: Path) -> None:
    (tmp_path / "environments").symlink_to(made / "environments")
    rows = rows_of(made / "tasks")
    write_table(tmp_path / "first", [rows[::2]], Task)
    write_table(tmp_path / "second", [rows[1::2][:3], rows[1::2][3:]], Task)
    given = {"environments": "environments", "how": "sequence", "n": 3}
    run(tmp_path, "compose", "one", of=["first", "second"], **given)
    run(tmp_path, "compose", "two", of=["second", "first"], **given)
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "two")
    run(tmp_path, "compose", "three", of=["first", "second"], **given, seed=SEED + 1)
    ids = [{task.task_id for task in tasks_of(tmp_path / name)} for name in ("one", "three")]
    assert ids[0] != ids[1]


def test_selections_choose_the_parts(made: Path, tmp_path: Path) -> None:
    for name in ("environments", "tasks"):
        (tmp_path / name).symlink_to(made / name)
    tasks = sorted(tasks_of(made / "tasks"), key=lambda task: (task.environment_id, str(task.split), task.task_id))
    kept = {task.task_id for task in tasks if task.environment_id == tasks[0].environment_id}
    selected = [TaskSelection(task_id=each.task_id, name="band", kept=each.task_id in kept) for each in tasks]
    write_table(tmp_path / "chosen", [selected], TaskSelection)
    manifest = run(tmp_path, "compose", "composed", **OF, how="sequence", n=2, selections="chosen")
    assert {task.environment_id for task in tasks_of(tmp_path / "composed")} == {tasks[0].environment_id}
    assert manifest.metrics["tasks_not_selected"] == len(tasks) - len(kept)
    assert manifest.reasons == {"too_few_tasks": 2}


def test_what_cannot_be_composed_is_dropped_counted_and_noted(made: Path, tmp_path: Path) -> None:
    (environment, *_), tasks = rows_of(made / "environments"), tasks_of(made / "tasks")
    own = [task for task in tasks if task.environment_id == environment.environment_id]
    pair = [task for task in own if task.split == own[0].split][:2]
    others = [task for task in tasks if task.environment_id != environment.environment_id][:3]
    write_table(tmp_path / "tasks", [[*pair, *others]], Task)
    write_table(tmp_path / "environments", [[environment]], EnvironmentSpec)
    step = job(tmp_path, "compose", "composed", **OF, how="sequence", n=5, tries=3)
    manifest = step.run()
    assert manifest.counts.written <= 2
    assert {each.reason for each in dropped_of(tmp_path / "composed")} == {"too_few_tasks"}
    assert manifest.metrics["tasks_of_other_environments"] == 3
    assert sum(n for name, n in manifest.metrics.items() if name.startswith("refused.")) >= 18
    first, second = step.parameters.notes(manifest)
    assert f"{manifest.counts.dropped} tasks cannot be composed" in first
    assert "repeated" in first
    assert "3 tasks are of environments that are not named" in second


def test_an_environment_of_another_family_is_dropped_among_others(made: Path, tmp_path: Path) -> None:
    environments = rows_of(made / "environments")
    (tmp_path / "tasks").symlink_to(made / "tasks")
    write_table(tmp_path / "environments", [[environments[0], spec("plan")]], EnvironmentSpec)
    manifest = run(tmp_path, "compose", "composed", **OF, how=["recombine", "reorder"], n=1)
    assert manifest.reasons == {"family_not_composed": 1}


def test_families_are_refused_while_a_recipe_is_planned(tmp_path: Path) -> None:
    def planned(family: str, **compose: Any) -> None:
        made: dict[str, Any] = {"spec_env": "environments", "family": family}
        made |= {"corpus": str(ARTICLES)} if family == "search" else {}
        tasks = {"corpus_tasks" if family == "search" else "propose": "tasks", "of": "environments"}
        plan_of(tmp_path, [made, tasks, {"compose": "composed", **OF, **compose}])

    planned("pddl", how="sequence")
    planned("search", how=["width", "depth"])
    with user_error(
        "key-not-for-this", "`how: width` composes no tasks of family pddl, only of search", "`how: sequence`"
    ):
        planned("pddl", how=["sequence", "width"])
    with user_error("key-not-for-this", "family interpreter, only of pddl, toolbox", "name other environments"):
        planned("interpreter", how="sequence")


def test_families_and_tasks_are_looked_at_before_the_step(made: Path, tmp_path: Path) -> None:
    step = job(made, "compose", "c", **OF, how="depth")
    with user_error("key-not-for-this", "`how: depth` composes no tasks of family toolbox", "recombine"):
        step.parameters.check_inputs(step.inputs)
    (tmp_path / "tasks").symlink_to(made / "tasks")
    seed_table(tmp_path / "environments", [spec("elsewhere")])
    step = job(tmp_path, "compose", "c", **OF, how="sequence")
    with user_error("tasks-of-others", "none of the", "name the environments"):
        step.parameters.check_inputs(step.inputs)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"parts": 1}, "no range of 2 to 4 parts"),
        ({"parts": [3, 2]}, "no range of 2 to 4 parts"),
        ({"parts": [2, 5]}, "no range of 2 to 4 parts"),
        ({"how": ["depth", "depth"]}, "names one twice"),
    ],
)
def test_parameters_that_are_out_of_range(parameters: dict[str, Any], words: str) -> None:
    with user_error("rule-broken", words):
        stage("compose", **{**OF, "how": "sequence", **parameters})


def test_bounds_hold_all_splits_of_the_parts(made: Path) -> None:
    step = stage("compose", **OF, how="sequence", parts=3, n=5)
    assert isinstance(step, Compose)
    assert step.parts == (3, 3)
    splits = {"train": 4, "held_out_tasks": 2, "held_out_environments": 2}
    environments = Rows(n=3, splits={"train": 2, "held_out": 1})
    rows = step.bounds({"of": Rows(n=8, splits=splits, plan=6, turns=18), "environments": environments}, {}).rows
    assert rows.splits == {"train": 10, "held_out_tasks": 10, "held_out_environments": 5}
    assert (rows.n, rows.plan, rows.turns) == (15, 28, 62)
    assert step.bounds({"of": Rows(), "environments": Rows()}, {}).rows == Rows()


def test_search_tasks_are_composed_of_what_is_selected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTMILL_CACHE", str(tmp_path / "cache"))
    open_index.cache_clear()
    run(tmp_path, "spec_env", "environments", family="search", corpus="invented:40")
    run(tmp_path, "corpus_tasks", "tasks", of="environments", n=20)
    run(tmp_path, "compose", "composed", **OF, how="width", n=4, parts=4)
    run(tmp_path, "expert", "played", {"actor": model()}, policy="p", tasks="composed", environments="environments")
    assert {each.outcome.status for each in rows_of(tmp_path / "played")} == {"success"}
    assert {len(msgspec.to_builtins(task)["lineage"]["parents"]) for task in tasks_of(tmp_path / "composed")} == {4}
