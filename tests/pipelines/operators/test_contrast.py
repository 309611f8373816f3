"""``contrast`` through the stages: twins by kind, played by the expert, chosen by conditions, and evaluated by kind."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.operators.bounds import Rows
from agentmill.pipelines.operators.contrast import OF_KIND
from agentmill.synthesis.generators.contrasting import KINDS
from tests.errors import user_error
from tests.pipelines.cli.tables import agentmill, write_recipe
from tests.pipelines.engine.stages import bytes_of, dropped_of, rows_of
from tests.pipelines.operators.steps import job, model, run, stage
from tests.synthesis.environments.examples import WAREHOUSE_SPEC
from tests.synthesis.environments.toolbox.boxes import LIBRARY_SPEC, LIBRARY_TASK

N = 12
TASKS = [
    msgspec.structs.replace(LIBRARY_TASK, task_id=f"task{n:02}", split="train" if n % 3 else "held_out_tasks")
    for n in range(N)
]
TWINS = {"of": "tasks", "environments": "twin_environments"}


def write_inputs(folder: Path) -> None:
    seed_table(folder / "environments", [LIBRARY_SPEC])
    seed_table(folder / "tasks", TASKS)
    run(folder, "contrast", "twin_environments", of="environments")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("contrast")
    write_inputs(made)
    run(made, "contrast", "twins", **TWINS)
    return made


def test_each_task_has_a_twin_of_each_kind_and_they_are_counted(folder: Path) -> None:
    manifest = run(folder, "contrast", "again", **TWINS)
    assert (manifest.counts.read, manifest.counts.written) == (N * len(KINDS), N * len(KINDS))
    assert {name: n for name, n in manifest.metrics.items() if name.startswith(OF_KIND)} == {
        f"{OF_KIND}{kind}": N for kind in KINDS
    }
    assert stage("contrast", **TWINS, kinds=["silent", "harmful"]).notes(manifest) == ["silent 12, harmful 12"]
    splits = {task.task_id: task.split for task in TASKS}
    assert all(twin.split == splits[twin.lineage.parents[0]] for twin in rows_of(folder / "again"))
    assert bytes_of(folder / "again") == bytes_of(folder / "twins")
    assert len(rows_of(folder / "twin_environments")) == 3


def test_the_expert_plays_the_right_behaviour_and_conditions_choose_the_kind(folder: Path) -> None:
    acting = {"policy": "planner", "tasks": "twins", "environments": "twin_environments", "scaffold": "tools"}
    run(folder, "expert", "played", {"actor": model("expert")}, **acting)
    run(folder, "check_outcome", "verdicts", of="played", tasks="twins", environments="twin_environments")
    assert [verdict.passed for verdict in rows_of(folder / "verdicts")] == [True] * N * len(KINDS)
    assert Counter(each.extra["contrast"] for each in rows_of(folder / "played")) == dict.fromkeys(KINDS, N)
    where = [{"verdict": "check_outcome", "passed": True}, {"field": "extra.contrast", "equals": "harmful"}]
    run(folder, "filter", "harmful", of="played", verdicts="verdicts", where=where)
    run(folder, "sft", "rows", **{"from": "played", "selections": "harmful"})
    chosen = {row.trajectory_id for row in rows_of(folder / "rows")}
    assert chosen == {each.trajectory_id for each in rows_of(folder / "played") if each.extra["contrast"] == "harmful"}
    quota = [{"by": "task.skills", "at_most": 4}]
    run(folder, "sft", "all_rows", **{"from": "played"})
    run(folder, "mix", "mixed", **{"from": "all_rows", "tasks": "twins", "quotas": quota})
    kinds = {twin.task_id: twin.lineage.notes["contrast"] for twin in rows_of(folder / "twins")}
    tasks = {each.trajectory_id: each.task_id for each in rows_of(folder / "played")}
    mixed = Counter(kinds[tasks[row.trajectory_id]] for row in rows_of(folder / "mixed"))
    assert mixed == dict.fromkeys(KINDS, 4)


def test_share_and_n_say_how_many_and_the_seed_which(folder: Path) -> None:
    run(folder, "contrast", "few", **TWINS, share=0.5)
    parents = Counter(twin.lineage.parents[0] for twin in rows_of(folder / "few"))
    assert 0 < len(parents) < N
    assert set(parents.values()) == {len(KINDS)}
    kinds = {}
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        run(folder, "contrast", name, **TWINS, n=1, seed=seed)
        kinds[name] = [(twin.lineage.parents[0], twin.lineage.notes["contrast"]) for twin in rows_of(folder / name)]
        assert len({parent for parent, _ in kinds[name]}) == len(kinds[name]) == N
    assert kinds["one"] == kinds["same"]
    assert sorted(kinds["one"]) != sorted(kinds["other"])


def test_tasks_without_an_environment_or_a_twin_are_dropped_with_the_reason(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "twin_environments").symlink_to(folder / "twin_environments")
    bare = msgspec.structs.replace(LIBRARY_TASK, task_id="bare", initial_state={})
    elsewhere = msgspec.structs.replace(LIBRARY_TASK, task_id="elsewhere", environment_id="other")
    seed_table(tmp_path / "tasks", [bare, elsewhere])
    manifest = run(tmp_path, "contrast", "twins", **TWINS, kinds=["missing_argument", "silent"])
    assert manifest.reasons == {"no_gap": 1, "no_environment": 2}
    assert manifest.counts.read == manifest.counts.used + manifest.counts.dropped == 4
    assert "'other'" in next(each.detail for each in dropped_of(tmp_path / "twins") if "elsewhere" in each.input_id)
    notes = stage("contrast", **TWINS, kinds=["missing_argument", "silent"]).notes(manifest)
    assert notes == ["missing_argument 0, silent 1", "warning: there is no twin of kind missing_argument"]


def test_models_are_evaluated_by_kind(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    run(tmp_path, "contrast", "twins", **TWINS)
    step: dict[str, Any] = {
        "operator": "evaluate",
        "models": {"base": "planner", "tuned": "planner"},
        "tasks": "twins",
        "environments": "twin_environments",
        "splits": ["held_out_tasks"],
        "by": ["skills", "environment_id"],
        "scaffold": "tools",
        "as": "evaluation",
    }
    data = {name: str(tmp_path / name) for name in ("twins", "twin_environments")}
    assert agentmill("run", write_recipe(tmp_path, step, data=data, models={"planner": {"policy": "expert"}})) == 0
    found = json.loads((tmp_path / "run/evaluation/evaluation.json").read_bytes())
    assert found["by"] == ["skills", "environment_id"]
    tuned = found["splits"]["held_out_tasks"]["tuned"]
    rates = {value: (each["n"], each["success"]) for value, each in tuned["by"]["skills"].items()}
    assert rates == dict.fromkeys(KINDS, (4, 1.0))
    assert sorted(each["n"] for each in tuned["by"]["environment_id"].values()) == [4, 4, 16]
    notes = json.loads((tmp_path / "run/summary.json").read_bytes())["stages"]["evaluation"]["notes"]
    assert any(note.startswith("held_out_tasks, tuned, tasks by skills: harmful: 100") for note in notes)


def test_bounds_are_never_below(folder: Path) -> None:
    read = Rows(n=N, splits={"train": 8, "held_out_tasks": 4}, turns=30, plan=7)
    found = stage("contrast", **TWINS).bounds({"of": read}, {})
    assert found.rows == Rows(n=72, splits={"train": 48, "held_out_tasks": 24}, turns=32, plan=8)
    twins = rows_of(folder / "twins")
    assert max(len(twin.gold) for twin in twins) == 8
    assert max(twin.max_turns for twin in twins) == 32
    assert stage("contrast", **TWINS, n=2).bounds({"of": read}, {}).rows.n == 24
    assert stage("contrast", of="e", kinds=["silent", "no_tool", "harmful"]).bounds({"of": Rows(n=5)}, {}).rows.n == 10


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"of": "tasks"}, ("needs-another-key", "environments")),
        ({"of": "environments", "share": 0.5}, ("key-not-for-this", "`share`")),
        ({"of": "environments", "n": 1}, ("key-not-for-this", "`n`")),
        ({**TWINS, "kinds": ["silent"], "n": 2}, ("rule-broken", "n: 2", "1 `kinds`")),
        ({**TWINS, "kinds": ["silent", "silent"]}, ("rule-broken", "twice")),
        ({**TWINS, "kinds": ["quiet"]}, ("invalid-value", "kinds", "'quiet'", "silent")),
        ({"of": "planning"}, ("key-not-for-this", "family pddl", "toolbox")),
        ({**TWINS, "environments": "environments"}, ("no-records", "environments", "no_tool")),
        ({**TWINS, "share": 0.000001}, ("split-empty", "share: 1e-06")),
    ],
)
def test_mistakes_are_refused_in_two_lines(parameters: dict[str, Any], expected: tuple[str, ...], folder: Path) -> None:
    if not (folder / "planning").exists():
        seed_table(folder / "planning", [WAREHOUSE_SPEC])
    with user_error(*expected):
        step = job(folder, "contrast", "wrong", **parameters)
        step.parameters.check_inputs(step.inputs)
    assert not (folder / "wrong").exists()
