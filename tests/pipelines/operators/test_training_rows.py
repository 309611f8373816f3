"""The operators that make training rows: every view is one, and class weights follow from counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.operators.operator import StepContext
from agentmill.pipelines.operators.registry import OPERATORS
from agentmill.pipelines.operators.training_rows import Families, Pairs, Rows, class_weights
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.trajectory import Outcome
from agentmill.schemas.tables import Table
from agentmill.schemas.views import FAMILY_VIEWS, PAIR_VIEWS, VIEWS
from tests.builders import agent_message, instruction, outcome, seen, tool_trajectory, trajectory, verdict
from tests.errors import user_error
from tests.pipelines.engine.stages import rows_of
from tests.pipelines.operators.steps import job, run, stage

ALL_VIEWS = [
    (name, views.load(name), base)
    for views, base in ((VIEWS, Rows), (PAIR_VIEWS, Pairs), (FAMILY_VIEWS, Families))
    for name in views
]


@pytest.mark.parametrize(("name", "view", "base"), ALL_VIEWS, ids=[name for name, _, _ in ALL_VIEWS])
def test_every_view_is_an_operator_with_its_parameters(name: str, view: Any, base: type[Rows]) -> None:
    operator = OPERATORS.load(name)
    assert issubclass(operator, base)
    assert issubclass(operator, view)
    assert operator.view_type is view
    assert view.name == name
    assert not set(view.model_fields) & set(Rows.model_fields)
    assert OPERATORS.load(name) is operator


@pytest.mark.parametrize(
    ("operator", "parameters", "wanted"),
    [
        (
            "sft",
            {"steps": [{"label": "step_judge", "equals": "critical"}]},
            "`steps: {label: step_judge}` needs `labels`",
        ),
        ("sft", {"weight": "value:mc"}, "`weight: value:mc` needs `values`"),
        ("unpaired", {"score": "verdict:judge"}, "`score: verdict:judge` needs `verdicts`"),
    ],
)
def test_what_is_asked_must_be_given(operator: str, parameters: dict[str, Any], wanted: str) -> None:
    with pytest.raises(UserError) as caught:
        stage(operator, **{"from": "x"}, **parameters).writes({"from": ["Trajectory"]})
    assert str(caught.value) == wanted
    assert stage("sft", **{"from": "x"}, weight="reward").writes({"from": ["Trajectory"]}) == "SftRow"


@pytest.mark.parametrize(
    ("operator", "parameters", "wanted"),
    [
        (
            "sft",
            {"from": "x", "verdicts": "v", "verdict": "judge"},
            ("rule-broken", "verdict: judge", "where: success"),
        ),
        ("pick", {"of": "x", "by": "shortest", "score": "reward"}, ("rule-broken", "by: shortest")),
    ],
)
def test_a_name_that_nothing_would_ask_is_refused(
    operator: str, parameters: dict[str, Any], wanted: tuple[str, ...]
) -> None:
    with user_error(*wanted):
        stage(operator, **parameters)


def test_balanced_classes_weigh_the_same(tmp_path: Path) -> None:
    runs = [trajectory(f"t{n}", outcome=outcome("success" if n < 3 else "failure")) for n in range(4)]
    unknown = trajectory("t4", outcome=outcome("unknown"))
    seed_table(tmp_path / "runs", [*runs, unknown])
    manifest = run(tmp_path, "unpaired", "rows", **{"from": "runs"}, balanced=True)
    rows = list(Table.open(tmp_path / "rows").rows())
    assert (manifest.counts.read, manifest.counts.dropped, manifest.counts.written) == (5, 1, 4)
    assert {(row.label, row.weight) for row in rows} == {(True, 4 / 6), (False, 2.0)}
    assert {row.view_parameters["undesirable_weight"] for row in rows} == {2.0}
    assert sum(row.weight for row in rows if row.label) == sum(row.weight for row in rows if not row.label)


def test_a_class_alone_is_not_weighed() -> None:
    assert class_weights(3, 0) == class_weights(0, 3) == (1.0, 1.0)


def test_weights_are_counted_or_given() -> None:
    with user_error("rule-broken", "balanced", "desirable_weight"):
        stage("unpaired", **{"from": "x"}, balanced=True, desirable_weight=2.0)


@pytest.mark.parametrize(("operator", "parameters"), [("sft", {}), ("trajectory_pairs", {"score": "reward"})])
def test_rows_of_tasks_that_were_set_aside_are_counted_and_warned_of(
    operator: str, parameters: dict[str, Any], tmp_path: Path
) -> None:
    runs = [
        trajectory(f"{split}-{number}", task_id=str(split), split=split, outcome=Outcome(reward=float(number)))
        for split in ("train", None, "held_out_tasks")
        for number in range(2)
    ]
    runs = [
        msgspec.structs.replace(run, content=[*run.content, agent_message(f"say {run.trajectory_id}", 3)])
        for run in runs
    ]
    seed_table(tmp_path / "runs", runs)
    manifest = run(tmp_path, operator, "rows", **{"from": "runs"}, **parameters)
    expected = 2 if operator == "sft" else 1
    assert {name: n for name, n in manifest.metrics.items() if "split" in name} == {
        "rows_of_split.held_out_tasks": expected
    }
    (note,) = stage(operator, **{"from": "runs"}, **parameters).notes(manifest)
    assert f"of {3 * expected} rows {expected} of held_out_tasks are not of split train" in note
    seed_table(tmp_path / "trained", runs[:4])
    clean = run(tmp_path, operator, "clean", **{"from": "trained"}, **parameters)
    assert stage(operator, **{"from": "trained"}, **parameters).notes(clean) == []


@pytest.mark.parametrize(("operator", "parameters"), [("sft", {}), ("trajectory_pairs", {"score": "reward"})])
def test_rows_of_a_given_split(operator: str, parameters: dict[str, Any], tmp_path: Path) -> None:
    content = [instruction(), agent_message("go"), seen("done", 1)]
    runs = [
        trajectory(
            f"t{number}", outcome=Outcome(reward=float(number)), content=[*content, agent_message(f"{number}", 2)]
        )
        for number in range(2)
    ]
    seed_table(tmp_path / "runs", runs)
    run(tmp_path, operator, "rows", **{"from": "runs"}, as_split="test", **parameters)
    assert {row.split for row in rows_of(tmp_path / "rows")} == {"test"}
    config = stage(operator, **{"from": "runs"}, **parameters).provenance_config(StepContext())
    assert "as_split" not in config


def test_rows_in_which_no_call_has_arguments_are_counted_and_noted(tmp_path: Path) -> None:
    acting = msgspec.structs.replace(tool_trajectory(), trajectory_id="calling")
    seed_table(tmp_path / "played", [trajectory("talking"), acting])
    step = job(tmp_path, "sft", "rows", **{"from": "played", "arguments": "untrained"})
    manifest = step.run()
    assert manifest.metrics["rows_without_arguments"] == 1
    (note,) = step.parameters.notes(manifest)
    assert note.startswith("warning: 1 of 2 rows have no arguments of calls")
    assert "rows_without_arguments" not in run(tmp_path, "sft", "plain", **{"from": "played"}).metrics


def test_critiques_are_read_of_the_evidence_of_judges(tmp_path: Path) -> None:
    seed_table(tmp_path / "runs", [trajectory("a"), trajectory("b"), trajectory("c")])
    judged = {"evidence": {"judges": [{"judge": "j", "score": 1.0, "reasons": "It is done."}]}}
    unscored = {"status": "unscored", "score": None, "passed": None, "reason": "cut_off", **judged}
    verdicts = [verdict("a", name="judge", **judged), verdict("b", name="judge", **unscored)]
    seed_table(tmp_path / "verdicts", verdicts)
    rows = {"from": "runs", "verdicts": "verdicts", "score": None, "critique": "judge"}
    manifest = run(tmp_path, "scorer_rows", "rows", **rows)
    assert (manifest.counts.written, manifest.reasons) == (1, {"unscored": 2})
    assert [(row.trajectory_id, row.critique) for row in rows_of(tmp_path / "rows")] == [("a", "It is done.")]
