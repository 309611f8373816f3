"""Several tables of selections: which trajectories they keep together."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.operators.operator import StepContext
from agentmill.pipelines.operators.selection import FilterParameters, TrajectoryFilter
from agentmill.pipelines.recipes.grammar import Recipe
from agentmill.pipelines.recipes.plan import make_plan
from agentmill.schemas.config import validate
from agentmill.schemas.records.verdict import Selection
from agentmill.schemas.tables import Counts, Table
from agentmill.schemas.views.view import Unused
from tests.builders import trajectory, verdict
from tests.errors import user_error
from tests.pipelines.operators.steps import run, stage

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
    assert reasons["both"] == "c: too long"
    assert reasons["other"] == "a: selection 'filter'"
    assert reasons["unknown"] == "no selection knows it (strict: true)"


def test_seeds_that_no_selection_knows_stay(folder: Path) -> None:
    """AgentEvol: the rows of a round are its picked trajectories and all seeds."""
    seed_table(folder / "seeds", [trajectory("seed")])
    manifest = run(folder, "sft", "rows", **{"from": ["seeds", "runs"]}, selections=["a", "b"])
    assert manifest.counts == Counts(read=8, used=4, dropped=4, written=4)
    assert manifest.reasons == {"not_selected": 4}
    assert manifest.metrics == {"not_in_selections": 2}
    picked = run(folder, "pick", "picked", of=["seeds", "runs"], selections={"any": ["a", "b"]}, k=9)
    assert picked.metrics == {"kept": 6, "left_out.not_selected": 2, "not_in_selections": 2}


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


def test_where_takes_conditions_on_annotations_and_filter_takes_the_words(folder: Path) -> None:
    rows = [verdict("t1", name="judge", score=0.9), verdict("t2", name="judge", score=0.2, passed=False)]
    seed_table(folder / "mine", [trajectory("t1"), trajectory("t2"), trajectory("t3")])
    seed_table(folder / "judged", rows)
    given = {"where": [{"verdict": "judge", "at_least": 0.5}], "verdicts": "judged"}
    manifest = run(folder, "sft", "chosen", **{"from": "mine"}, **given)
    assert manifest.counts == Counts(read=3, used=1, dropped=2, written=1)
    assert manifest.reasons == {"judge": 2}
    seed_table(folder / "outcomes", [verdict("t1"), verdict("t2", passed=False)])
    kept = run(folder, "filter", "won", of="mine", verdicts="outcomes", where="success")
    assert (kept.metrics["kept"], kept.metrics["left_out.check_outcome"]) == (1, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"where": "succes"}, ("invalid-value", "where", "'success'")),
        ({"where": []}, ("rule-broken", "where")),
        ({"where": [{"field": "split", "equals": "train"}]}, ("rule-broken", "split", "filter")),
        ({"where": [{"verdict": "judge", "passd": True}]}, ("unknown-key", "where.0", "passed")),
        ({"where": [{"verdict": "judge", "passed": True}], "verdict": "judge"}, ("rule-broken", "verdict")),
        ({"where": [{"verdict": "judge", "passed": True}]}, ("needs-another-key", "verdicts")),
    ],
)
def test_mistakes_in_where(folder: Path, given: dict[str, Any], message: tuple[str, ...]) -> None:
    seed_table(folder / "mine", [trajectory("t1")])
    with user_error(*message):
        run(folder, "sft", "chosen", **{"from": "mine"}, **given)
