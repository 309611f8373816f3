"""Selections of tasks: which of them rollouts play, and which trajectories other steps take."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.operators.rollout_operation import Rollout
from agentmill.pipelines.tables.dropped import refuse_unused
from agentmill.schemas.errors import NothingUsed
from agentmill.schemas.records.verdict import TaskSelection
from agentmill.schemas.tables import Counts, Table
from agentmill.synthesis.environments.pddl.environment import PddlEnvironment
from tests.builders import trajectory
from tests.errors import user_error
from tests.pipelines.cli.tables import COMPARE, agentmill, write_recipe
from tests.pipelines.engine.stages import dropped_of, rows_of
from tests.pipelines.operators.steps import job, model, run
from tests.pipelines.operators.test_selection import choice, reason, select

TASKS = ("kept", "out", "unlisted")


@pytest.fixture
def tried(tmp_path: Path) -> Path:
    """Three tasks with two trajectories each, and one without a task; the table ``of_tasks`` knows two tasks."""
    runs = [trajectory(f"{name}-{n}", task_id=name) for name in TASKS for n in range(2)]
    seed_table(tmp_path / "runs", [*runs, trajectory("stray", task_id=None)])
    (spec, known), _ = PddlEnvironment.examples()
    seed_table(tmp_path / "environments", [spec])
    tasks = [(name, "held_out_tasks" if name == "unlisted" else "train") for name in TASKS]
    seed_table(tmp_path / "tasks", [msgspec.structs.replace(known, task_id=name, split=split) for name, split in tasks])
    select_tasks(tmp_path / "of_tasks", {"kept": True, "out": False}, reason="too_hard")
    return tmp_path


def select_tasks(folder: Path, kept: Mapping[str, bool], **fields: Any) -> None:
    """A table of selections of tasks."""
    rows = [TaskSelection(task_id=name, name="band", kept=keep, **fields) for name, keep in kept.items()]
    seed_table(folder, rows)


def left_out(folder: Path, selections: Any) -> dict[str, str]:
    """Why trajectories of ``tried`` are not taken, by id."""
    found, ids = choice(folder, selections), [f"{name}-{n}" for name in TASKS for n in range(2)]
    return {name: why for name in (*ids, "stray") if (why := reason(found, name)) is not None}


def test_a_selection_of_tasks_decides_about_their_trajectories(tried: Path) -> None:
    out = dict.fromkeys(("out-0", "out-1"), "of_tasks: too_hard")
    assert left_out(tried, "of_tasks") == out
    unknown = dict.fromkeys(("unlisted-0", "unlisted-1", "stray"), "no selection knows it (strict: true)")
    assert left_out(tried, {"all": "of_tasks", "strict": True}) == {**out, **unknown}


def test_selections_of_tasks_and_of_trajectories_go_together(tried: Path) -> None:
    select(tried / "picked", {"kept-0": True, "kept-1": False, "out-0": True, "unlisted-1": False})
    assert set(left_out(tried, ["of_tasks", "picked"])) == {"kept-1", "out-0", "out-1", "unlisted-1"}
    assert set(left_out(tried, {"any": ["picked", "of_tasks"]})) == {"out-1", "unlisted-1"}
    manifest = run(tried, "sft", "rows", **{"from": "runs"}, selections=["of_tasks", "picked"])
    assert manifest.reasons == {"not_selected": 4}
    assert manifest.metrics == {"not_in_selections": 2}


ON = {"tasks": "tasks", "environments": "environments"}
BABBLER = {"actor": model("scripted", turns=["dance"] * 40)}
PLAYED = {"policy": "p", "max_turns": 1, **ON}


@pytest.mark.parametrize(
    ("operator", "parameters"),
    [
        ("sample", {"k": 2}),
        ("expert", {"k": 2}),
        ("tree_search", {"iterations": 1, "branching": 2, "k": 2}),
        ("multi_agent", {"k": 2, "roles": [{"name": "planner"}, {"name": "actor", "acts": True}]}),
        ("memory", {"k": 2, "from": "runs", "where": "all", "by": "random"}),
        ("revise", {"attempts": 2, "level": "step"}),
    ],
)
def test_only_the_tasks_that_are_kept_are_played(operator: str, parameters: dict[str, Any], tried: Path) -> None:
    models = {"actor": model("expert")} if operator == "expert" else BABBLER
    manifest = run(tried, operator, "played", models, **PLAYED, **parameters, selections="of_tasks")
    assert manifest.counts.read == 2 * 2 + 1
    assert manifest.reasons["not_selected"] == 1
    assert {row.task_id for row in rows_of(tried / "played")} == {"kept", "unlisted"}
    assert manifest.metrics["not_in_selections"] == 2
    (letter,) = [each for each in dropped_of(tried / "played") if each.reason == "not_selected"]
    assert (letter.input_id, letter.blamed, letter.detail) == ("out", "curation", "of_tasks: too_hard")


def test_what_no_selection_of_tasks_knows_is_played_unless_strict(tried: Path) -> None:
    strict = {"all": ["of_tasks"], "strict": True}
    step = job(tried, "sample", "played", BABBLER, **PLAYED, k=3, selections=strict)
    operation: Rollout = step.parameters.operation(step.inputs, step.context)  # type: ignore[assignment]
    assert [operation.count(row) for row in rows_of(tried / "tasks")] == [3, 1, 1], (
        "for the progress, before it is opened"
    )
    manifest = step.run()
    assert (manifest.counts, manifest.reasons) == (
        Counts(read=5, used=3, dropped=2, written=3),
        {"not_selected": 2},
    )
    assert "not_in_selections" not in manifest.metrics
    config = step.parameters.provenance_config(step.context)
    assert config["selections"] == {"keep": "all", "strict": True}
    assert "selections" not in job(tried, "sample", "s", BABBLER, **PLAYED).parameters.provenance_config(step.context)


def test_memory_takes_tasks_and_examples_by_their_own_selections(tried: Path) -> None:
    select(tried / "examples", {f"unlisted-{n}": n == 1 for n in range(2)})
    given = {"k": 1, "from": "runs", "where": "all", "by": "random", "shots": 9}
    run(tried, "memory", "played", BABBLER, **PLAYED, **given, selections=["of_tasks", "examples"])
    recalled = {row.task_id: row.extra["recalls"] for row in rows_of(tried / "played")}
    assert recalled.keys() == {"kept", "unlisted"}
    # The trajectories of the task that is not played may be examples all the same; the one that is left out may not.
    assert not any("unlisted-0" in each for each in recalled.values())
    assert any(name.startswith("out-") for each in recalled.values() for name in each)


def test_models_are_evaluated_on_selected_tasks(tried: Path) -> None:
    seed_table(
        tried / "held", [msgspec.structs.replace(each, split="held_out_tasks") for each in rows_of(tried / "tasks")]
    )
    step = {**COMPARE, "constrained": [], "tasks": "held", "splits": ["held_out_tasks"], "selections": "of_tasks"}
    data = {name: str(tried / name) for name in ("held", "environments", "of_tasks")}
    assert agentmill("run", write_recipe(tried, step, data=data)) == 0
    played = Table.open(tried / "run/evaluation/held_out_tasks/tuned/trajectories")
    assert {row.task_id for row in played.rows()} == {"kept", "unlisted"}
    assert played.manifest.reasons == {"not_selected": 1}
    results = msgspec.json.decode((tried / "run/evaluation/evaluation.json").read_bytes())["splits"]
    assert {each: results["held_out_tasks"][each]["unscored"] for each in ("base", "tuned")} == {"base": 0, "tuned": 0}


def test_selections_of_the_wrong_kind_are_refused(tried: Path) -> None:
    select(tried / "picked", {"kept-0": True})
    select_tasks(tried / "others", {"elsewhere": True})
    with user_error("wrong-record-type", "Selection", "TaskSelection", "difficulty_band") as caught:
        job(tried, "sample", "played", BABBLER, **PLAYED, selections="picked")
    assert len(str(caught.value).splitlines()) == 2
    with user_error("wrong-record-type", "Task", "Selection or TaskSelection", "pick") as caught:
        job(tried, "sft", "rows", **{"from": "runs"}, selections="tasks")
    assert len(str(caught.value).splitlines()) == 2
    with user_error("needs-another-key", "selections", "from"):
        job(tried, "imagine", "played", BABBLER, **PLAYED, selections="picked")
    writing = {"of": "environments", "backend": "llm", "policy": PLAYED["policy"], "seeds": "runs"}
    with user_error("wrong-record-type", "TaskSelection", "difficulty_band makes them where `of` names trajectories"):
        job(tried, "propose", "more", BABBLER, **writing, selections="of_tasks")
    with user_error("selection-of-others", "others", "tasks", "runs"):
        run(tried, "sft", "rows", **{"from": "runs"}, selections="others")
    step = job(tried, "sample", "played", BABBLER, **PLAYED, selections=["of_tasks", "others"])
    with user_error("selection-of-others", "others", "tasks"):
        step.parameters.check_inputs(step.inputs)


def test_a_round_whose_tasks_are_all_left_out_is_curation(tried: Path) -> None:
    select_tasks(tried / "none", dict.fromkeys(TASKS, False))
    manifest = run(tried, "sample", "played", BABBLER, **PLAYED, k=2, selections="none")
    assert manifest.counts == Counts(read=3, used=0, dropped=3, written=0)
    refuse_unused("played", Table(tried / "played", manifest), in_round=True)
    with pytest.raises(NothingUsed, match="not_selected 3"):
        refuse_unused("played", Table(tried / "played", manifest))
