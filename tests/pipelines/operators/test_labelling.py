"""What holds of all operators that label trajectories by others: whose these are, what is chosen, what is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.operators.labelling import Labelling
from agentmill.pipelines.operators.step_effect import StepEffect
from agentmill.pipelines.operators.tool_need import ToolNeed
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Label, Selection, Verdict
from agentmill.schemas.tables import Counts, Table
from agentmill.synthesis.verifiers.verifier import VerifierError
from tests.builders import agent_message, instruction, outcome, trajectory, verdict
from tests.errors import user_error
from tests.pipelines.engine.stages import bytes_of, dropped_of, rows_of, write_table
from tests.pipelines.operators.steps import job, run, stage

OTHERS: dict[str, dict[str, Any]] = {
    "step_agreement": {"branches": "others"},
    "step_effect": {"branches": "others"},
    "tool_need": {"attempts": "others", "score": "outcome", "min_attempts": 1},
}


def other(number: int, of: str = "a", turn: int | None = 2) -> Trajectory:
    """A trajectory that is a branch of another one, and an attempt at its task without tools."""
    content = [instruction(), agent_message("fly to box", 1), agent_message("put ball into box", 2)]
    return trajectory(
        f"other-{number}", parent_id=of, branch_turn=turn, task_id=f"task-{of}", content=content, outcome=outcome()
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Trajectories ``a`` and ``b``, and three others, of which one belongs to neither."""
    own = [trajectory(name, task_id=f"task-{name}", outcome=outcome("failure")) for name in "ab"]
    write_table(tmp_path / "own", [own[:1], own[1:]], Trajectory)
    write_table(tmp_path / "others", [[other(0), other(1)], [other(2, "nobody")]], Trajectory)
    return tmp_path


@pytest.mark.parametrize("operator", OTHERS)
def test_verdicts_and_labels_are_two_tables(operator: str, folder: Path) -> None:
    step = job(folder, operator, "found", of="own", **OTHERS[operator])
    manifest = step.run()
    verdicts = [each for each in rows_of(folder / "found") if each.item is None]
    assert {each.trajectory_id: each.status for each in verdicts} == {"a": "scored", "b": "unscored"}
    assert {each.name for each in verdicts} == {operator}
    labels = rows_of(folder / "found/labels")
    assert {type(each) for each in labels} == {Label}
    assert {each.trajectory_id for each in labels} == {"a"}
    assert manifest.metrics["labels"] == len(labels)
    assert (manifest.counts.read, manifest.counts.used) == (2, 2)
    role = step.parameters.relation.role  # type: ignore[attr-defined]
    assert (manifest.metrics[role], manifest.metrics[f"{role}_of_others"]) == (3, 1)
    notes = step.parameters.notes(manifest)
    assert [note for note in notes if f"1 trajectories of `{role}` belong to none" in note]
    assert [note for note in notes if "1 are unscored" in note]


@pytest.mark.parametrize("operator", OTHERS)
def test_order_of_tables_changes_nothing_and_a_finished_step_stays(operator: str, folder: Path) -> None:
    run(folder, operator, "one", of="own", **OTHERS[operator])
    rows = rows_of(folder / "others")
    for number, row in enumerate(rows[::-1]):
        write_table(folder / f"part{number}", [[row]], Trajectory)
    parts = [f"part{number}" for number in range(len(rows))]
    role = "attempts" if operator == "tool_need" else "branches"
    run(folder, operator, "two", of="own", **{**OTHERS[operator], role: parts})
    assert rows_of(folder / "one") == rows_of(folder / "two")
    assert rows_of(folder / "one/labels") == rows_of(folder / "two/labels")
    before = bytes_of(folder / "one")
    assert job(folder, operator, "one", of="own", **OTHERS[operator]).finished()
    assert bytes_of(folder / "one") == before


@pytest.mark.parametrize("operator", OTHERS)
def test_trajectories_that_are_not_chosen_are_dropped(operator: str, folder: Path) -> None:
    write_table(folder / "verdicts", [[verdict("a", False)]], Verdict)
    chosen = {"verdicts": "verdicts", "where": "failure"}
    manifest = run(folder, operator, "found", of="own", **chosen, **OTHERS[operator])
    assert (manifest.counts.used, manifest.reasons) == (1, {"unscored": 1})
    assert {each.trajectory_id for each in rows_of(folder / "found")} == {"a"}
    picked = [Selection(trajectory_id="b", name="picked", kept=False, reason="not_best")]
    write_table(folder / "picked", [picked], Selection)
    manifest = run(folder, operator, "picked-found", of="own", selections="picked", **OTHERS[operator])
    assert manifest.reasons == {"not_selected": 1}
    assert [letter.blamed for letter in dropped_of(folder / "picked-found")] == ["curation"]
    assert manifest.metrics["not_in_selections"] == 1


@pytest.mark.parametrize("operator", OTHERS)
def test_others_that_all_belong_elsewhere_are_refused(operator: str, folder: Path) -> None:
    write_table(folder / "others", [[other(0, "nobody"), other(1, "nowhere")]], Trajectory)
    code = "attempts-of-others" if operator == "tool_need" else "branches-of-others"
    with user_error(code, "others", "own") as caught:
        run(folder, operator, "found", of="own", **OTHERS[operator])
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize("operator", OTHERS)
def test_an_empty_table_leaves_all_unscored(operator: str, folder: Path) -> None:
    write_table(folder / "others", [[]], Trajectory)
    step = job(folder, operator, "found", of="own", **OTHERS[operator])
    manifest = step.run()
    assert manifest.counts == Counts(read=2, used=2, dropped=0, written=2)
    assert manifest.metrics["unscored"] == 2
    assert rows_of(folder / "found/labels") == []
    assert any("of 2 verdicts 2 are unscored" in note for note in step.parameters.notes(manifest))


@pytest.mark.parametrize("operator", OTHERS)
def test_a_sample_counts_once(operator: str, folder: Path) -> None:
    write_table(folder / "again", [[other(0)]], Trajectory)
    role = "attempts" if operator == "tool_need" else "branches"
    with user_error("record-twice", "other-0", "again"):
        run(folder, operator, "found", of="own", **{**OTHERS[operator], role: ["others", "again"]})


@pytest.mark.parametrize("operator", OTHERS)
def test_tables_of_other_records_are_refused(operator: str) -> None:
    role = "attempts" if operator == "tool_need" else "branches"
    step = stage(operator, **{"of": "own", role: "others", **({"score": "outcome"} if role == "attempts" else {})})
    with user_error("wrong-record-type", role, "Task"):
        step.writes({"of": ["Trajectory"], role: ["Task"]})
    with user_error("missing-key", role):
        stage(operator, of="own")


def test_what_belongs_to_nothing_is_counted(folder: Path) -> None:
    inputs = {"of": [Table.open(folder / "own")], "branches": [Table.open(folder / "others")]}
    assert StepEffect.relation.of_others(inputs) == 1
    nameless = [msgspec.structs.replace(other(number), parent_id=None, task_id=None) for number in range(2)]
    write_table(folder / "others", [nameless], Trajectory)
    write_table(folder / "own", [[trajectory("a", task_id=None)]], Trajectory)
    inputs = {"of": [Table.open(folder / "own")], "attempts": [Table.open(folder / "others")]}
    assert ToolNeed.relation.of_others(inputs) == 2, "no task is no task in common"
    assert ToolNeed.relation.of_others({}) == 0


def test_a_label_of_an_item_that_does_not_exist_breaks_the_contract(folder: Path) -> None:
    step = stage("step_effect", of="own", branches="others")

    class Wrong:
        """Labels an item behind the end."""

        def load(self) -> None:
            """Nothing is needed."""

        def findings(self, record: Trajectory, annotations: Any) -> Any:
            del annotations
            return [step.new_verdict(record, reason="none"), step.new_label(record, "harmful", 99)]  # type: ignore[attr-defined]

    operation: Any = step.operation({}, job(folder, "step_effect", "x", of="own", branches="others").context)
    assert isinstance(operation, Labelling)
    operation._source = Wrong()
    record = rows_of(folder / "own")[0]
    with pytest.raises(VerifierError, match="StepEffect: 'step_effect' is about item 99 of 6"):
        list(operation.process(record, (record.trajectory_id,)))
