"""``inject`` as a step: errors of known places in four families, their labels, and what gets none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Action, Trajectory
from agentmill.schemas.tables import Counts
from agentmill.synthesis.environments import ENVIRONMENTS
from agentmill.synthesis.strategies.inject import INJECTED
from agentmill.synthesis.strategies.wrong_turns import ERROR_KINDS
from tests.builders import trajectory
from tests.errors import user_error
from tests.pipelines.engine.stages import dropped_of, rows_of, write_table
from tests.pipelines.operators.steps import job, model, run, stage
from tests.ruin_environment import SPEC, registered, ruin_task

ON = {"tasks": "tasks", "environments": "environments"}


def actor(*turns: str, policy: str = "gambler") -> dict[str, Any]:
    return {"actor": model(policy, turns=list(turns), revision=" ".join(turns))}


@pytest.fixture
def ruin(tmp_path: Path) -> Iterator[Path]:
    """Four tasks of gambler's ruin, each won by going right and lost by going left."""
    write_table(tmp_path / "tasks", [[ruin_task(start, 5) for start in (1, 2, 3, 4)]], Task)
    write_table(tmp_path / "environments", [[SPEC]], EnvironmentSpec)
    with registered():
        run(tmp_path, "sample", "won", actor("1.0"), policy="p", **ON)
        run(tmp_path, "sample", "failed", actor("0.0"), policy="p", **ON)
        yield tmp_path


def shown(folder: Path, family: str, scaffold: str = "text") -> None:
    """The expert's demonstrations of the examples of a family."""
    examples = ENVIRONMENTS.load(family).examples()
    specs = {spec.environment_id: spec for spec, _ in examples}
    write_table(folder / "environments", [list(specs.values())], EnvironmentSpec)
    write_table(folder / "tasks", [[task for _, task in examples]], Task)
    run(folder, "expert", "shown", {"actor": model("expert")}, policy="p", scaffold=scaffold, **ON)


def deeds(row: Trajectory) -> list[tuple[int, Any]]:
    """What was done, turn by turn."""
    actions = (item for item in row.content if isinstance(item, Action) and item.turn > 0)
    return [(item.turn, getattr(item, "content", None) or getattr(item, "kwargs", None)) for item in actions]


@pytest.mark.parametrize(
    ("family", "scaffold"),
    [
        ("pddl", "text"),
        ("pddl", "tools"),
        ("toolbox", "text"),
        ("toolbox", "tools"),
        ("codegym", "tools"),
        ("interpreter", "text"),
    ],
)
def test_each_trajectory_has_one_error_whose_label_is_true(family: str, scaffold: str, tmp_path: Path) -> None:
    shown(tmp_path, family, scaffold)
    k = 2 if family == "interpreter" else 5
    manifest = run(tmp_path, "inject", "bad", of="shown", k=k, **ON)
    assert manifest.counts.read == 2 * k == manifest.counts.used + manifest.counts.dropped
    assert set(manifest.reasons) <= {"no_error_applies"}
    parents = {row.trajectory_id: row for row in rows_of(tmp_path / "shown")}
    labels = {(label.trajectory_id, label.item): label for label in rows_of(tmp_path / "bad" / "labels")}
    rows = rows_of(tmp_path / "bad")
    assert len({(row.parent_id, str(deeds(row))) for row in rows}) == len(rows) == manifest.counts.used
    for row in rows:
        kind, turn = row.extra[INJECTED]["kind"], row.extra[INJECTED]["turn"]
        before = [deed for deed in deeds(row) if deed[0] < turn]
        assert before == [deed for deed in deeds(parents[row.parent_id]) if deed[0] < turn]
        first = next(place for place, item in enumerate(row.content) if isinstance(item, Action) and item.turn == turn)
        own = {item: label.value for (name, item), label in labels.items() if name == row.trajectory_id}
        assert own[first] == kind
        assert {value for item, value in own.items() if item < first} <= {"before"}
        assert {value for item, value in own.items() if item > first} <= {"after"}
        assert len(own) == len({turn for turn, _ in deeds(row)})
        assert [deed for deed in deeds(row) if deed[0] == turn] != [
            deed for deed in deeds(parents[row.parent_id]) if deed[0] == turn
        ]
    assert sum(manifest.metrics.get(f"kind.{kind}", 0) for kind in ERROR_KINDS) == len(rows)
    verdicts = run(tmp_path, "check_outcome", "verdicts", of="bad", **ON)
    assert verdicts.metrics["passed"] == manifest.metrics["success"] < len(rows)


def test_only_successes_of_ours_that_were_played_get_an_error(ruin: Path) -> None:
    answer = {"turns": [{"action": "right", "observation": "One more."}] * 4, "ending": {"status": "success"}}
    run(ruin, "imagine", "imagined", actor(json.dumps(answer), policy="sayer"), policy="p", **ON)
    foreign = trajectory("foreign", task_id="ruin-2-5", generation=None)
    homeless = msgspec.structs.replace(rows_of(ruin / "won")[0], trajectory_id="homeless", task_id="nowhere")
    write_table(ruin / "strange", [[foreign, homeless]], Trajectory)
    made = run(ruin, "inject", "bad", of=["won", "failed", "imagined", "strange"], errors=["other_action"], k=2, **ON)
    reasons = {"not_a_success": 4, "imagined": 4, "not_generated": 1, "no_task": 1, "no_error_applies": 1}
    assert made.reasons == reasons
    assert made.counts == Counts(read=18, used=7, dropped=11, written=7)
    [letter] = [each for each in dropped_of(ruin / "bad") if each.reason == "no_error_applies"]
    assert "at turn 1 there is no further error of the kinds other_action" in letter.detail


def test_verdicts_choose_and_a_second_run_changes_nothing(ruin: Path) -> None:
    run(ruin, "check_outcome", "verdicts", of=["won", "failed"], **ON)
    step = {"of": ["won", "failed"], "verdicts": "verdicts", "where": "success", "errors": ["other_action"], **ON}
    made = run(ruin, "inject", "bad", **step)
    assert (made.counts, made.reasons) == (Counts(read=8, used=4, dropped=4, written=4), {"not_success": 4})
    assert job(ruin, "inject", "bad", **step).finished()
    run(ruin, "inject", "again", **{**step, "of": ["failed", "won"]})
    for side in ("", "labels"):
        again, bad = (sorted(map(str, rows_of(ruin / table / side))) for table in ("again", "bad"))
        assert again == bad, "the order of tables decides nothing"
    run(ruin, "inject", "other", **{**step, "seed": 99})
    assert {row.trajectory_id for row in rows_of(ruin / "other")}.isdisjoint(
        row.trajectory_id for row in rows_of(ruin / "bad")
    )


def test_the_notes_count_kinds_and_draws_that_did_not_apply(ruin: Path) -> None:
    step = job(ruin, "inject", "bad", of="won", k=4, errors=["other_action", "repeat"], **ON)
    manifest = step.run()
    skipped = manifest.metrics.get("skipped.repeat", 0)
    assert skipped > 0, "the turn before did the same"
    kinds = f"errors: other_action {manifest.metrics['kind.other_action']:.0f}, repeat 0; {skipped:.0f} draws"
    assert step.parameters.notes(manifest)[0].startswith(kinds)


def test_an_actor_recovers_and_only_its_recovery_is_trained(ruin: Path) -> None:
    """AgentRefine: error, then correction; the loss is on what the label says comes after the error."""
    step = {"of": "won", "then": "actor", "policy": "p", "errors": ["other_action"], "tasks": "tasks"}
    made = run(ruin, "inject", "bad", actor("1.0"), k=4, **step, environments="environments")
    assert (made.counts.used, made.metrics["success"]) == (10, 9), "only from 1 the error loses at once"
    steps = [{"label": "inject", "equals": "after"}]
    rows = run(ruin, "sft", "rows", **{"from": "bad", "labels": "bad/labels", "steps": steps})
    assert (rows.counts.used, rows.reasons) == (9, {"no_loss": 1})
    bad = {row.trajectory_id: row for row in rows_of(ruin / "bad")}
    for row in rows_of(ruin / "rows"):
        turn = bad[row.trajectory_id].extra[INJECTED]["turn"]
        agent = [message for message in row.messages if message.role == "assistant"]
        assert [message.train for message in agent] == [number > turn for number in range(1, len(agent) + 1)]
        assert [message.content for message in agent if message.train] == ["right"] * (len(agent) - turn)
        assert agent[turn - 1].content == "left"


def test_labels_of_items_that_do_not_exist_are_counted_and_warned_of(ruin: Path) -> None:
    run(ruin, "inject", "bad", actor("1.0"), of="won", then="actor", policy="p", errors=["other_action"], **ON)
    labels = rows_of(ruin / "bad" / "labels")
    wrong = [msgspec.structs.replace(labels[0], item=item) for item in (-1, 99)]
    write_table(ruin / "labels", [[*labels, *wrong]], type(labels[0]))
    steps = [{"label": "inject", "one_of": ["before", "after"]}]
    step = job(ruin, "sft", "rows", **{"from": "bad", "labels": "labels", "steps": steps})
    manifest = step.run()
    assert manifest.metrics["annotations_of_no_item"] == 2
    [note] = [note for note in step.parameters.notes(manifest) if "items" in note]
    assert note.startswith("warning: 2 verdicts, labels or values name items that their trajectories do not have")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"then": "actor"}, ("rule-broken", "policy", "then: actor")),
        ({"policy": "p"}, ("rule-broken", "policy", "then: actor")),
        ({"temperature": 0.5}, ("rule-broken", "temperature", "then: actor")),
        ({"where": "success"}, ("rule-broken", "where: success", "verdicts")),
        ({"turns": "all"}, ("unknown-key", "turns")),
    ],
)
def test_mistakes_are_found_before_anything_runs(given: dict[str, Any], words: tuple[str, ...]) -> None:
    with user_error(*words):
        stage("inject", of="x", **ON, **given)
