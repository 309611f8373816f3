"""``first_error``: known answers of injected errors and of gambler's ruin, judges, and what nobody knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Outcome, Trajectory
from agentmill.schemas.records.verdict import Verdict
from agentmill.schemas.tables import Counts
from agentmill.synthesis.strategies.branch import first_actions
from agentmill.synthesis.strategies.inject import INJECTED
from tests import decision_environment
from tests.decision_environment import decision_task
from tests.errors import user_error
from tests.pipelines.engine.stages import dropped_of, rows_of, write_table
from tests.pipelines.operators.steps import job, model, run, stage
from tests.pipelines.operators.test_inject import shown
from tests.ruin_environment import SPEC, registered, ruin_task

ON = {"tasks": "tasks", "environments": "environments"}
EXPERTS = {"actor": model("expert"), "teacher": model("expert")}
EDITS = {"then": "recorded", "edits": ["replace", "insert", "remove"], "distinct": True}
WAY = ("right", "left", "left", "right", "left", "left")
"""From 2 of 4: 3, 2, 1, 2, 1, 0. Going right instead at turn 2 wins at once, at turn 1 nothing is changed."""


def actor(*turns: str, policy: str = "scripted") -> dict[str, Any]:
    return {"actor": model(policy, turns=list(turns), revision=" ".join(turns))}


def corrected(folder: Path, name: str, of: str, **parameters: Any) -> None:
    """Each turn corrected by the expert."""
    run(folder, "branch", name, EXPERTS, policy="p", teacher="t", of=of, **{**EDITS, **ON, **parameters})


@pytest.fixture
def ruin(tmp_path: Path) -> Iterator[Path]:
    """A failure and a success of gambler's ruin, and the corrections of both by the expert."""
    write_table(tmp_path / "tasks", [[ruin_task(2, 4), ruin_task(3, 4)]], Task)
    write_table(tmp_path / "environments", [[SPEC]], EnvironmentSpec)
    with registered():
        run(tmp_path, "sample", "tried", actor(*WAY), policy="p", **ON)
        corrected(tmp_path, "fixed", "tried")
        yield tmp_path


def failed(folder: Path) -> Trajectory:
    [row] = [row for row in rows_of(folder / "tried") if row.outcome.status == "failure"]
    return row


def judged(folder: Path, name: str, row: Trajectory, wrong: Sequence[int], unknown: Sequence[int] = ()) -> None:
    """Verdicts on the steps of a trajectory: those of some turns did not pass, of others nothing is known."""
    found = []
    for turn, item in first_actions(row.content).items():
        passed = None if turn in unknown else turn not in wrong
        status = "unscored" if passed is None else "scored"
        found.append(
            Verdict(
                trajectory_id=row.trajectory_id, name="step_judge", status=status, judge="j", item=item, passed=passed
            )
        )
    write_table(folder / name, [found], Verdict)


@pytest.mark.parametrize(("family", "k"), [("pddl", 6), ("toolbox", 8), ("codegym", 6)])
def test_errors_that_flip_the_outcome_are_found_where_they_were_made(family: str, k: int, tmp_path: Path) -> None:
    """The bar is 95 %; with an expert that made the successes, each one is found."""
    shown(tmp_path, family)
    run(tmp_path, "inject", "bad", of="shown", k=k, **ON)
    run(tmp_path, "check_outcome", "verdicts", of="bad", **ON)
    corrected(tmp_path, "fixed", "bad", verdicts="verdicts", where="failure")
    run(tmp_path, "check_outcome", "fixed_verdicts", of="fixed", **ON)
    on = {"verdicts": ["verdicts", "fixed_verdicts"], "score": "passed:check_outcome"}
    run(tmp_path, "first_error", "found", of="bad", by="counterfactual", branches="fixed", **on)
    truth = {row.trajectory_id: row.extra[INJECTED] for row in rows_of(tmp_path / "bad")}
    flipped = [verdict for verdict in rows_of(tmp_path / "found") if verdict.reason != "success"]
    assert len(flipped) >= 4
    assert len({truth[verdict.trajectory_id]["kind"] for verdict in flipped}) >= 2
    for verdict in flipped:
        assert verdict.evidence.get("turn") == truth[verdict.trajectory_id]["turn"], truth[verdict.trajectory_id]
    injected = {(label.trajectory_id, label.item): label.value for label in rows_of(tmp_path / "bad" / "labels")}
    for label in rows_of(tmp_path / "found" / "labels"):
        wanted = injected[label.trajectory_id, label.item]
        assert label.value == (wanted if wanted in ("before", "after") else "first_error")


def test_the_earliest_correction_that_succeeds_names_the_error(ruin: Path) -> None:
    step = job(ruin, "first_error", "found", of="tried", by="counterfactual", branches="fixed")
    manifest = step.run()
    row = failed(ruin)
    verdicts = {verdict.trajectory_id: verdict for verdict in rows_of(ruin / "found")}
    verdict = verdicts.pop(row.trajectory_id)
    fixes = {each.trajectory_id: each for each in rows_of(ruin / "fixed") if each.parent_id == row.trajectory_id}
    at_two = sorted(name for name, each in fixes.items() if each.branch_turn == 2 and each.outcome.status == "success")
    assert (verdict.status, verdict.passed, verdict.score) == ("scored", False, 1 / 6)
    assert verdict.evidence == {
        "turn": 2,
        "item": first_actions(row.content)[2],
        "turns": 6,
        "search": "earliest",
        "turns_tried": len({each.branch_turn for each in fixes.values()}),
        "branches_tried": len(fixes),
        "branches": at_two,
    }
    assert len(at_two) == 2, "replacing turn 2 and inserting before it both win"
    [won] = verdicts.values()
    assert (won.status, won.reason) == ("unscored", "success")
    assert manifest.counts == Counts(read=2, used=2, dropped=0, written=2)
    assert manifest.metrics == {"scored": 1, "passed": 0, "unscored": 1, "unscored.success": 1, "labels": 6}
    labels = {label.item: label.value for label in rows_of(ruin / "found" / "labels")}
    items = first_actions(row.content)
    assert labels == {items[1]: "before", items[2]: "first_error", **{items[turn]: "after" for turn in (3, 4, 5, 6)}}
    assert job(ruin, "first_error", "found", of="tried", by="counterfactual", branches="fixed").finished()


def test_least_asks_for_several_corrections_of_a_turn(ruin: Path) -> None:
    on = {"of": "tried", "by": "counterfactual", "branches": "fixed"}
    run(ruin, "first_error", "two", least=2, **on)
    assert [v.evidence["turn"] for v in rows_of(ruin / "two") if v.status == "scored"] == [2]
    run(ruin, "first_error", "three", least=3, **on)
    assert {v.reason for v in rows_of(ruin / "three")} == {"success", "none_succeeds"}


def test_success_does_not_depend_on_rounding(ruin: Path) -> None:
    for table in ("tried", "fixed"):
        rows = [
            msgspec.structs.replace(row, outcome=Outcome(reward=0.1 + 0.7 if row.outcome.status == "success" else 0.7))
            for row in rows_of(ruin / table)
        ]
        write_table(ruin / table, [rows], Trajectory)
    on = {"of": "tried", "by": "counterfactual", "branches": "fixed", "score": "reward"}
    run(ruin, "first_error", "found", pass_at=0.8, **on)
    assert sorted((v.reason or "", v.evidence.get("turn")) for v in rows_of(ruin / "found")) == [
        ("", 2),
        ("success", None),
    ]


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_tables_decides_nothing(order: int, ruin: Path) -> None:
    for edit in ("replace", "insert"):
        corrected(ruin, edit, "tried", edits=[edit])
    tables = ["replace", "insert"][::order]
    run(ruin, "first_error", "found", of="tried", by="counterfactual", branches=tables)
    [verdict] = [v for v in rows_of(ruin / "found") if v.status == "scored"]
    assert (verdict.evidence["turn"], len(verdict.evidence["branches"])) == (2, 2)


def test_the_last_turn_from_which_an_expert_succeeds(tmp_path: Path) -> None:
    """Behind "b" and "a" no leaf is good: the choice of the second turn cannot be undone."""
    tree = {"a": {"a": 0.0, "b": 0.1}, "b": {"a": {"a": 0.0, "b": 0.5}, "b": {"a": 1.0, "b": 0.0}}}
    write_table(tmp_path / "tasks", [[decision_task(tree)]], Task)
    write_table(tmp_path / "environments", [[decision_environment.SPEC]], EnvironmentSpec)
    with decision_environment.registered():
        run(tmp_path, "sample", "tried", actor("b", "a", "b"), policy="p", **ON)
        run(tmp_path, "branch", "led", EXPERTS, policy="p", of="tried", **ON)
        on = {"of": "tried", "by": "counterfactual", "branches": "led"}
        run(tmp_path, "first_error", "found", search="last", **on)
        [verdict] = rows_of(tmp_path / "found")
        assert (verdict.evidence["turn"], verdict.evidence["turns_tried"]) == (2, 3)
        with user_error("branches-unfit", tmp_path / "led", "search: last"):
            run(tmp_path, "first_error", "other", **on)


def test_the_first_step_that_a_judge_failed(ruin: Path) -> None:
    judged(ruin, "steps", failed(ruin), wrong=[3, 5], unknown=[1])
    on = {"of": "tried", "by": "judge", "verdicts": "steps"}
    run(ruin, "first_error", "found", **on)
    verdicts = {verdict.trajectory_id: verdict for verdict in rows_of(ruin / "found")}
    verdict = verdicts[failed(ruin).trajectory_id]
    assert verdict.evidence == {
        "turn": 3,
        "item": first_actions(failed(ruin).content)[3],
        "turns": 6,
        "verdict": "step_judge",
        "steps_judged": 5,
    }
    judged(ruin, "all_right", failed(ruin), wrong=[])
    run(ruin, "first_error", "right", **{**on, "verdicts": "all_right"})
    assert sorted(str(v.reason) for v in rows_of(ruin / "right")) == ["none_failed", "success"]
    judged(ruin, "silent", failed(ruin), wrong=[], unknown=range(1, 7))
    run(ruin, "first_error", "nothing", **{**on, "verdicts": "silent"})
    assert sorted(str(v.reason) for v in rows_of(ruin / "nothing")) == ["no_verdicts", "success"]


def test_copied_steps_are_judged_where_they_were_taken(ruin: Path) -> None:
    """A branch of the failure that copies its turns 1 to 5, of which the judge failed the third."""
    run(ruin, "branch", "resumed", actor("0.0", policy="gambler"), policy="p", of="tried", turns="last", **ON)
    judged(ruin, "steps", failed(ruin), wrong=[3])
    run(ruin, "first_error", "found", of=["tried", "resumed"], by="judge", verdicts="steps")
    branch = next(row for row in rows_of(ruin / "resumed") if row.parent_id == failed(ruin).trajectory_id)
    [verdict] = [v for v in rows_of(ruin / "found") if v.trajectory_id == branch.trajectory_id]
    assert (verdict.evidence["turn"], verdict.evidence["steps_judged"]) == (3, 5)


@pytest.mark.parametrize(
    ("wrong", "reason", "note"),
    [
        ([2, 3], None, "in 1 of 1 trajectories (100.0%); kappa over 6 steps 1.00"),
        ([3], "disagree", "in 0 of 1 trajectories (0.0%); kappa over 6 steps -0.20"),
        ([], "one_unknown", "both name a step in no trajectory"),
    ],
)
def test_both_agree_or_nothing_is_known(wrong: list[int], reason: str | None, note: str, ruin: Path) -> None:
    judged(ruin, "steps", failed(ruin), wrong=wrong)
    step = job(ruin, "first_error", "found", of="tried", by="both", branches="fixed", verdicts="steps")
    manifest = step.run()
    verdict = {v.trajectory_id: v for v in rows_of(ruin / "found")}[failed(ruin).trajectory_id]
    assert verdict.reason == reason
    assert verdict.evidence["counterfactual"]["turn"] == 2
    assert verdict.evidence["judge"].get("turn") == (wrong[0] if wrong else None)
    assert verdict.evidence.get("turn") == (2 if reason is None else None)
    assert manifest.metrics.get("labels", 0) == (6 if reason is None else 0)
    assert note in step.parameters.notes(manifest)[-1]


def test_what_nobody_knows_is_unscored_with_the_reason(ruin: Path) -> None:
    row = failed(ruin)
    unknown = msgspec.structs.replace(row, trajectory_id="unknown", outcome=Outcome())
    alone = msgspec.structs.replace(row, trajectory_id="alone")
    write_table(ruin / "more", [[unknown, alone]], Trajectory)
    fixes = [msgspec.structs.replace(each, outcome=Outcome()) for each in rows_of(ruin / "fixed")]
    write_table(ruin / "unscored", [fixes], Trajectory)
    found = job(ruin, "first_error", "a", of=["tried", "more"], by="counterfactual", branches="fixed")
    manifest = found.run()
    reasons = {v.trajectory_id: v.reason for v in rows_of(ruin / "a")}
    assert (reasons["unknown"], reasons["alone"], reasons[row.trajectory_id]) == (
        "outcome_unknown",
        "no_branches",
        None,
    )
    [note] = found.parameters.notes(manifest)
    assert note == "warning: of 4 verdicts 3 are unscored (no_branches 1, outcome_unknown 1, success 1)"
    run(ruin, "first_error", "b", of="tried", by="counterfactual", branches="unscored")
    assert {v.trajectory_id: v.reason for v in rows_of(ruin / "b")}[row.trajectory_id] == "branches_unscored"


def test_branches_and_verdicts_of_others_and_of_steps_that_do_not_exist(ruin: Path) -> None:
    row = failed(ruin)
    fix = next(each for each in rows_of(ruin / "fixed") if each.parent_id == row.trajectory_id)
    strange = [
        msgspec.structs.replace(fix, trajectory_id="beyond", branch_turn=99),
        msgspec.structs.replace(fix, trajectory_id="foreign", parent_id="nobody"),
        msgspec.structs.replace(fix, trajectory_id="revised", branch_turn=None),
    ]
    write_table(ruin / "strange", [strange], Trajectory)
    judged(ruin, "steps", row, wrong=[2])
    [first, *rest] = rows_of(ruin / "steps")
    odd = [msgspec.structs.replace(first, item=item, passed=False) for item in (0, 999)]
    write_table(ruin / "odd", [[first, *rest, *odd]], Verdict)
    step = job(ruin, "first_error", "f", of="tried", by="both", branches=["fixed", "strange"], verdicts="odd")
    manifest = step.run()
    assert [v.evidence["turn"] for v in rows_of(ruin / "f") if v.status == "scored"] == [2]
    counted = {name: manifest.metrics[name] for name in manifest.metrics if "_of_" in name}
    assert counted == {"branches_of_others": 2, "branches_of_no_step": 1, "verdicts_of_no_step": 2}
    notes = step.parameters.notes(manifest)
    assert "2 rows are no branches of these trajectories, and were not used" in notes
    assert "warning: 1 branches name no step of their trajectory, and were not used" in notes
    assert "warning: 2 verdicts name no step of their trajectory, and were not used" in notes
    write_table(ruin / "foreign", [strange[1:]], Trajectory)
    with user_error("branches-of-others", ruin / "foreign", ruin / "tried"):
        run(ruin, "first_error", "g", of="tried", by="counterfactual", branches="foreign")


def test_branches_that_cannot_be_searched_are_refused(ruin: Path) -> None:
    run(ruin, "branch", "short", EXPERTS, policy="p", of="tried", depth=1, **ON)
    on = {"of": "tried", "by": "counterfactual"}
    with user_error("branches-too-short", ruin / "short"):
        run(ruin, "first_error", "a", branches="short", **on)
    with user_error("branches-unfit", ruin / "fixed", "search: last"):
        run(ruin, "first_error", "b", branches="fixed", search="last", **on)


def test_where_leaves_out_what_succeeded(ruin: Path) -> None:
    run(ruin, "check_outcome", "verdicts", of="tried", **ON)
    on = {"verdicts": "verdicts", "where": "failure", "by": "counterfactual", "branches": "fixed"}
    manifest = run(ruin, "first_error", "found", of="tried", **on)
    assert (manifest.counts, manifest.reasons) == (Counts(read=2, used=1, dropped=1, written=1), {"not_failure": 1})
    assert [letter.blamed for letter in dropped_of(ruin / "found")] == ["curation"]


def test_rows_train_only_the_steps_before_the_error(ruin: Path) -> None:
    """Agent-R: the prefix before the first error carries loss, the error and what follows it does not."""
    run(ruin, "first_error", "found", of="tried", by="counterfactual", branches="fixed")
    steps = [{"label": "first_error", "equals": "before"}]
    rows = run(ruin, "sft", "rows", **{"from": "tried", "labels": "found/labels", "steps": steps})
    assert rows.counts.used == 1
    [row] = rows_of(ruin / "rows")
    agent = [message for message in row.messages if message.role == "assistant"]
    assert [(message.content, message.train) for message in agent] == [("right", True)], "what follows is left out"
    after = [{"label": "first_error", "one_of": ["first_error", "after"]}]
    run(ruin, "sft", "rest", **{"from": "tried", "labels": "found/labels", "steps": after})
    [row] = rows_of(ruin / "rest")
    agent = [message for message in row.messages if message.role == "assistant"]
    assert [(message.content, message.train) for message in agent] == [
        (command, turn > 1) for turn, command in enumerate(WAY, 1)
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"by": "counterfactual"}, ("rule-broken", "branches", "turns: all")),
        ({"by": "both", "branches": "b"}, ("rule-broken", "verdicts", "step_judge")),
        ({"by": "judge"}, ("rule-broken", "verdicts")),
        ({"by": "judge", "verdicts": "v", "branches": "b"}, ("rule-broken", "branches", "counterfactual or both")),
        ({"by": "judge", "verdicts": "v", "least": 2}, ("rule-broken", "least")),
        ({"by": "judge", "verdicts": "v", "search": "earliest"}, ("rule-broken", "search")),
        ({"by": "judge", "verdicts": "v", "search": "last"}, ("rule-broken", "search")),
        ({"by": "counterfactual", "branches": "b", "step_verdict": "x"}, ("rule-broken", "step_verdict")),
        ({"by": "guess"}, ("invalid-value", "by")),
    ],
)
def test_mistakes_are_found_before_anything_runs(given: dict[str, Any], words: tuple[str, ...]) -> None:
    with user_error(*words):
        stage("first_error", of="x", **given)


def test_both_needs_a_table_that_may_hold_the_verdict_on_steps(ruin: Path) -> None:
    judged(ruin, "steps", failed(ruin), wrong=[2])
    with user_error("wrong-record-type", "verdicts"):
        job(ruin, "first_error", "c", of="tried", by="judge", verdicts="tried")
    with user_error("wrong-record-type", "branches"):
        job(ruin, "first_error", "c", of="tried", by="counterfactual", branches="steps")
