"""Several tables of selections: which trajectories they keep together."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.operators.operator import StepContext
from agentmill.pipelines.operators.rollout_operation import Rollout
from agentmill.pipelines.operators.selection import FilterParameters, TrajectoryFilter
from agentmill.pipelines.recipes.grammar import Recipe
from agentmill.pipelines.recipes.plan import make_plan
from agentmill.pipelines.tables.dropped import refuse_unused
from agentmill.schemas.config import validate
from agentmill.schemas.errors import NothingUsed
from agentmill.schemas.records.verdict import Selection, TaskSelection
from agentmill.schemas.tables import Counts, Table
from agentmill.schemas.views.view import Unused
from agentmill.synthesis.environments.pddl.environment import PddlEnvironment
from tests.builders import trajectory
from tests.errors import user_error
from tests.pipelines.cli.tables import COMPARE, agentmill, write_recipe
from tests.pipelines.engine.stages import dropped_of, rows_of
from tests.pipelines.operators.steps import job, model, run, stage

RUNS = ("both", "one", "other", "neither", "only_a", "not_a", "unknown")
A = {"both": True, "one": True, "other": False, "neither": False, "only_a": True, "not_a": False}
B = {"both": True, "one": False, "other": True, "neither": False}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Seven trajectories; the table ``a`` knows six of them and ``b`` four."""
    seed_table(tmp_path / "runs", [trajectory(name) for name in RUNS])
    select(tmp_path / "a", A)
    select(tmp_path / "b", B)
    return tmp_path


def select(folder: Path, kept: Mapping[str, bool], **fields: Any) -> None:
    """A table of selections, which a filter of the default name made."""
    seed_table(
        folder,
        [Selection(**{"trajectory_id": name, "name": "filter", "kept": keep, **fields}) for name, keep in kept.items()],
    )


def choice(folder: Path, selections: Any) -> TrajectoryFilter:
    """What a step takes, as a worker gets it."""
    step = stage("sft", **{"from": "runs"}, selections=selections)
    assert isinstance(step, FilterParameters)
    inputs = {role: [Table.open(folder / name) for name in names] for role, names in step.tables().items()}
    found: TrajectoryFilter = pickle.loads(pickle.dumps(step.choice(inputs)))
    found.load()
    return found


def dropped(folder: Path, selections: Any) -> dict[str, str]:
    """Why trajectories are not taken, by id."""
    found = choice(folder, selections)
    return {name: why for name in RUNS if (why := reason(found, name)) is not None}


def reason(found: TrajectoryFilter, name: str) -> str | None:
    """Why a trajectory is not taken."""
    try:
        found.annotations(name)
    except Unused as error:
        return str(error) if error.reason == "not_selected" else error.reason
    return None


@pytest.mark.parametrize(
    ("selections", "taken"),
    [
        ("a", {"both", "one", "only_a", "unknown"}),
        ("b", {"both", "other", "only_a", "not_a", "unknown"}),
        (["a", "b"], {"both", "only_a", "unknown"}),
        ({"all": ["a", "b"]}, {"both", "only_a", "unknown"}),
        ({"all": ["a", "b"], "strict": True}, {"both", "only_a"}),
        ({"any": ["a", "b"]}, {"both", "one", "other", "only_a", "unknown"}),
        ({"any": ["a", "b"], "strict": True}, {"both", "one", "other", "only_a"}),
        ({"any": "b", "strict": True}, {"both", "other"}),
    ],
)
def test_selections_together(selections: Any, taken: set[str], folder: Path) -> None:
    assert set(RUNS) - set(dropped(folder, selections)) == taken


@pytest.mark.parametrize("key", ["all", "any"])
def test_the_order_of_selections_does_not_matter(key: str, folder: Path) -> None:
    select(folder / "c", {"one": False, "neither": True, "only_a": False})
    kept = [set(RUNS) - set(dropped(folder, {key: list(order)})) for order in itertools.permutations(("a", "b", "c"))]
    assert kept == [kept[0]] * 6


def test_what_is_not_selected_says_why(folder: Path) -> None:
    select(folder / "c", {"both": False}, reason="too long")
    reasons = dropped(folder, {"all": ["a", "c"], "strict": True})
    assert reasons["both"] == "too long"
    assert reasons["other"] == "selection 'filter'"
    assert reasons["unknown"] == "no selection knows it (strict: true)"


def test_seeds_that_no_selection_knows_stay(folder: Path) -> None:
    """AgentEvol: the rows of a round are its picked trajectories and all seeds."""
    seed_table(folder / "seeds", [trajectory("seed")])
    manifest = run(folder, "sft", "rows", **{"from": ["seeds", "runs"]}, selections=["a", "b"])
    assert manifest.counts == Counts(read=8, used=4, dropped=4, written=4)
    assert manifest.reasons == {"not_selected": 4}
    assert manifest.metrics == {"not_in_selections": 2}
    picked = run(folder, "pick", "picked", of=["seeds", "runs"], selections={"any": ["a", "b"]}, k=9)
    assert picked.metrics == {"kept": 6, "not_in_selections": 2}


def test_a_step_takes_what_the_selections_of_its_steps_keep_in_common(folder: Path) -> None:
    """Two filters, whose selections both have the default name."""
    for name, row in (("long", "both"), ("short", "one")):
        run(folder, "filter", name, of="runs", where=[{"field": "trajectory_id", "one_of": [row, "unknown"]}])
    assert set(RUNS) - set(dropped(folder, ["long", "short"])) == {"unknown"}
    assert set(RUNS) - set(dropped(folder, {"any": ["long", "short"]})) == {"both", "one", "unknown"}


def test_a_table_that_contradicts_itself_is_refused(folder: Path) -> None:
    rows = [Selection(trajectory_id="one", name="judge", kept=kept) for kept in (True, False)]
    seed_table(folder / "c", rows)
    with user_error("records-conflict", "/c", "Selection", "judge"):
        choice(folder, "c")


def test_selections_of_steps_select_no_trajectories(folder: Path) -> None:
    select(folder / "c", {"one": False}, item=2)
    with user_error("selection-of-steps", "/c", "2"):
        choice(folder, ["a", "c"])


def test_selections_of_other_trajectories_are_refused(folder: Path) -> None:
    select(folder / "c", {"elsewhere": False})
    with user_error("selection-of-others", "/c", "/runs"):
        choice(folder, ["a", "c"])


@pytest.mark.parametrize(
    ("selections", "expected"),
    [
        ({}, ("rule-broken", "all", "any")),
        ({"all": "a", "any": "b"}, ("rule-broken", "all", "any")),
        ({"anny": ["a"]}, ("unknown-key", "anny", "any")),
        ({"any": []}, ("invalid-value", "selections.any")),
        (3, ("invalid-value",)),
    ],
)
def test_mistakes_in_selections(selections: Any, expected: tuple[str, ...]) -> None:
    with user_error(*expected):
        stage("sft", **{"from": "runs"}, selections=selections)


def test_how_selections_go_together_is_part_of_what_makes_a_table() -> None:
    given = ["b", ["b"], {"any": "b"}, {"all": "b", "strict": True}]
    rules = [
        stage("sft", **{"from": "a"}, selections=each).provenance_config(StepContext())["selections"] for each in given
    ]
    assert rules == [
        {"keep": "all", "strict": False},
        {"keep": "all", "strict": False},
        {"keep": "any", "strict": False},
        {"keep": "all", "strict": True},
    ]
    assert "selections" not in stage("sft", **{"from": "a"}).provenance_config(StepContext())


def test_a_recipe_names_selections_in_either_form(folder: Path) -> None:
    data = {name: str(folder / name) for name in ("runs", "a", "b")}

    def plan(selections: Any) -> Any:
        steps = [{"operator": "sft", "from": "runs", "selections": selections, "as": "rows"}]
        return make_plan(validate(Recipe, {"name": "r", "run_dir": "r", "data": data, "steps": steps}, "r"))

    for selections in (["a", "b"], {"any": ["a", "b"], "strict": True}):
        [step] = plan(selections).steps
        assert [output.name for output in step.inputs["selections"]] == ["a", "b"]
    with user_error("unknown-name", "'bb'", "'b'"):
        plan({"any": ["a", "bb"]})
    with user_error("wrong-record-type", "Trajectory", "Selection"):
        plan({"any": ["runs"]})


def test_a_selection_that_keeps_nothing_and_a_field_that_no_trajectory_has_are_reported(tmp_path: Path) -> None:
    seed_table(tmp_path / "runs", [trajectory(f"t{n}", extra={"openai": {"label": "good"}}) for n in range(3)])

    def told(field: str, value: str) -> list[str]:
        step = {"of": "runs", "where": [{"field": field, "equals": value}]}
        return stage("filter", **step).notes(run(tmp_path, "filter", f"{field}-{value}".replace(".", "-"), **step))

    assert told("extra.openai.label", "good") == []
    nothing = "warning: none of 3 trajectories is kept; the reasons are in the table"
    assert told("extra.openai.label", "bad") == [nothing]
    assert told("extra.openai.lable", "good") == [
        nothing,
        "warning: `field: extra.openai.lable` is in none of 3 trajectories. Did you mean 'extra.openai.label'?",
    ]
    unknown = {"of": "runs", "by": "cheapest"}
    assert stage("pick", **unknown).notes(run(tmp_path, "pick", "picked", **unknown)) == [nothing]


@pytest.mark.parametrize(
    ("given", "roles"),
    [
        ({"verdicts": "v"}, ["verdicts"]),
        ({"verdicts": "v", "labels": "l", "where": "success"}, ["labels"]),
        ({"verdicts": "v", "prefix": {"success": "good", "failure": "bad"}}, []),
        ({"labels": "l", "steps": [{"label": "kind", "equals": "a"}]}, []),
        ({"values": "x", "weight": "value:x"}, []),
    ],
)
def test_tables_of_annotations_that_nothing_asks_are_reported(
    given: dict[str, Any], roles: list[str], folder: Path
) -> None:
    manifest = Table.open(folder / "runs").manifest
    notes = stage("sft", **{"from": "runs"}, **given).notes(manifest)
    assert [note.partition("`")[2].partition("`")[0] for note in notes] == roles
    assert all("nothing in this step asks it" in note for note in notes)


def test_a_filter_says_that_it_asks_no_verdict(folder: Path) -> None:
    step = stage("filter", of="runs", verdicts="v", where=[{"field": "attempt", "equals": 0}])
    (note,) = step.notes(run(folder, "filter", "kept", of="runs", where=[{"field": "attempt", "equals": 0}]))
    assert note.startswith("warning: `verdicts` is named, and nothing in this step asks it")


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
    out = dict.fromkeys(("out-0", "out-1"), "too_hard")
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
    assert (letter.input_id, letter.blamed, letter.detail) == ("out", "curation", "too_hard")


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
