from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.operators.operator import StepContext
from agentmill.pipelines.operators.tool_graph import ToolGraph
from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.recipes.plan import make_plan
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.synthesis.environments.toolbox.toolbox import read_toolbox
from tests.errors import user_error
from tests.pipelines.engine.stages import dropped_of, rows_of
from tests.pipelines.operators.steps import SEED, job, model, run, stage
from tests.synthesis.generators.test_tool_graph_mcp import script

SHIPPED = ["bundled:hotel", "bundled:parcels"]


def environments_of(folder: Path) -> list[EnvironmentSpec]:
    return [row for row in rows_of(folder) if isinstance(row, EnvironmentSpec)]


def tools(path: Path, *names: str, **fields: Any) -> str:
    """A file of function tools without arguments."""
    path.write_text(
        json.dumps([{"name": name, "parameters": {"properties": fields}} for name in names]), encoding="utf-8"
    )
    return str(path)


def test_shipped_specifications_become_environments_whose_tasks_the_expert_solves(tmp_path: Path) -> None:
    step = job(tmp_path, "tool_graph", "proposed", specs=SHIPPED, held_out=0.34)
    manifest = step.run()
    assert (manifest.counts.read, manifest.counts.used, manifest.counts.dropped, manifest.counts.written) == (
        30,
        27,
        3,
        3,
    )
    assert manifest.reasons == {"unknown_effect": 2, "no_key": 1}
    assert (manifest.metrics["tables"], manifest.metrics["tools_step"]) == (7, 6)
    found = environments_of(tmp_path / "proposed")
    assert sorted((each.name, each.split, each.family) for each in found) == [
        ("couriers-parcels", "held_out", "toolbox"),
        ("guests-bookings-rooms", "train", "toolbox"),
        ("suppliers-deliveries", "train", "toolbox"),
    ]
    notes = step.parameters.notes(manifest)
    assert notes[0].startswith("27 of 30 tools in 3 environments; ")
    assert any("3 tools could not be made (no_key 1, unknown_effect 2)" in note for note in notes)
    assert any("10 tools have no result" in note for note in notes)
    assert run(tmp_path, "admit", "environments", of="proposed").counts.written == 3
    made = run(tmp_path, "propose", "drawn", of="environments", n=4, plan_length=[2, 6])
    admitted = run(tmp_path, "admit", "tasks", of="drawn", environments="environments")
    assert admitted.counts.written >= 0.8 * made.counts.read
    given = {"tasks": "tasks", "environments": "environments"}
    run(tmp_path, "expert", "played", {"actor": model()}, policy="p", **given)
    run(tmp_path, "check_outcome", "verdicts", of="played", **given)
    assert [verdict.passed for verdict in rows_of(tmp_path / "verdicts")] == [True] * admitted.counts.written
    assert len({task.environment_id for task in rows_of(tmp_path / "tasks") if isinstance(task, Task)}) == 3


def test_rows_seed_and_most_tools_have_their_effect(tmp_path: Path) -> None:
    run(tmp_path, "tool_graph", "few", specs="bundled:hotel", rows=5)
    run(tmp_path, "tool_graph", "again", specs="bundled:hotel", rows=5)
    run(tmp_path, "tool_graph", "other", specs="bundled:hotel", rows=5, seed=SEED + 1)
    few, again, other = (environments_of(tmp_path / name) for name in ("few", "again", "other"))
    assert {len(rows) for each in few for rows in read_toolbox(each.source).rows.values()} == {5}
    assert few == again
    assert {each.environment_id for each in few}.isdisjoint(each.environment_id for each in other)
    assert {each.structure_digest for each in few} == {each.structure_digest for each in other}
    manifest = run(tmp_path, "tool_graph", "small", specs="bundled:hotel", most_tools=8)
    assert manifest.counts.written > 2
    assert manifest.metrics["edges_between_domains"] > 0


def test_dead_letters_tell_why_a_tool_is_not_made(tmp_path: Path) -> None:
    file = tools(tmp_path / "a.json", "list_users", "listUsers", "ponder", user_id={"type": "integer"})
    manifest = run(tmp_path, "tool_graph", "made", specs=file)
    assert (manifest.counts.read, manifest.counts.dropped) == (3, 2)
    letters = {each.input_id: each for each in dropped_of(tmp_path / "made")}
    assert {name: each.reason for name, each in letters.items()} == {
        "a.json/listUsers": "name_twice",
        "a.json/ponder": "no_resource",
    }
    assert letters["a.json/listUsers"].detail == "a.json/list_users has the name list_users, too, and comes before it"
    assert letters["a.json/ponder"].blamed == "generator"


def test_a_server_is_asked_when_it_is_the_turn_of_the_step_and_not_before(tmp_path: Path) -> None:
    command = [sys.executable, script(tmp_path, "app.run()")]
    step = job(tmp_path, "tool_graph", "made", mcp=command)
    manifest = step.run()
    assert (manifest.counts.read, manifest.counts.used) == (2, 2)
    (environment,) = environments_of(tmp_path / "made")
    assert [tool.name for tool in read_toolbox(environment.source).tools] == ["list_notes", "delete_note"]
    away = stage("tool_graph", mcp="no-such-program")
    away.precheck(StepContext())
    assert away.bounds({}, {}).rows.n is None
    with user_error("endpoint-unreachable", "no-such-program"):
        away.seeds(StepContext())


def test_bounds_are_the_domains_by_split() -> None:
    bounds = stage("tool_graph", specs=SHIPPED, held_out=0.34).bounds({}, {})
    assert (bounds.reads, bounds.rows.n, bounds.rows.splits) == (30, 3, {"train": 2, "held_out": 1})


def test_mistakes_are_found_while_a_run_is_planned(tmp_path: Path) -> None:
    with user_error("rule-broken", "`specs` or `mcp` is needed"):
        stage("tool_graph")
    with user_error("share-sets-none-aside", "of 2 domains", "more specifications"):
        stage("tool_graph", specs="bundled:hotel", held_out=0.1).precheck(StepContext())
    with user_error("no-such-file", "nowhere.yaml"):
        stage("tool_graph", specs="nowhere.yaml", mcp="server").precheck(StepContext())
    nothing = tools(tmp_path / "none.json", "think", "ponder")
    with user_error(
        "nothing-to-do", "none of 2 tools can be made", "none.json/think: the name think has no noun"
    ) as caught:
        stage("tool_graph", specs=nothing).precheck(StepContext())
    assert str(caught.value).count("\n") == 1


def test_a_specification_that_changes_is_noticed(tmp_path: Path) -> None:
    file = tools(tmp_path / "a.json", "list_users", user_id={"type": "integer"})
    step = job(tmp_path, "tool_graph", "made", specs=file)
    step.run()
    assert step.finished() is not None
    tools(tmp_path / "a.json", "list_people", person_id={"type": "integer"})
    with user_error("made-differently", "seeds"):
        step.finished()


def test_the_environments_of_recipes_include_given_tools(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\ninclude: [environments/tools]\nsteps: []\n", encoding="utf-8")
    plan = make_plan(read_recipe(tmp_path / "mine.yaml", [f"run_dir={tmp_path / 'run'}"]))
    first = plan.steps[0].parameters
    assert isinstance(first, ToolGraph)
    assert first.families(None) == {"toolbox"}
    assert [step.name for step in plan.steps] == ["proposed_environments", "environments", "proposed_tasks", "tasks"]


@pytest.mark.parametrize("rows", [3, 26])
def test_tables_are_neither_too_small_nor_longer_than_a_list_shows(rows: int) -> None:
    with user_error("invalid-value", "rows"):
        stage("tool_graph", specs="bundled:hotel", rows=rows)
