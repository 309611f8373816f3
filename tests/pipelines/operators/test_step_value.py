"""``step_value`` as a stage, in worlds whose values are known; and pairs of steps that are made by its values."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Verdict
from agentmill.schemas.tables import Counts
from tests import decision_environment, ruin_environment
from tests.decision_environment import best_value, decision_task
from tests.errors import user_error
from tests.pipelines.engine.stages import dropped_of, rows_of, write_table
from tests.pipelines.operators.steps import job, model, run, stage
from tests.ruin_environment import ruin_task, win_probability
from tests.synthesis.strategies.searching import DEEP

ON = {"tasks": "tasks", "environments": "environments"}
P = 0.6


def gambler(p: float) -> dict[str, Any]:
    return {"actor": model("gambler", turns=[str(p)], revision=str(p))}


@pytest.fixture
def ruin(tmp_path: Path) -> Iterator[Path]:
    """Runs from 1, 2, 3 and 4 that go left until they lose, and a run of each task that goes right until it wins."""
    write_table(tmp_path / "tasks", [[ruin_task(start, 5) for start in (1, 2, 3, 4)]], Task)
    write_table(tmp_path / "environments", [[ruin_environment.SPEC]], EnvironmentSpec)
    with ruin_environment.registered():
        run(tmp_path, "sample", "lost", gambler(0.0), policy="p", **ON)
        run(tmp_path, "sample", "won", gambler(1.0), policy="p", **ON)
        yield tmp_path


@pytest.fixture
def decisions(tmp_path: Path) -> Iterator[Path]:
    write_table(tmp_path / "tasks", [[decision_task(DEEP)]], Task)
    write_table(tmp_path / "environments", [[decision_environment.SPEC]], EnvironmentSpec)
    with decision_environment.registered():
        yield tmp_path


def state_behind(row: Trajectory, item: int) -> int:
    """The number that a step leads to."""
    return next(int(each.state_digest.split("-")[1]) for each in row.content[item:] if each.state_digest is not None)


def test_monte_carlo_values_are_those_of_the_closed_form(ruin: Path) -> None:
    """The chain of IPR: each step is worth what the policy wins from behind it; 99.9 % intervals."""
    run(ruin, "branch", "tried", gambler(P), policy="p", of="lost", k=60, **ON)
    manifest = run(ruin, "step_value", "worth", method="mc", of="lost", branches="tried")
    assert manifest.counts == Counts(read=4, used=4, dropped=0, written=10)
    lost = {row.trajectory_id: row for row in rows_of(ruin / "lost")}
    found = defaultdict(list)
    for value in rows_of(ruin / "worth"):
        assert (value.name, value.estimator) == ("step_value", "mc")
        found[state_behind(lost[value.trajectory_id], value.item)].append(value)
    assert {number: [value.n for value in values] for number, values in found.items()} == {
        0: [1] * 4,
        1: [60] * 3,
        2: [60] * 2,
        3: [60],
    }
    for number, values in found.items():
        n = sum(value.n for value in values)
        mean, expected = sum(value.value * value.n for value in values) / n, win_probability(number, 5, P)
        assert abs(mean - expected) <= 3.29 * math.sqrt(expected * (1 - expected) / n), number
        for value in values:
            error = math.sqrt(expected * (1 - expected) / value.n)
            assert abs(value.value - expected) <= 3.29 * error, (number, value)
    assert manifest.metrics["samples"] == 4 + 6 * 60


def test_pairs_of_steps_are_made_by_monte_carlo_values(ruin: Path) -> None:
    """Of the first turns to the left and to the right, the right one wins more often, by values of either run."""
    for of in ("lost", "won"):
        run(ruin, "branch", f"from_{of}", gambler(P), policy="p", of=of, k=30, **ON)
        run(ruin, "step_value", f"worth_{of}", method="mc", of=of, branches=f"from_{of}")
    pairs = run(
        ruin,
        "step_pairs",
        "pairs",
        **{"from": ["lost", "won"], "score": "value:step_value", "values": ["worth_lost", "worth_won"], "min_gap": 0.1},
    )
    assert pairs.counts.written == 4
    for row in rows_of(ruin / "pairs"):
        assert (row.chosen[0].content, row.rejected[0].content) == ("right", "left")
        start = int(row.task_id.split("-")[1])
        expected = win_probability(start + 1, 5, P) - win_probability(start - 1, 5, P)
        assert row.chosen_score - row.rejected_score == pytest.approx(expected, abs=0.4)


def test_branches_of_one_turn_are_refused(ruin: Path) -> None:
    """Of those of an actor that goes either way, only what lost at once or won at once would count."""
    run(ruin, "branch", "short", gambler(0.5), policy="p", of="lost", depth=1, k=8, **ON)
    reasons = {row.outcome.reason for row in rows_of(ruin / "short")}
    assert reasons == {"depth", None}
    with user_error("branches-too-short", "depth: 1"):
        run(ruin, "step_value", "worth", method="mc", of="lost", branches="short")
    write_table(ruin / "picked", [rows_of(ruin / "short")], Trajectory)
    with user_error("branches-too-short"):
        run(ruin, "step_value", "worth", method="mc", of="lost", branches="picked")


def test_branches_that_insert_or_remove_a_turn_are_refused(ruin: Path) -> None:
    """A branch without a turn begins with the one that was recorded after it."""
    edits = ["replace", "remove"]
    run(ruin, "branch", "edited", gambler(P), policy="p", of="lost", then="recorded", edits=edits, **ON)
    with user_error("branches-unfit", "edited", "edits: [replace, remove]"):
        run(ruin, "step_value", "worth", method="mc", of="lost", branches="edited")


def test_a_branch_counts_once(ruin: Path) -> None:
    """The ids of branches do not depend on ``k``: of five and of ten, five are the same."""
    run(ruin, "branch", "five", gambler(P), policy="p", of="lost", k=5, **ON)
    run(ruin, "branch", "ten", gambler(P), policy="p", of="lost", k=10, **ON)
    with user_error("record-twice", "Trajectory", "50"):
        run(ruin, "step_value", "worth", method="mc", of="lost", branches=["five", "ten"])


def test_branches_without_a_score_do_not_count(ruin: Path) -> None:
    run(ruin, "branch", "long", gambler(1.0), policy="p", of="lost", k=2, **ON)
    run(ruin, "step_value", "worth", method="mc", of="lost", branches="long")
    assert {(value.value, value.n) for value in rows_of(ruin / "worth")} == {(1.0, 2), (0.0, 1)}
    verdicts = [
        Verdict(trajectory_id=row.trajectory_id, name="v", status="scored", judge="j", score=0.25)
        for row in rows_of(ruin / "long")
        if row.attempt == 0
    ]
    write_table(ruin / "verdicts", [verdicts], Verdict)
    scored = {"of": "lost", "branches": "long", "score": "verdict:v", "verdicts": "verdicts"}
    manifest = run(ruin, "step_value", "judged", method="mc", **scored)
    assert {(value.value, value.n) for value in rows_of(ruin / "judged")} == {(0.25, 1)}
    assert (manifest.counts, manifest.reasons) == (Counts(read=4, used=3, dropped=1, written=6), {"no_value": 1})


def test_values_of_a_search_tree_are_those_of_its_nodes(decisions: Path) -> None:
    actor = {"actor": model("chooser", turns=["ab"])}
    search = {"selection": "uct", "c": 0.5, "iterations": 2_000, "branching": 8, "policy": "p", **ON}
    run(decisions, "tree_search", "trees", actor, **search)
    manifest = run(decisions, "step_value", "worth", method="tree", of="trees", nodes="trees/nodes")
    runs = {row.trajectory_id: row for row in rows_of(decisions / "trees")}
    nodes = {str(node.state_digest)[3:]: node for node in rows_of(decisions / "trees/nodes")}
    valued = {place for place, node in nodes.items() if place and node.q is not None}
    assert manifest.counts.written == len(valued) > 8
    found = {}
    for value in rows_of(decisions / "worth"):
        row = runs[value.trajectory_id]
        [place] = [str(item.state_digest)[3:] for item in row.content[value.item + 1 : value.item + 2]]
        assert (value.value, value.n) == (nodes[place].q, nodes[place].visits)
        found[place] = value.value
    assert set(found) == valued, "each node is one step of one run"
    assert found["bab"] == pytest.approx(0.9)
    assert found["b"] == pytest.approx(best_value(DEEP["b"]), abs=0.05)
    pairs = {"from": "trees", "score": "value:step_value", "values": "worth"}
    run(decisions, "step_pairs", "pairs", **pairs)
    better = {row.prompt[-1].content.partition("[")[2].partition("]")[0]: row for row in rows_of(decisions / "pairs")}
    assert {place: better[place].chosen[0].content for place in ("", "b", "ba")} == {"": "b", "b": "a", "ba": "b"}
    assert better[""].chosen_score == found["b"]


def test_the_estimates_of_a_critic_are_mixed_in(decisions: Path) -> None:
    models = {"actor": model("chooser", turns=["ab"]), "critic": model("appraiser", turns=["b=0.5", "ba=0.8"])}
    search = {"value": "critic", "critic": "c", "iterations": 40, "branching": 8, "policy": "p", **ON}
    run(decisions, "tree_search", "trees", models, **search)
    run(decisions, "step_value", "worth", method="tree", of="trees", nodes="trees/nodes", mix=0.5)
    nodes = {(node.trajectory_id, node.turn): node for node in rows_of(decisions / "trees/nodes")}
    runs = {row.trajectory_id: row for row in rows_of(decisions / "trees")}
    values = rows_of(decisions / "worth")
    assert values
    for value in values:
        node = nodes[value.trajectory_id, runs[value.trajectory_id].content[value.item].turn]
        assert value.value == pytest.approx((node.q + node.extra["estimate"]) / 2)


def test_steps_in_the_same_state_are_told_apart_by_what_follows(ruin: Path) -> None:
    """From each start one step to the left that loses and one to the right that wins: advantages of -1 and 1."""
    both = {"of": ["lost", "won"], "method": "state_group"}
    manifest = run(ruin, "step_value", "worth", **both)
    rows = {row.trajectory_id: row for name in ("lost", "won") for row in rows_of(ruin / name)}
    states: defaultdict[tuple[str, str], int] = defaultdict(int)
    for row in rows.values():
        for item in row.content[:-1]:
            if item.state_digest is not None:
                states[row.task_id, item.state_digest] += 1
    values = rows_of(ruin / "worth")
    assert {value.n for value in values} == {2}
    assert len(values) == sum(n for n in states.values() if n > 1) == manifest.counts.written == 8
    for value in values:
        won = rows[value.trajectory_id].outcome.status == "success"
        assert value.value == pytest.approx(1.0 if won else -1.0)
    run(ruin, "step_value", "plain", scale="none", discount=0.5, score="reward", **both)
    plain = {value.trajectory_id: value.value for value in rows_of(ruin / "plain")}
    for name, row in rows.items():
        start = int(row.task_id.split("-")[1])
        half = 0.5 ** (5 - start - 1) / 2
        assert plain[name] == pytest.approx(half if row.outcome.status == "success" else -half)


def test_advantages_do_not_depend_on_the_order_of_tables(ruin: Path) -> None:
    worth = {}
    for name in ("ab", "ba"):
        of = ["lost", "won"] if name == "ab" else ["won", "lost"]
        run(ruin, "step_value", name, method="state_group", of=of, discount=0.7)
        worth[name] = {(each.trajectory_id, each.item): each.value for each in rows_of(ruin / name)}
    assert worth["ab"] == worth["ba"]


def test_states_of_runs_without_a_task_are_compared_with_none(ruin: Path) -> None:
    rows = rows_of(ruin / "won")
    write_table(ruin / "taskless", [[msgspec.structs.replace(row, task_id=None) for row in rows]], Trajectory)
    run(ruin, "step_value", "before", method="state_group", of=["lost", "won"])
    manifest = run(ruin, "step_value", "worth", method="state_group", of="taskless")
    assert (manifest.counts, manifest.reasons) == (Counts(read=4, used=0, dropped=4, written=0), {"no_task": 4})


def test_branches_of_other_trajectories_are_refused_or_counted(ruin: Path) -> None:
    run(ruin, "branch", "tried", gambler(P), policy="p", of="lost", k=2, **ON)
    with user_error("branches-of-others", "parent_id"):
        run(ruin, "step_value", "worth", method="mc", of="won", branches="tried")
    write_table(ruin / "two", [rows_of(ruin / "lost")[:2]], Trajectory)
    manifest = run(ruin, "step_value", "worth", method="mc", of="two", branches="tried")
    others = sum(
        row.parent_id not in {each.trajectory_id for each in rows_of(ruin / "two")} for row in rows_of(ruin / "tried")
    )
    assert 0 < manifest.metrics["branches_of_others"] == others < manifest.metrics["branches"]
    [note] = stage("step_value", method="mc", of="two", branches="tried").notes(manifest)
    assert note.startswith(f"warning: {others} trajectories of `branches` belong to none that is read")


def test_the_result_of_a_run_is_given_to_each_of_its_steps(ruin: Path) -> None:
    run(ruin, "step_value", "worth", method="broadcast", of="won", discount=0.5)
    found = defaultdict(list)
    for value in rows_of(ruin / "worth"):
        found[value.trajectory_id].append((value.value, value.n))
    assert sorted(found.values(), key=len) == [[(0.5**k, 1) for k in reversed(range(n))] for n in (1, 2, 3, 4)]
    run(ruin, "check_outcome", "verdicts", of=["won", "lost"], **ON)
    chosen = {"of": ["won", "lost"], "verdicts": "verdicts", "where": "success", "score": "verdict:none"}
    manifest = run(ruin, "step_value", "none", method="broadcast", **chosen)
    assert manifest.reasons == {"not_success": 4, "unscored": 4}
    assert {letter.blamed for letter in dropped_of(ruin / "none")} == {"curation"}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"method": "mc"}, ("rule-broken", "method: mc", "branches")),
        ({"method": "tree"}, ("rule-broken", "method: tree", "nodes")),
        ({"method": "tree", "nodes": "n", "score": "reward"}, ("rule-broken", "score")),
        ({"method": "broadcast", "mix": 0.5}, ("rule-broken", "mix", "method: tree")),
        (
            {"method": "mc", "branches": "b", "discount": 0.5},
            ("rule-broken", "discount", "method: state_group or broadcast"),
        ),
        ({"method": "broadcast", "scale": "std"}, ("rule-broken", "scale", "method: state_group")),
        ({"method": "broadcast", "nodes": "n"}, ("rule-broken", "nodes", "method: tree")),
    ],
)
def test_mistakes_are_explained(parameters: dict[str, Any], message: tuple[str, ...]) -> None:
    with user_error(*message):
        stage("step_value", of="x", **parameters)


def test_tables_of_the_wrong_kind_are_refused(ruin: Path) -> None:
    with user_error("wrong-record-type", "Trajectory", "Node"):
        job(ruin, "step_value", "w", method="tree", of="lost", nodes="lost")
    with user_error("needs-another-key", "score: verdict:v", "verdicts"):
        job(ruin, "step_value", "w", method="broadcast", of="lost", score="verdict:v")
