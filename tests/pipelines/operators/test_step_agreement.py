"""``step_agreement``: steps that an expert or another policy would take, by branches at each turn."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import MessageAction, Trajectory
from agentmill.schemas.records.verdict import Verdict
from agentmill.schemas.tables import Counts
from tests.errors import user_error
from tests.pipelines.engine.stages import rows_of, write_table
from tests.pipelines.operators.steps import model, run, stage
from tests.ruin_environment import SPEC, registered, ruin_task

ON = {"tasks": "tasks", "environments": "environments"}
OF = {"of": "own", "branches": "branches"}
P = 0.6


def gambler(p: float) -> dict[str, Any]:
    return {"actor": model("gambler", turns=[str(p)], revision=str(p))}


def scripted(*turns: str) -> dict[str, Any]:
    return {"actor": model("scripted", turns=list(turns), revision=" ".join(turns))}


@pytest.fixture
def ruin(tmp_path: Path) -> Iterator[Path]:
    """Trajectories from 1, 2, 3 and 4 that go left and right by chance."""
    write_table(tmp_path / "tasks", [[ruin_task(start, 5) for start in (1, 2, 3, 4)]], Task)
    write_table(tmp_path / "environments", [[SPEC]], EnvironmentSpec)
    with registered():
        run(tmp_path, "sample", "own", gambler(0.5), policy="p", k=3, **ON)
        yield tmp_path


def moves(row: Trajectory) -> dict[int, str]:
    """What was done, by item."""
    return {place: item.content for place, item in enumerate(row.content) if isinstance(item, MessageAction)}


def labels_of(folder: Path, table: str = "found") -> dict[tuple[str, int], str]:
    return {(each.trajectory_id, each.item): each.value for each in rows_of(folder / table / "labels")}


@pytest.mark.parametrize("depth", [1, "end"])
def test_steps_agree_with_an_expert_that_always_goes_right(depth: int | str, ruin: Path) -> None:
    """The known answer: a step agrees if it goes right. Of branches that were played on the first turn counts."""
    branches = run(ruin, "branch", "branches", gambler(1.0), policy="p", of="own", depth=depth, k=2, **ON)
    manifest = run(ruin, "step_agreement", "found", **OF)
    rows = {row.trajectory_id: row for row in rows_of(ruin / "own")}
    known = {
        (name, item): "agrees" if move == "right" else "differs"
        for name, row in rows.items()
        for item, move in moves(row).items()
    }
    assert set(known.values()) == {"agrees", "differs"}
    assert labels_of(ruin) == known
    on_steps = [each for each in rows_of(ruin / "found") if each.item is not None]
    assert {(each.trajectory_id, each.item): each.passed for each in on_steps} == {
        place: value == "agrees" for place, value in known.items()
    }
    assert {each.evidence["branches"] for each in on_steps} == {2}
    for verdict in rows_of(ruin / "found"):
        if verdict.item is None:
            own = [value == "agrees" for (name, _), value in known.items() if name == verdict.trajectory_id]
            assert verdict.score == pytest.approx(sum(own) / len(own))
            assert verdict.passed is all(own)
            assert (verdict.evidence["compared"], verdict.evidence["agree"]) == (len(own), sum(own))
            differing = [
                item for (name, item), value in known.items() if (name, value) == (verdict.trajectory_id, "differs")
            ]
            assert verdict.evidence.get("first_item") == min(differing, default=None)
    assert manifest.metrics["branches_used"] == branches.counts.written == 2 * len(known)
    assert manifest.metrics["branches_of_others"] == 0
    counted = [manifest.metrics[f"labels.{value}"] for value in ("agrees", "differs")]
    assert counted == [list(known.values()).count(value) for value in ("agrees", "differs")]


def test_the_share_of_a_random_policy_is_its_probability(ruin: Path) -> None:
    """A 99.9 % interval around the probability with which the other policy goes right."""
    run(ruin, "branch", "branches", gambler(P), policy="p", of="own", depth=1, k=40, **ON)
    run(ruin, "step_agreement", "found", **OF)
    rows = {row.trajectory_id: moves(row) for row in rows_of(ruin / "own")}
    n = right = 0
    for verdict in rows_of(ruin / "found"):
        if verdict.item is not None:
            assert verdict.evidence["branches"] == 40
            assert verdict.score == verdict.evidence["agree"] / 40
            goes_right = rows[verdict.trajectory_id][verdict.item] == "right"
            right += verdict.evidence["agree"] if goes_right else 40 - verdict.evidence["agree"]
            n += 40
    assert n > 1000
    assert abs(right / n - P) <= 3.29 * math.sqrt(P * (1 - P) / n)


@pytest.mark.parametrize(
    ("parameters", "value", "passed"),
    [
        ({}, "agrees", True),
        ({"agree_at": 0.51}, "differs", False),
        ({"agree_at": 0.51, "on": "state"}, "agrees", True),
    ],
)
def test_thresholds_and_states(parameters: dict[str, Any], value: str, passed: bool, ruin: Path) -> None:
    """Of two branches one does the same; the other says it in other words and comes to the same state."""
    run(ruin, "sample", "played", scripted("right"), policy="p", max_turns=1, **ON)
    run(ruin, "branch", "same", scripted("right"), policy="p", of="played", depth=1, **ON)
    run(ruin, "branch", "reworded", scripted("right."), policy="p", of="played", depth=1, **ON)
    run(ruin, "step_agreement", "found", of="played", branches=["same", "reworded"], **parameters)
    assert set(labels_of(ruin).values()) == {value}
    assert {each.passed for each in rows_of(ruin / "found")} == {passed}


@pytest.mark.parametrize(("pass_at", "passed"), [(0.5, True), (0.51, False)])
def test_pass_at_is_the_share_of_steps(pass_at: float, passed: bool, ruin: Path) -> None:
    run(ruin, "sample", "played", scripted("right", "left"), policy="p", max_turns=2, **ON)
    run(ruin, "branch", "branches", gambler(1.0), policy="p", of="played", depth=1, **ON)
    run(ruin, "step_agreement", "found", of="played", branches="branches", pass_at=pass_at)
    whole = [each for each in rows_of(ruin / "found") if each.item is None and each.evidence["steps"] == 2]
    assert {(each.score, each.passed) for each in whole} == {(0.5, passed)}


def test_only_steps_with_branches_have_labels(ruin: Path) -> None:
    run(ruin, "branch", "branches", gambler(1.0), policy="p", of="own", turns="last", depth=1, **ON)
    some = [row for row in rows_of(ruin / "branches") if row.attempt == 0][:2]
    write_table(ruin / "branches", [some], Trajectory)
    manifest = run(ruin, "step_agreement", "found", **OF)
    verdicts = rows_of(ruin / "found")
    assert manifest.counts == Counts(read=12, used=12, dropped=0, written=12 + 2)
    unknown = [each for each in verdicts if each.status == "unscored"]
    assert {(each.reason, each.score, each.passed, each.item) for each in unknown} == {
        ("no_branches", None, None, None)
    }
    assert len(unknown) == 10
    assert {name for name, _ in labels_of(ruin)} == {row.parent_id for row in some}


def test_copied_steps_are_left_to_their_trajectory(ruin: Path) -> None:
    run(ruin, "branch", "again", gambler(0.0), policy="p", of="own", turns="last", **ON)
    run(ruin, "branch", "branches", gambler(1.0), policy="p", of="again", depth=1, **ON)
    run(ruin, "step_agreement", "found", of="again", branches="branches")
    rows = {row.trajectory_id: row for row in rows_of(ruin / "again")}
    labels = labels_of(ruin)
    assert labels
    assert all(rows[name].content[item].turn >= rows[name].branch_turn for name, item in labels)
    assert {name for name, _ in labels} == set(rows)


@pytest.mark.parametrize("value", ["agrees", "differs"])
def test_a_view_trains_on_what_agrees_or_differs(value: str, ruin: Path) -> None:
    run(ruin, "branch", "branches", gambler(1.0), policy="p", of="own", depth=1, **ON)
    run(ruin, "step_agreement", "found", **OF)
    chosen = {"from": "own", "labels": "found/labels", "steps": [{"label": "step_agreement", "equals": value}]}
    run(ruin, "sft", "rows", **chosen)
    trained = [message.content for row in rows_of(ruin / "rows") for message in row.messages if message.train]
    assert set(trained) == {"right" if value == "agrees" else "left"}
    assert len(trained) == list(labels_of(ruin).values()).count(value)


def test_steps_can_be_weighed_by_their_share(ruin: Path) -> None:
    run(ruin, "branch", "branches", gambler(P), policy="p", of="own", depth=1, k=4, **ON)
    run(ruin, "step_agreement", "found", **OF)
    run(ruin, "sft", "rows", **{"from": "own", "verdicts": "found", "weight": "verdict:step_agreement"})
    weights = {message.weight for row in rows_of(ruin / "rows") for message in row.messages if message.train}
    assert weights <= {0.25, 0.5, 0.75, 1.0}
    assert len(weights) > 1


def test_branches_that_had_to_differ_are_refused(ruin: Path) -> None:
    run(ruin, "branch", "branches", gambler(P), policy="p", of="own", depth=1, k=2, distinct=True, **ON)
    with user_error("branches-distinct", "branches", "distinct: true") as caught:
        run(ruin, "step_agreement", "found", **OF)
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(("step", "given"), [("step_value", {"method": "mc"}), ("step_effect", {})])
def test_steps_that_count_continuations_refuse_such_branches_too(ruin: Path, step: str, given: dict[str, Any]) -> None:
    run(ruin, "branch", "branches", gambler(P), policy="p", of="own", k=2, distinct=True, **ON)
    with user_error("branches-distinct", "branches", "distinct: true"):
        run(ruin, step, "found", of="own", branches="branches", **given)


def test_branches_that_remove_the_recorded_turn_are_refused(ruin: Path) -> None:
    run(ruin, "branch", "branches", gambler(P), policy="p", of="own", then="recorded", edits=["remove"], **ON)
    with user_error("branches-unfit", "branches", "edits: [remove]"):
        run(ruin, "step_agreement", "found", **OF)


def test_branches_without_a_first_turn_count_for_nothing(ruin: Path) -> None:
    made = run(ruin, "branch", "branches", gambler(1.0), policy="p", of="own", depth=1, max_turns=1, **ON)
    assert made.reasons["history_too_long"]
    manifest = run(ruin, "step_agreement", "found", **OF)
    assert manifest.metrics["branches_used"] == 12 == len(rows_of(ruin / "branches"))
    assert {each.evidence["compared"] for each in rows_of(ruin / "found") if each.item is None} == {1}


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"on": "text"}, ("invalid-value", "on")),
        ({"agree_at": 0}, ("invalid-value", "agree_at")),
        ({"pass_at": 1.5}, ("invalid-value", "pass_at")),
        ({"name": ""}, ("invalid-value", "name")),
        ({"where": "failure"}, ("rule-broken", "verdicts")),
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, Any], words: tuple[str, ...]) -> None:
    with user_error(*words):
        stage("step_agreement", **OF, **parameters)


def test_it_reads_verdicts_for_where(ruin: Path) -> None:
    run(ruin, "branch", "branches", gambler(1.0), policy="p", of="own", depth=1, **ON)
    run(ruin, "check_outcome", "verdicts", of="own", **ON)
    failed = {
        each.trajectory_id for each in rows_of(ruin / "verdicts") if isinstance(each, Verdict) and not each.passed
    }
    run(ruin, "step_agreement", "found", verdicts="verdicts", where="failure", **OF)
    assert {each.trajectory_id for each in rows_of(ruin / "found")} == failed
