"""Audits of judges: what is paired, what is dropped and why, what is refused, and where the result is shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.calibration import Calibration, Confusion, JudgedBy
from agentmill.pipelines.operators.audit_judge import AuditJudge, family, judge_models
from agentmill.pipelines.operators.operator import Inputs, StepContext
from agentmill.pipelines.publish.bundle import Published, with_origins
from agentmill.pipelines.publish.facts import verifiers
from agentmill.pipelines.report.page import write_report
from agentmill.pipelines.runs.run import read_run
from agentmill.schemas.config import dump_yaml, validate
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Label, Verdict
from agentmill.schemas.tables import Table
from tests.builders import generation, trajectory, verdict
from tests.errors import shows, user_error
from tests.pipelines.cli.tables import agentmill
from tests.pipelines.engine.stages import write_table

JUDGE = "judge:Qwen/Qwen2.5-7B-Instruct@0123456789ab"
PROMPT = "5f2c"


def judged(trajectory_id: str, passed: bool | None = True, prompt: str = PROMPT, **fields: Any) -> Verdict:
    """A verdict of a judge; ``passed=None`` is unscored."""
    values: dict[str, Any] = {"name": "judge", "judge": JUDGE, "evidence": {"prompt": prompt}, **fields}
    if passed is None:
        values = {"status": "unscored", "score": None, "reason": "no_answer", **values}
    return msgspec.structs.replace(verdict(trajectory_id, **values), passed=passed)


def labelled(trajectory_id: str, value: str, **fields: Any) -> Label:
    return Label(trajectory_id=trajectory_id, name="human", value=value, labeller="ann", **fields)


def table(folder: Path, rows: Sequence[Record], record_type: type[Record] = Verdict) -> Table:
    return write_table(folder, [rows], record_type)


def fifty(prompt: str = PROMPT) -> tuple[list[Verdict], list[Verdict]]:
    """The verdicts of a judge and of a reference: 20 both pass, 5 and 10 differ, 15 both fail."""
    pairs = [(True, True)] * 20 + [(True, False)] * 5 + [(False, True)] * 10 + [(False, False)] * 15
    judge = [judged(f"t{n}", says, prompt) for n, (_, says) in enumerate(pairs)]
    return judge, [verdict(f"t{n}", right) for n, (right, _) in enumerate(pairs)]


def tables(folder: Path, judge: Sequence[Record], reference: Sequence[Record]) -> dict[str, list[Table]]:
    """The inputs of a step."""
    kind = type(reference[0])
    return {"of": [table(folder / "judged", judge)], "reference": [table(folder / "reference", reference, kind)]}


def audit(inputs: Inputs, **parameters: Any) -> Calibration:
    """The calibration of these tables."""
    step: AuditJudge = validate(AuditJudge, {**dict.fromkeys(inputs, "x"), **parameters}, "audit_judge")
    step.writes({role: [each.manifest.record for each in held] for role, held in inputs.items()})
    step.check_inputs(inputs)
    return step.calibrate(inputs, StepContext())


def test_a_known_table(tmp_path: Path) -> None:
    found = audit(tables(tmp_path, *fifty()))
    assert (found.name, found.reference_name, found.n) == ("judge", "check_outcome", 50)
    assert found.confusion == Confusion(20, 5, 10, 15)
    assert found.agreement.value == pytest.approx(0.7)
    assert found.kappa.value == pytest.approx(0.4)
    assert found.false_positive_rate.value == pytest.approx(0.4)
    assert found.false_negative_rate.value == pytest.approx(0.2)
    assert found.judged_by == [JudgedBy(JUDGE, PROMPT, 50)]
    assert found.notes == []


def test_every_verdict_of_the_judge_is_used_or_dropped_with_a_reason(tmp_path: Path) -> None:
    judge = [
        *(judged(each, True) for each in "abcdx"),
        judged("e", None),
        judged("f", None, status="error"),
        judged("g", None, status="scored"),
        judged("a", False, item=3),
        verdict("a", name="judge/tone"),
    ]
    reference = [
        verdict("a"),
        verdict("b", False),
        judged("c", None, name="check_outcome"),
        verdict("d", passed=True, name="check_outcome", item=1),
        *(verdict(each) for each in "efgyz"),
        msgspec.structs.replace(verdict("x"), passed=None),
    ]
    found = audit(tables(tmp_path, judge, reference))
    assert found.reasons == {
        "judge_error": 1,
        "judge_unscored": 1,
        "judge_without_passed": 1,
        "no_reference": 1,
        "reference_unscored": 1,
        "reference_without_passed": 1,
    }
    counts = found.counts
    assert (counts.read, counts.used, counts.dropped) == (8, 2, 6)
    assert found.unjudged == 2
    assert "2 trajectories have a reference and no verdict of the judge" in found.notes
    assert "warning: only 2 pairs, so the intervals are wide; compare 30 or more" in found.notes


def test_human_labels_as_reference(tmp_path: Path) -> None:
    labels = [labelled("a", "good"), labelled("b", "fair"), labelled("c", "bad"), labelled("c", "good", item=1)]
    inputs = tables(tmp_path, [judged("a"), judged("b", False), judged("c")], labels)
    assert audit(inputs, positive=["good"]).confusion == Confusion(1, 0, 1, 1)
    found = audit(inputs, positive=["good", "fiar"])
    assert "warning: no label has the value 'fiar' of `positive`. Did you mean 'fair'?" in found.notes


def test_one_class_has_no_kappa(tmp_path: Path) -> None:
    ids = [f"t{n}" for n in range(40)]
    found = audit(tables(tmp_path, [judged(each) for each in ids], [verdict(each) for each in ids]))
    assert (found.agreement.value, found.kappa.value, found.kappa.ci95) == (1.0, None, None)
    assert found.notes == ["warning: both pass every trajectory, so kappa is not defined"]
    assert b"NaN" not in msgspec.json.encode(found)


def test_tables_without_a_common_trajectory(tmp_path: Path) -> None:
    found = audit(tables(tmp_path, [judged("a"), judged("b")], [verdict("c")]))
    assert (found.n, found.agreement.value, found.kappa.value, found.judged_by) == (0, None, None, [])
    assert found.reasons == {"no_reference": 2}
    assert found.notes[0].startswith("warning: no pair to compare (no_reference 2)")


def test_a_low_kappa_and_several_prompts_are_warned_of(tmp_path: Path) -> None:
    judge, reference = fifty()
    others = [msgspec.structs.replace(each, passed=not each.passed, evidence={"prompt": "99"}) for each in judge[20:]]
    found = audit(tables(tmp_path, [*judge[:20], *others], reference))
    assert found.judged_by == [JudgedBy(JUDGE, PROMPT, 20), JudgedBy(JUDGE, "99", 30)]
    assert any("2 judges or prompts are measured together" in each for each in found.notes)
    same = audit(tables(tmp_path / "low", [judged(f"t{n}", n % 2 == 0) for n in range(50)], reference))
    assert any("below 0.4; do not rely on this judge" in each for each in same.notes)


@pytest.mark.parametrize(
    ("judge", "writer", "shared"),
    [
        (JUDGE, "Qwen2.5-0.5B", "qwen"),
        ("jury:mistral-7b@a,org/SmolLM2-1.7B@b", "bundled:smollm2-135m-instruct", "smollm"),
        (JUDGE, "Llama-3-8B", None),
        ("environment", "environment-1", None),
    ],
)
def test_judge_and_generator_of_one_family(tmp_path: Path, judge: str, writer: str, shared: str | None) -> None:
    verdicts, reference = fifty()
    inputs = tables(tmp_path, [msgspec.structs.replace(each, judge=judge) for each in verdicts], reference)
    played = [trajectory("t1", generation=generation(model=writer)), trajectory("t2", generation=None)]
    # One that was not judged says nothing of the judge.
    played += [trajectory("elsewhere", generation=generation(model="qwen-x"))]
    found = audit({**inputs, "trajectories": [table(tmp_path / "explored", played, Trajectory)]})
    assert [each for each in found.notes if "family" in each] == (
        [] if shared is None else [each for each in found.notes if f"{writer} wrote" in each and f" {shared};" in each]
    )
    assert any("family" in each for each in found.notes) is (shared is not None)


def test_families_are_the_leading_letters_of_the_name() -> None:
    names = ("Qwen/Qwen2.5-7B", "bundled:smollm2-135m-instruct", "/models/Llama-3/", "gpt-4o", "7b")
    assert [family(each) for each in names] == ["qwen", "smollm", "llama", "gpt", ""]
    assert judge_models("jury:A/x@1,B@2") == ["A/x", "B"]
    assert judge_models("judge:bundled:smollm2@abc") == ["bundled:smollm2"]
    assert judge_models("judge:plain") == ["plain"]
    assert judge_models("environment") == []


@pytest.mark.parametrize(
    ("parameters", "code", "words"),
    [
        ({"verdict": "juge"}, "annotation-missing", ("`verdict`", "'juge'", "Did you mean 'judge'?")),
        ({"verdict": "on_steps"}, "annotation-missing", ("'on_steps'", "of a whole trajectory")),
        (
            {"verdict": "judge", "reference_name": "check_outcom"},
            "annotation-missing",
            ("`reference_name`", "'check_outcome'?"),
        ),
        ({}, "several-match", ("`of`", "judge, other", "verdict: …")),
        ({"verdict": "judge", "positive": ["good"]}, "key-not-for-this", ("`positive`", "leave it out")),
    ],
)
def test_names_that_are_not_there(tmp_path: Path, parameters: dict[str, Any], code: str, words: Sequence[str]) -> None:
    judge = [judged("a"), verdict("a", name="other"), verdict("a", name="on_steps", item=1)]
    inputs = tables(tmp_path, judge, [verdict("a")])
    with user_error(code, *words) as caught:
        audit(inputs, **parameters)
    assert len(str(caught.value).splitlines()) <= 2


def test_labels_without_positive_values(tmp_path: Path) -> None:
    inputs = tables(tmp_path, [judged("a")], [labelled("a", "good")])
    with user_error("needs-another-key", "`positive`", "labels"):
        audit(inputs)
    with user_error("annotation-missing", "gud", "values there: good", "Did you mean 'good'?"):
        audit(inputs, positive=["gud"])
    with user_error("invalid-value", "positive"):
        audit(inputs, positive=[])
    steps = tables(tmp_path / "steps", [judged("a")], [labelled("a", "good", item=2)])
    with user_error("no-records", "`reference`", "whole trajectory"):
        audit(steps, positive=["good"])


def test_tables_of_other_records_and_different_verdicts_are_refused(tmp_path: Path) -> None:
    wrong = {"of": [table(tmp_path / "t", [trajectory()], Trajectory)], "reference": [table(tmp_path / "v", [])]}
    with user_error("wrong-record-type", "of holds Trajectory"):
        audit(wrong)
    twice = tables(tmp_path / "twice", [judged("a")], [verdict("a")])
    twice["of"].append(table(tmp_path / "other", [judged("a", False)]))
    with user_error("records-conflict", "trajectory a"):
        audit(twice)


def recipe(folder: Path, *steps: dict[str, Any], **data: str) -> Path:
    """A recipe over tables of ``folder``, which runs into ``folder/run``."""
    path = folder / "recipe.yaml"
    given = {"name": "audit", "run_dir": str(folder / "run"), "data": data, "steps": list(steps)}
    path.write_text(dump_yaml(given), encoding="utf-8")
    return path


AUDIT = {"operator": "audit_judge", "of": "judged", "reference": "outcomes", "as": "calibration"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run with an audit; its tables and the recipe are in the folder above."""
    judge, reference = fifty()
    table(tmp_path / "judged", judge)
    table(tmp_path / "outcomes", reference)
    data = {name: str(tmp_path / name) for name in ("judged", "outcomes")}
    assert agentmill("run", recipe(tmp_path, {**AUDIT, "verdict": "judge"}, **data)) == 0
    return tmp_path / "run"


def test_the_step_writes_its_result_once_and_the_summary_shows_it(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run / "calibration/calibration.json"
    content, time = file.read_bytes(), file.stat().st_mtime_ns
    summary = json.loads((run / "summary.json").read_bytes())["stages"]["calibration"]
    assert (summary["read"], summary["used"], summary["dropped"], summary["written"]) == (50, 50, 0, 0)
    assert summary["notes"][0].startswith("judge: agreement 70.0 % [56.2, 80.9], kappa 0.40 [")
    assert agentmill("run", run.parent / "recipe.yaml") == 0
    assert f"calibration: {summary['notes'][0]}" in capsys.readouterr().out
    assert (file.read_bytes(), file.stat().st_mtime_ns) == (content, time), "it is found done"
    file.write_bytes(content[:90])
    assert agentmill("run", run.parent / "recipe.yaml") == 0
    assert file.read_bytes() == content, "a damaged one is made again, and equal"
    given = json.loads(content)
    assert given["inputs"]["of"] == [Table.open(run.parent / "judged").digest]
    assert given["config"] == {"verdict": "judge", "reference_name": None, "positive": None}


def test_other_tables_are_audited_anew(run: Path) -> None:
    judge, _ = fifty()
    table(run.parent / "more", judge[:40])
    data = {"judged": str(run.parent / "more"), "outcomes": str(run.parent / "outcomes")}
    assert agentmill("run", recipe(run.parent, AUDIT, **data)) == 0
    assert json.loads((run / "calibration/calibration.json").read_bytes())["n"] == 40


def test_a_name_that_is_not_there_ends_the_run_before_it_starts(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = {name: str(run.parent / name) for name in ("judged", "outcomes")}
    assert agentmill("run", "--dry-run", recipe(run.parent, {**AUDIT, "verdict": "juge"}, **data)) == 2
    assert shows(capsys.readouterr().err, "annotation-missing", "juge", "Did you mean 'judge'?")


def judged_in_run(run: Path, prompt: str) -> Table:
    """A table of verdicts in the run, as a step of it leaves it."""
    judge, _ = fifty(prompt)
    return table(run / "judged", judge)


@pytest.mark.parametrize(
    ("prompt", "text"),
    [(PROMPT, "agreement 70.0 % [56.2, 80.9], kappa 0.40 ["), ("abcd", "uncalibrated: its prompt is not the one")],
)
def test_cards_and_reports_show_the_calibration(run: Path, prompt: str, text: str) -> None:
    verdicts = judged_in_run(run, prompt)
    bundle = with_origins([Published("judged", verdicts)], run)
    (row,) = verifiers(bundle.origins, bundle.calibrations)
    assert row["calibration"].startswith(text)
    step = {"operator": "check_rules", "of": "outcomes", "rules": [{"id": "a", "legal": True}], "as": "judged"}
    given = dump_yaml({"name": "audit", "run_dir": str(run), "data": {"outcomes": "x"}, "steps": [step, AUDIT]})
    (run / "recipe.yaml").write_text(given, encoding="utf-8")
    # As the audit of this very table has left it.
    file = run / "calibration/calibration.json"
    held = json.loads(file.read_bytes())
    file.write_bytes(msgspec.json.encode({**held, "inputs": {"of": [verdicts.digest], "reference": ["elsewhere"]}}))
    write_report(run, run.parent / "page.html")
    page = (run.parent / "page.html").read_text(encoding="utf-8")
    assert text in page
    assert "Audits of judges" in page


def test_a_calibration_of_other_tables_is_not_of_the_run(run: Path) -> None:
    file = run / "calibration/calibration.json"
    held = json.loads(file.read_bytes())
    (stage,) = read_run(run).stages
    assert stage.calibration is not None
    assert stage.summary is not None
    assert stage.summary.notes == stage.calibration.lines
    file.write_bytes(msgspec.json.encode({**held, "inputs": {"of": ["a", "b"], "reference": ["c"]}}))
    (stage,) = read_run(run).stages
    assert (stage.state, stage.calibration) == ("made from other inputs", None)
    file.write_bytes(b"{")
    with user_error("damaged-file", "calibration.json"):
        read_run(run)
    with user_error("damaged-file", "calibration.json"):
        _ = with_origins([], run).calibrations
