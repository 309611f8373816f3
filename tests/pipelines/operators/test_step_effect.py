"""``step_effect``: beneficial and harmful steps, in environments where it can be computed which steps these are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import MessageAction, Trajectory
from agentmill.schemas.records.verdict import Verdict
from agentmill.schemas.tables import Counts
from agentmill.synthesis.environments.pddl.environment import PddlEnvironment
from agentmill.synthesis.environments.pddl.examples import EXAMPLES
from tests.errors import user_error
from tests.pipelines.engine.stages import rows_of, write_table
from tests.pipelines.operators.steps import model, run, stage
from tests.ruin_environment import SPEC, registered, ruin_task

ON = {"tasks": "tasks", "environments": "environments"}
OF = {"of": "failed", "branches": "branches"}
DETOURS = [
    "unstack red from green",
    "put down red",
    "pick up blue",
    "put down blue",
    "pick up blue",
    "stack blue on red",
    "unstack blue from red",
    "put down blue",
]
"""Of three blocks: two ways there and back again, until the turns are used up."""


def actor(policy: str, *turns: str) -> dict[str, Any]:
    return {"actor": model(policy, turns=list(turns), revision=" ".join(turns))}


@pytest.fixture
def blocks(tmp_path: Path) -> Path:
    """A trajectory that fails, because it takes detours."""
    spec, task = EXAMPLES[1]
    write_table(tmp_path / "tasks", [[task]], Task)
    write_table(tmp_path / "environments", [[spec]], EnvironmentSpec)
    manifest = run(tmp_path, "sample", "failed", actor("scripted", *DETOURS), policy="p", max_turns=8, **ON)
    assert (manifest.metrics["success"], manifest.metrics["turns"]) == (0, 8)
    return tmp_path


def distances() -> list[int]:
    """How many turns the planner needs from the state before each turn, and from the end."""
    spec, task = EXAMPLES[1]
    environment, found = PddlEnvironment(spec), []
    environment.reset(task, 0)
    for command in [*DETOURS, None]:
        before, needed = environment.snapshot(), 0
        while not environment.check().passed:
            action = environment.expert()
            assert action is not None
            environment.step(action)
            needed += 1
        found.append(needed)
        environment.restore(before)
        if command is not None:
            environment.step(MessageAction(content=command))
    return found


def expected(succeeds: dict[int, bool], turns: int) -> dict[int, str]:
    """The labels by turn, given from which turns the planner succeeds: what EEF says of each pair of points."""
    found = {}
    points = sorted(succeeds)
    for turn in range(1, turns + 1):
        earlier = max((point for point in points if point <= turn), default=None)
        later = min((point for point in points if point > turn), default=None)
        if earlier is not None and later is not None and succeeds[earlier] and not succeeds[later]:
            found[turn] = "harmful"
        elif any(succeeds[point] for point in points if point > turn):
            found[turn] = "beneficial"
    return found


def labels_of(folder: Path, name: str = "step_effect") -> dict[int, str]:
    """The labels of the one trajectory by turn."""
    [row] = rows_of(folder / "failed")
    return {row.content[each.item].turn: each.value for each in rows_of(folder / "found/labels") if each.name == name}


@pytest.mark.parametrize(
    ("turns", "limit", "known"),
    [
        ({"turns": "even", "n": 3}, 6, {1: "beneficial", 2: "beneficial", 3: "harmful", 4: "harmful"}),
        ({"turns": "even", "n": 3}, 8, {**dict.fromkeys(range(1, 7), "beneficial"), 7: "harmful", 8: "harmful"}),
        ({"turns": "all"}, 6, {1: "beneficial", 2: "beneficial", 3: "beneficial", 4: "harmful"}),
        ({"turns": "all"}, 8, {**dict.fromkeys(range(1, 7), "beneficial"), 7: "harmful"}),
        (
            {"turns": "every", "n": 5},
            10,
            {**dict.fromkeys(range(1, 6), "beneficial"), 6: "harmful", 7: "harmful", 8: "harmful"},
        ),
    ],
)
def test_effects_of_detours_among_blocks(
    turns: dict[str, Any], limit: int, known: dict[int, str], blocks: Path
) -> None:
    """A planner goes on from some turns. It succeeds where the turns that are left are enough, which is computed."""
    run(blocks, "branch", "branches", actor("expert"), policy="p", of="failed", max_turns=limit, **turns, **ON)
    run(blocks, "step_effect", "found", **OF)
    points = {row.branch_turn for row in rows_of(blocks / "branches")}
    needed = distances()
    assert needed == [6, 5, 4, 3, 4, 3, 2, 3, 4]
    succeeds = {turn: turn - 1 + needed[turn - 1] <= limit for turn in points}
    assert {row.branch_turn: row.outcome.status == "success" for row in rows_of(blocks / "branches")} == succeeds
    assert labels_of(blocks) == known == expected({**succeeds, 9: False}, 8)
    [verdict] = rows_of(blocks / "found")
    assert verdict.score == pytest.approx(list(known.values()).count("beneficial") / len(known))
    assert verdict.passed is False
    assert [(point["turn"], point["success"]) for point in verdict.evidence["points"]] == [
        *sorted(succeeds.items()),
        (9, False),
    ]


def test_a_state_that_needs_recovery_is_where_branches_begin_again(blocks: Path) -> None:
    run(blocks, "branch", "branches", actor("expert"), policy="p", of="failed", turns="even", n=3, max_turns=6, **ON)
    run(blocks, "step_effect", "found", **OF)
    assert labels_of(blocks, "step_effect/state") == {5: "needs_recovery"}
    again = {"labels": "found/labels", "error": {"label": "step_effect/state", "equals": "needs_recovery"}}
    run(blocks, "branch", "again", actor("expert"), policy="p", of="failed", turns="first_error", **again, **ON)
    assert [(row.branch_turn, row.outcome.status) for row in rows_of(blocks / "again")] == [(5, "success")]


def test_only_beneficial_steps_carry_loss(blocks: Path) -> None:
    """In the failed trajectory itself, and as the copied history of the continuations that succeed (EEF)."""
    run(blocks, "branch", "branches", actor("expert"), policy="p", of="failed", turns="all", max_turns=6, **ON)
    run(blocks, "step_effect", "found", **OF)
    beneficial = [{"label": "step_effect", "equals": "beneficial"}]
    run(blocks, "sft", "rows", **{"from": "failed", "labels": "found/labels", "steps": beneficial})
    [row] = rows_of(blocks / "rows")
    assert [message.content for message in row.messages if message.train] == DETOURS[:3]
    run(blocks, "check_outcome", "verdicts", of="branches", **ON)
    solved = {"from": "branches", "verdicts": "verdicts", "where": "success", "labels": "found/labels"}
    run(blocks, "sft", "spliced", copied=beneficial, **solved)
    branches = {each.trajectory_id: each for each in rows_of(blocks / "branches")}
    rows = rows_of(blocks / "spliced")
    assert sorted(branches[each.trajectory_id].branch_turn for each in rows) == [1, 2, 3, 4]
    for each in rows:
        own = branches[each.trajectory_id]
        spoken = [item.content for item in own.content if isinstance(item, MessageAction)]
        assert [message.content for message in each.messages if message.train] == spoken
    longer = {**solved, "verdicts": None, "where": "all"}
    run(blocks, "sft", "all", copied=beneficial, **{key: value for key, value in longer.items() if value})
    for each in rows_of(blocks / "all"):
        own = branches[each.trajectory_id]
        copied = [item.content for item in own.content if isinstance(item, MessageAction) and item.context_operation]
        trained = [message.content for message in each.messages if message.train]
        assert trained[: min(len(copied), 3)] == DETOURS[: min(len(copied), 3)]
        assert len(trained) == min(len(copied), 3) + (len(own.content) - 2) // 2 - len(copied)


@pytest.fixture
def ruin(tmp_path: Path) -> Iterator[Path]:
    """Trajectories that go left until they lose, from 1, 2, 3 and 4."""
    write_table(tmp_path / "tasks", [[ruin_task(start, 5) for start in (1, 2, 3, 4)]], Task)
    write_table(tmp_path / "environments", [[SPEC]], EnvironmentSpec)
    with registered():
        run(tmp_path, "sample", "failed", actor("gambler", "0.0"), policy="p", **ON)
        yield tmp_path


def test_of_a_way_that_can_be_won_back_the_last_step_is_the_harmful_one(ruin: Path) -> None:
    run(ruin, "branch", "branches", actor("gambler", "1.0"), policy="p", of="failed", **ON)
    manifest = run(ruin, "step_effect", "found", **OF)
    last = {row.trajectory_id: len(row.content) - 2 for row in rows_of(ruin / "failed")}
    for label in rows_of(ruin / "found/labels"):
        assert label.value == ("harmful" if label.item == last[label.trajectory_id] else "beneficial")
    assert manifest.metrics["labels.beneficial"] == 0 + 1 + 2 + 3
    assert manifest.metrics["labels.harmful"] == 4
    assert manifest.metrics["branches_used"] == 10


@pytest.mark.parametrize(("success_at", "values"), [(0.2, {"beneficial", "harmful"}), (1.0, set())])
def test_success_at_is_the_share_of_the_branches_of_a_turn(success_at: float, values: set[str], ruin: Path) -> None:
    for name, p in (("won", "1.0"), ("lost", "0.0")):
        run(ruin, "branch", name, actor("gambler", p), policy="p", of="failed", **ON)
    run(ruin, "step_effect", "found", of="failed", branches=["won", "lost"], success_at=success_at)
    assert {each.value for each in rows_of(ruin / "found/labels")} == values
    points = [point for each in rows_of(ruin / "found") for point in each.evidence["points"] if point["item"]]
    assert {(point["n"], point["score"]) for point in points} == {(2, 0.5)}


def test_the_score_may_be_a_verdict(ruin: Path) -> None:
    run(ruin, "branch", "branches", actor("gambler", "0.0"), policy="p", of="failed", **ON)
    judged = [
        Verdict(trajectory_id=row.trajectory_id, name="v", status="scored", judge="j", score=0.75)
        for table in ("branches", "failed")
        for row in rows_of(ruin / table)
        if row.branch_turn != 1
    ]
    write_table(ruin / "judged", [judged], Verdict)
    run(ruin, "step_effect", "found", verdicts="judged", score="verdict:v", success_at=0.75, **OF)
    assert {each.value for each in rows_of(ruin / "found/labels")} == {"beneficial"}
    unknown = [each for each in rows_of(ruin / "found") if each.status == "unscored"]
    assert [each.reason for each in unknown] == ["no_branches"], "that from 1 has a branch of its first turn alone"


def test_a_trajectory_without_harmful_steps_passes(ruin: Path) -> None:
    run(ruin, "sample", "won", actor("gambler", "1.0"), policy="p", **ON)
    run(ruin, "branch", "branches", actor("gambler", "1.0"), policy="p", of="won", **ON)
    run(ruin, "step_effect", "found", of="won", branches="branches")
    assert {(each.score, each.passed) for each in rows_of(ruin / "found")} == {(1.0, True)}
    assert {each.value for each in rows_of(ruin / "found/labels")} == {"beneficial"}


def test_where_nothing_succeeds_nothing_is_known(ruin: Path) -> None:
    run(ruin, "branch", "branches", actor("gambler", "0.0"), policy="p", of="failed", **ON)
    manifest = run(ruin, "step_effect", "found", **OF)
    assert manifest.counts == Counts(read=4, used=4, dropped=0, written=4)
    assert manifest.metrics["unscored.no_success"] == 4
    assert rows_of(ruin / "found/labels") == []


def test_steps_that_were_copied_are_left_to_their_trajectory(ruin: Path) -> None:
    run(ruin, "branch", "again", actor("gambler", "0.0"), policy="p", of="failed", turns="last", **ON)
    run(ruin, "branch", "branches", actor("gambler", "1.0"), policy="p", of="again", **ON)
    run(ruin, "step_effect", "found", of="again", branches="branches")
    rows = {row.trajectory_id: row for row in rows_of(ruin / "again")}
    labels = rows_of(ruin / "found/labels")
    assert len(labels) == 4
    assert all(rows[each.trajectory_id].content[each.item].context_operation is None for each in labels)
    run(ruin, "branch", "early", actor("gambler", "1.0"), policy="p", of="again", turns="every", n=9, **ON)
    run(ruin, "step_effect", "none", of="again", branches="early")
    assert {each.value for each in rows_of(ruin / "none/labels")} == {"harmful"}


def test_branches_that_insert_or_remove_a_turn_are_refused(ruin: Path) -> None:
    edits = ["replace", "insert"]
    played = {"of": "failed", "then": "recorded", "edits": edits}
    run(ruin, "branch", "branches", actor("gambler", "0.5"), policy="p", **played, **ON)
    with user_error("branches-unfit", "branches", "edits: [replace, insert]"):
        run(ruin, "step_effect", "found", **OF)


def test_branches_of_one_turn_are_refused(ruin: Path) -> None:
    run(ruin, "branch", "branches", actor("gambler", "0.5"), policy="p", of="failed", depth=1, **ON)
    with user_error("branches-too-short", "depth: 1"):
        run(ruin, "step_effect", "found", **OF)
    write_table(ruin / "branches", [rows_of(ruin / "branches")], Trajectory)
    with user_error("branches-too-short"):
        run(ruin, "step_effect", "found", **OF)


def test_bad_parameters_are_refused() -> None:
    with user_error("invalid-value", "success_at"):
        stage("step_effect", success_at=0, **OF)
    with user_error("rule-broken", "'win' is no score"):
        stage("step_effect", score="win", **OF)
    with user_error("needs-another-key", "verdicts"):
        step = stage("step_effect", score="verdict:v", **OF)
        step.writes({"of": ["Trajectory"], "branches": ["Trajectory"]})
