"""``pick``: which trajectory of each task stays, and why the others do not."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmill.pipelines.operators.operator import StepContext
from agentmill.pipelines.operators.pick import Candidate, count_votes, ranked
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Trajectory, Usage
from agentmill.schemas.records.verdict import Selection, Value, Verdict
from agentmill.schemas.tables import Counts
from tests.builders import agent_message, called, instruction, outcome, seen, trajectory, verdict
from tests.errors import user_error
from tests.pipelines.engine.stages import rows_of, write_table
from tests.pipelines.operators.steps import job, model, run, stage
from tests.ruin_environment import SPEC, registered, ruin_task, win_probability


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Task a: a failure of 1 turn, successes of 2 turns and 20, 30, 10 tokens; task b: one without tokens."""
    short = trajectory().content[:3]
    rows = [
        trajectory("a0", task_id="a", attempt=0, outcome=outcome("failure"), content=short, usage=used(5)),
        trajectory("a1", task_id="a", attempt=1, usage=used(20)),
        trajectory("a2", task_id="a", attempt=2, usage=used(30)),
        trajectory("a3", task_id="a", attempt=3, usage=used(10)),
        trajectory("b0", task_id="b", attempt=0, outcome=outcome("failure")),
    ]
    write_table(tmp_path / "runs", [rows[3:], rows[:3]], Trajectory)
    scores = {"a0": 0.1, "a1": 0.4, "a2": 0.9, "a3": 0.9}
    said = [verdict(name, name="judge", score=score, passed=score > 0.2) for name, score in scores.items()]
    write_table(tmp_path / "verdicts", [said], Verdict)
    values = [Value(trajectory_id="a1", name="reward_model", value=3.0, estimator="m", n=1)]
    write_table(tmp_path / "values", [values], Value)
    chosen = [Selection(trajectory_id=row.trajectory_id, name="f", kept=row.trajectory_id != "a2") for row in rows]
    write_table(tmp_path / "chosen", [chosen], Selection)
    return tmp_path


def used(tokens: int) -> Usage:
    return Usage(completion_tokens=tokens)


def picked(folder: Path, **parameters: Any) -> dict[str, str | None]:
    """Why each was not kept; ``None`` for those that were."""
    manifest = run(folder, "pick", "picked", of="runs", **parameters)
    rows = rows_of(folder / "picked")
    assert manifest.counts == Counts(read=5, used=5, dropped=0, written=5)
    assert manifest.metrics["kept"] == sum(row.kept for row in rows)
    assert all(row.kept is (row.reason is None) for row in rows)
    return {row.trajectory_id: row.reason for row in rows}


@pytest.mark.parametrize(
    ("parameters", "kept", "others"),
    [
        ({}, {"a1", "b0"}, {"a0": "not_best", "a2": "not_best", "a3": "not_best"}),
        ({"k": 2}, {"a1", "a2", "b0"}, {"a0": "not_best", "a3": "not_best"}),
        ({"by": "first"}, {"a0", "b0"}, {"a1": "not_first", "a2": "not_first", "a3": "not_first"}),
        ({"by": "shortest"}, {"a0", "b0"}, {"a1": "not_shortest", "a2": "not_shortest", "a3": "not_shortest"}),
        (
            {"by": "cheapest"},
            {"a0"},
            {"a1": "not_cheapest", "a2": "not_cheapest", "a3": "not_cheapest", "b0": "unscored"},
        ),
        (
            {"score": "verdict:judge", "verdicts": "verdicts"},
            {"a2"},
            {"a0": "not_best", "a1": "not_best", "a3": "not_best", "b0": "unscored"},
        ),
        (
            {"score": "value:reward_model", "values": "values"},
            {"a1"},
            {"a0": "unscored", "a2": "unscored", "a3": "unscored", "b0": "unscored"},
        ),
        (
            {"by": "cheapest", "where": "success", "verdict": "judge", "verdicts": "verdicts"},
            {"a3"},
            {"a0": "not_success", "a1": "not_cheapest", "a2": "not_cheapest", "b0": "unscored"},
        ),
        (
            {"score": "verdict:judge", "verdicts": "verdicts", "selections": "chosen"},
            {"a3"},
            {"a0": "not_best", "a1": "not_best", "a2": "not_selected", "b0": "unscored"},
        ),
    ],
)
def test_one_of_each_task(parameters: dict[str, Any], kept: set[str], others: dict[str, str], runs: Path) -> None:
    assert picked(runs, **parameters) == {**dict.fromkeys(kept), **others}


def test_the_score_that_told_is_kept(runs: Path) -> None:
    picked(runs, score="verdict:judge", verdicts="verdicts")
    assert {row.trajectory_id: row.score for row in rows_of(runs / "picked")} == {
        "a0": 0.1,
        "a1": 0.4,
        "a2": 0.9,
        "a3": 0.9,
        "b0": None,
    }


def test_a_score_needs_its_table(runs: Path) -> None:
    with user_error("needs-another-key", "score: verdict:judge", "verdicts"):
        job(runs, "pick", "picked", of="runs", score="verdict:judge")


@given(
    st.permutations(
        [
            Candidate(name, key, None, attempt)
            for name, key, attempt in (("a", 1.0, 1), ("b", 1.0, 0), ("c", None, 0), ("d", -2.0, 5), ("e", 1.0, 0))
        ]
    )
)
def test_the_order_of_the_tables_does_not_matter(candidates: list[Candidate]) -> None:
    assert [each.trajectory_id for each in ranked(candidates)] == ["d", "b", "e", "a", "c"]


VOTES = {
    "a": ["Paris.", "Rome", "paris", None, "Paris!"],
    "b": ["3", "4"],
    "c": ["It is 1.5"],
    "d": ["x", "y", "y", "x", "z"],
}
"""The answers of the attempts of each task."""


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    """Attempts a0, a1 … of each task of ``VOTES``; a verdict on each of task a and on b1, with a score."""
    rows = [
        trajectory(
            f"{task}{attempt}",
            task_id=task,
            attempt=attempt,
            content=[instruction(), seen("Go."), *([] if text is None else [agent_message(text)])],
        )
        for task, texts in VOTES.items()
        for attempt, text in enumerate(texts)
    ]
    write_table(tmp_path / "runs", [rows[::2], rows[1::2]], Trajectory)
    scores = {"a0": 0.1, "a1": 0.75, "a2": 0.2, "a3": 0.9, "b1": 0.0}
    judged = [verdict(name, name="judge", score=score) for name, score in scores.items()]
    write_table(tmp_path / "verdicts", [judged], Verdict)
    return tmp_path


def voted(folder: Path, **parameters: Any) -> dict[str, tuple[str | None, float | None]]:
    """Why each was not kept, and the share of the votes."""
    manifest = run(folder, "pick", "voted", of="runs", by="vote", **parameters)
    rows = rows_of(folder / "voted")
    assert manifest.counts == Counts(read=13, used=13, dropped=0, written=13)
    assert all(row.kept is (row.reason is None) for row in rows)
    return {row.trajectory_id: (row.reason, row.score) for row in rows}


def test_vote_keeps_the_first_of_the_most_frequent_answer(answers: Path) -> None:
    assert voted(answers) == {
        "a0": (None, 0.75),
        "a1": ("outvoted", 0.25),
        "a2": ("not_first", 0.75),
        "a3": ("no_answer", None),
        "a4": ("not_first", 0.75),
        "b0": ("tie", 0.5),
        "b1": ("tie", 0.5),
        "c0": (None, 1.0),
        "d0": ("tie", 0.4),
        "d1": ("tie", 0.4),
        "d2": ("tie", 0.4),
        "d3": ("tie", 0.4),
        "d4": ("outvoted", 0.2),
    }


def test_vote_keeps_k_and_the_first_answer_of_a_tie(answers: Path) -> None:
    found = voted(answers, k=2, ties="first")
    assert {name for name, (reason, _) in found.items() if reason is None} == {"a0", "a2", "b0", "c0", "d0", "d3"}
    assert {found[name][0] for name in ("a1", "b1", "d1", "d2", "d4")} == {"outvoted"}
    assert found["a4"] == ("not_first", 0.75)


def test_votes_may_be_weighed_by_a_score(answers: Path) -> None:
    found = voted(answers, verdicts="verdicts", score="verdict:judge")
    # Rome has 0.75 of 1.05, Paris 0.1 + 0.2; the vote of a4 has no weight that is known.
    assert found["a1"] == (None, pytest.approx(0.75 / 1.05))
    assert found["a0"] == found["a2"] == ("outvoted", pytest.approx(0.3 / 1.05))
    assert (found["a3"], found["a4"], found["b0"]) == (("no_answer", None), ("unscored", None), ("unscored", None))
    # The only vote of the task, with the weight 0.
    assert found["b1"] == (None, 0.0)


def test_a_vote_of_negative_weight_is_refused(answers: Path) -> None:
    values = [Value(trajectory_id="a0", name="worth", value=-0.5, estimator="m", n=1)]
    write_table(answers / "values", [values], Value)
    with user_error("number-out-of-range", "value:worth", "a0", "-0.5"):
        run(answers, "pick", "voted", of="runs", by="vote", values="values", score="value:worth")


def test_only_what_the_filter_keeps_votes(answers: Path) -> None:
    rows = [Selection(trajectory_id=name, name="f", kept=False) for name in ("a0", "a2", "d0", "d3")]
    write_table(answers / "chosen", [rows], Selection)
    found = voted(answers, selections="chosen")
    assert (found["a1"], found["a4"]) == (("tie", 0.5), ("tie", 0.5))
    assert found["a0"] == ("not_selected", None)
    assert (found["d1"], found["d4"]) == ((None, pytest.approx(2 / 3)), ("outvoted", pytest.approx(1 / 3)))


def test_the_answer_is_the_last_item_that_a_pattern_fits(tmp_path: Path) -> None:
    contents = {
        "t0": [called("submit", 1, text="red"), called("submit", 2, text="blue"), agent_message("Done, red.", 3)],
        "t1": [called("submit", 1, text="The Blue"), agent_message("All done.", 2)],
        "t2": [called("submit", 1, text="red"), agent_message("Bye.", 2)],
        "t3": [agent_message("blue", 1)],
    }
    rows = [
        trajectory(name, task_id="t", attempt=attempt, content=[instruction(), *content])
        for attempt, (name, content) in enumerate(contents.items())
    ]
    write_table(tmp_path / "runs", [rows], Trajectory)
    run(tmp_path, "pick", "voted", of="runs", by="vote", k=9, answer={"tool": "submit"})
    found = {row.trajectory_id: (row.reason, row.score) for row in rows_of(tmp_path / "voted")}
    two = pytest.approx(2 / 3)
    assert found == {
        "t0": (None, two),
        "t1": (None, two),
        "t2": ("outvoted", pytest.approx(1 / 3)),
        "t3": ("no_answer", None),
    }


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"ties": "first"}, ("ties", "by: vote", "by: best")),
        ({"by": "shortest", "answer": {"tool": "submit"}}, ("answer", "by: shortest")),
    ],
)
def test_parameters_of_a_vote_need_a_vote(parameters: dict[str, Any], words: tuple[str, ...]) -> None:
    with user_error("rule-broken", *words):
        stage("pick", of="runs", **parameters)


def test_a_vote_adds_nothing_to_the_provenance_of_other_picks() -> None:
    given = stage("pick", of="runs").provenance_config(StepContext())
    assert (given["by"], given["score"]) == ("best", "outcome")
    assert not {"answer", "ties"} & given.keys()
    vote = stage("pick", of="runs", by="vote").provenance_config(StepContext())
    assert vote["ties"] == "drop"
    assert "score" not in vote
    assert stage("pick", of="runs", by="vote", score="outcome").provenance_config(StepContext())["score"] == "outcome"


def test_votes_that_differ_by_rounding_tie() -> None:
    candidates = [
        Candidate(f"t{attempt}", 0.0, weight, attempt, answer)
        for attempt, (answer, weight) in enumerate((("x", 0.1), ("y", 0.3), ("x", 0.2)))
    ]
    assert [reason for _, reason, _ in count_votes(candidates, 1, "drop")] == ["tie", "tie", "tie"]
    assert [reason for _, reason, _ in count_votes(candidates, 1, "first")] == [None, "outvoted", "not_first"]


@given(
    st.permutations(
        [
            Candidate(f"t{attempt}", 0.0, weight, attempt, answer)
            for attempt, (answer, weight) in enumerate((("x", 0.1), ("y", 0.7), ("x", 0.2), (None, 1.0), ("z", 1e-17)))
        ]
    )
)
def test_the_order_of_the_votes_does_not_matter(candidates: list[Candidate]) -> None:
    found = {each.trajectory_id: (reason, share) for each, reason, share in count_votes(candidates, 1, "drop")}
    assert found["t1"][0] is None
    assert (found["t0"], found["t3"]) == (("outvoted", found["t2"][1]), ("no_answer", None))


def test_best_of_n_succeeds_as_often_as_it_must(tmp_path: Path) -> None:
    """Of n tries with success probability v the best succeeds with 1 - (1 - v)^n; a 99.9 % interval around that."""
    tasks, n = 120, 4
    value = win_probability(2, 5, 0.5)
    expected = 1 - (1 - value) ** n
    write_table(tmp_path / "tasks", [[ruin_task(2, 5, f"t{number:03d}") for number in range(tasks)]], Task)
    write_table(tmp_path / "environments", [[SPEC]], EnvironmentSpec)
    on = {"tasks": "tasks", "environments": "environments"}
    with registered():
        run(tmp_path, "sample", "tried", {"actor": model("gambler", turns=["0.5"])}, policy="p", k=n, **on)
        run(tmp_path, "check_outcome", "verdicts", of="tried", **on)
        best = {"of": "tried", "verdicts": "verdicts", "score": "verdict:check_outcome"}
        assert run(tmp_path, "pick", "best", **best).metrics == {"kept": tasks, "left_out.not_best": tasks * (n - 1)}
        rows = run(
            tmp_path, "sft", "rows", **{"from": "tried"}, selections="best", verdicts="verdicts", where="success"
        )
    share = rows.counts.used / tasks
    assert abs(share - expected) < 3.29 * math.sqrt(expected * (1 - expected) / tasks)
    assert rows.reasons["not_selected"] == tasks * (n - 1)
    assert len({row.task_id for row in rows_of(tmp_path / "rows")}) == rows.counts.used
