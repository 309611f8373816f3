"""Which tasks a band of difficulty keeps, by the attempts of a solver, and what later steps make of them."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from agentmill.pipelines.recipes.grammar import Recipe
from agentmill.pipelines.recipes.plan import make_plan
from agentmill.schemas.config import validate
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Selection, TaskSelection, Value, Verdict
from agentmill.schemas.tables import Counts, Manifest, Table
from agentmill.synthesis.rollouts.episode import TIMEOUT
from tests.builders import agent_message, called, instruction, outcome, task, trajectory, verdict
from tests.errors import user_error
from tests.pipelines.engine.stages import bytes_of, rows_of, write_table
from tests.pipelines.operators.steps import job, model, run, stage
from tests.ruin_environment import SPEC, registered, ruin_task, win_probability

ATTEMPTS = {"easy": "1111", "medium": "0110", "hard": "0001", "never": "0000", "open": "1?0?", "once": "1"}
"""Whether each attempt at a task succeeded; "?" is not known. There is none at the task ``untried``."""

ON = {"of": "tasks", "attempts": "tries"}

Found = dict[str, tuple[str | None, float | None]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The tasks, the attempts of ``ATTEMPTS`` in two shards, and a verdict on each that is known."""
    write_table(tmp_path / "tasks", [[task(name) for name in ATTEMPTS], [task("untried")]], Task)
    write_attempts(tmp_path / "tries", ATTEMPTS)
    known = [row for row in rows_of(tmp_path / "tries") if row.outcome.status != "unknown"]
    # A judge who finds the opposite, and takes the number of the attempt for progress.
    judged = [
        verdict(row.trajectory_id, row.outcome.status != "success", name="judge", score=row.attempt / 4)
        for row in known
    ]
    write_table(tmp_path / "verdicts", [judged], Verdict)
    return tmp_path


def write_attempts(folder: Path, attempts: Mapping[str, str]) -> None:
    """Trajectories whose outcomes are the marks of their tasks."""
    outcomes = {"1": outcome("success"), "0": outcome("failure"), "?": outcome("unknown")}
    rows = [
        trajectory(f"{name}-{n}", task_id=name, attempt=n, outcome=outcomes[mark])
        for name, marks in attempts.items()
        for n, mark in enumerate(marks)
    ]
    write_table(folder, [rows[::2], rows[1::2]], Trajectory)


def banded(folder: Path, name: str = "band", **parameters: Any) -> tuple[Found, Manifest]:
    """The reason and the score of each selection in the table ``name``, and its manifest."""
    manifest = run(folder, "difficulty_band", name, **{**ON, **parameters})
    rows = rows_of(folder / name)
    assert manifest.counts == Counts(read=len(rows), used=len(rows), dropped=0, written=len(rows))
    assert manifest.metrics["kept"] == sum(row.kept for row in rows)
    counted = Counter(f"{'kept' if row.kept else 'left_out'}.{row.reason}" for row in rows if row.reason is not None)
    assert counted == {name: n for name, n in manifest.metrics.items() if "." in name}
    ids = [row.task_id if isinstance(row, TaskSelection) else row.trajectory_id for row in rows]
    return {each: (row.reason, row.score) for each, row in zip(ids, rows, strict=True)}, manifest


def kept(folder: Path, name: str = "band") -> set[str]:
    return {row.task_id for row in rows_of(folder / name) if row.kept}


def notes(manifest: Manifest, **parameters: Any) -> list[str]:
    return stage("difficulty_band", **{**ON, **parameters}).notes(manifest)


def test_tasks_in_the_band_are_kept_and_the_others_say_why(folder: Path) -> None:
    found, manifest = banded(folder, at_least=0.25, at_most=0.75)
    assert found == {
        "easy": ("too_easy", 1.0),
        "medium": (None, 0.5),
        "hard": (None, 0.25),
        "never": ("too_hard", 0.0),
        "open": (None, 0.5),
        "once": ("too_easy", 1.0),
        "untried": ("too_few_attempts", None),
    }
    assert {row.name for row in rows_of(folder / "band")} == {"difficulty_band"}
    # Of the one attempt at ``once`` the rate is 0 or 1; of the two at ``open`` the steps are as wide as the band.
    attempts = {"attempts": 19, "attempts_unscored": 2, "rates_too_coarse": 1}
    reasons = {"left_out.too_easy": 2, "left_out.too_hard": 1, "left_out.too_few_attempts": 1}
    assert manifest.metrics == {"kept": 3, **reasons, **attempts}


@pytest.mark.parametrize(
    ("band", "expected"),
    [
        ({"at_most": 0.25}, {"hard", "never"}),
        ({"at_least": 1.0}, {"easy", "once"}),
        ({"at_least": 0.5, "at_most": 0.5}, {"medium", "open"}),
        ({"at_most": 0.5, "min_attempts": 3}, {"medium", "hard", "never"}),
        ({"at_most": 0.5, "min_attempts": 3, "unknown": "keep"}, {*ATTEMPTS, "untried"} - {"easy"}),
    ],
)
def test_bands(band: dict[str, Any], expected: set[str], folder: Path) -> None:
    banded(folder, **band)
    assert kept(folder) == expected


def test_a_task_that_is_kept_unknown_says_so(folder: Path) -> None:
    band = {"at_most": 0.5, "min_attempts": 4, "unknown": "keep"}
    found, manifest = banded(folder, **band)
    assert found["open"] == ("too_few_attempts", 0.5)
    assert found["once"] == ("too_few_attempts", 1.0)
    assert found["untried"] == ("too_few_attempts", None)
    assert notes(manifest, **band) == [
        "warning: 3 of 7 have fewer scored attempts than min_attempts: 4, and are kept (unknown: keep)",
        "warning: 2 attempts have no score, and do not count",
    ]


def test_a_pass_rate_is_of_verdicts_and_a_mean_of_scores(folder: Path) -> None:
    judged = {"verdicts": "verdicts", "at_least": 0.3}
    found, _ = banded(folder, score="passed:judge", **judged)
    assert (found["easy"], found["hard"]) == (("too_hard", 0.0), (None, 0.75))
    found, manifest = banded(folder, "progress", score="verdict:judge", **judged)
    # The mean of 0, 1, 2 and 3 quarters; of ``open`` the attempts 0 and 2 are judged.
    assert (found["easy"], found["open"], found["once"]) == ((None, 0.375), ("too_hard", 0.25), ("too_hard", 0.0))
    assert "rates_too_coarse" not in manifest.metrics, "a mean of scores is no multiple of 1/n"


def test_attempts_that_the_clock_ended_are_not_counted_as_failures(folder: Path) -> None:
    rows = list(rows_of(folder / "tries"))
    late = [
        replace(row, outcome=replace(row.outcome, reason=TIMEOUT)) if row.task_id == "hard" else row for row in rows
    ]
    write_table(folder / "late", [late], Trajectory)
    found, manifest = banded(folder, attempts="late", at_least=0.5)
    assert found["hard"] == (None, 1.0), "of four attempts the one that passed before its time ran out"
    assert manifest.metrics["attempts_unscored"] == 5


def test_the_score_of_a_critic_may_lie_outside_of_0_to_1(folder: Path) -> None:
    values = [Value(trajectory_id=f"{name}-0", name="critic", value=v, estimator="m", n=1) for name, v in
              (("easy", 3.0), ("hard", -2.5))]  # fmt: skip
    write_table(folder / "values", [values], Value)
    found, _ = banded(folder, values="values", score="value:critic", at_most=-1.0)
    assert (found["easy"], found["hard"]) == (("too_easy", 3.0), (None, -2.5))
    assert found["medium"] == ("too_few_attempts", None)


def test_a_vote_measures_by_the_share_of_the_most_frequent_answer(tmp_path: Path) -> None:
    answers = {"agreed": ["4", "four", "4.0", "4"], "split": ["x", "y", "Y.", "x"], "silent": [None, None]}
    rows = [
        trajectory(
            f"{name}-{n}",
            task_id=name,
            content=[instruction(), *([] if text is None else [called("submit", text=text)]), *filler(text)],
        )
        for name, texts in answers.items()
        for n, text in enumerate(texts)
    ]
    write_table(tmp_path / "tries", [rows], Trajectory)
    write_table(tmp_path / "tasks", [[task(name) for name in answers]], Task)
    vote = {"by": "vote", "answer": {"tool": "submit"}, "at_most": 0.6}
    found, manifest = banded(tmp_path, **vote)
    assert found == {"agreed": ("too_easy", 0.75), "split": (None, 0.5), "silent": ("too_few_attempts", None)}
    assert (manifest.metrics["attempts"], manifest.metrics["attempts_unscored"]) == (8, 2)
    assert "warning: 2 attempts have no answer, and do not count" in notes(manifest, **vote)
    # Without a pattern the last message answers, which is the same in all.
    assert banded(tmp_path, "last", by="vote", at_most=0.6)[0]["split"] == ("too_easy", 1.0)


def filler(text: str | None) -> list[Any]:
    """A message after the answer."""
    return [] if text is None else [agent_message("Done.", 2)]


def test_trajectories_are_selected_by_their_own_rate(folder: Path) -> None:
    rows = [*rows_of(folder / "tries"), trajectory("stray", task_id=None)]
    write_table(folder / "all", [rows[:9], rows[9:]], Trajectory)
    found, manifest = banded(folder, of="all", attempts=None, at_least=0.25, at_most=0.75)
    assert {name for name, (reason, _) in found.items() if reason is None} == {
        f"{name}-{n}" for name in ("medium", "hard", "open") for n in range(4)
    }
    assert found["open-1"] == (None, 0.5), "its own outcome is unknown, its task is not"
    assert found["stray"] == ("no_task", None)
    assert {type(row) for row in rows_of(folder / "band")} == {Selection}
    # Each attempt is counted once, though each task is met once for each.
    assert (manifest.metrics["attempts"], manifest.metrics["attempts_unscored"]) == (19, 2)
    assert "warning: 1 of 22 have no task, and are not kept (unknown: drop)" in notes(manifest, at_least=0.25)


def test_trajectories_may_be_selected_by_the_attempts_of_another_solver(folder: Path) -> None:
    rows = [trajectory(f"expert-{name}", task_id=name) for name in ("easy", "medium", "elsewhere")]
    write_table(folder / "shown", [rows], Trajectory)
    found, manifest = banded(folder, of="shown", at_most=0.5)
    assert found == {
        "expert-easy": ("too_easy", 1.0),
        "expert-medium": (None, 0.5),
        "expert-elsewhere": ("too_few_attempts", None),
    }
    assert manifest.metrics["attempts_of_other_tasks"] == 13


def test_what_selections_leave_out_is_neither_counted_nor_kept(folder: Path) -> None:
    out = [Selection(trajectory_id=f"hard-{n}", name="f", kept=n > 1) for n in range(4)]
    write_table(folder / "some", [out], Selection)
    chosen = [TaskSelection(task_id="medium", name="s", kept=False, reason="seen before")]
    write_table(folder / "chosen", [chosen], TaskSelection)
    found, manifest = banded(folder, selections=["some", "chosen"], at_least=0.3, at_most=0.7)
    assert (found["hard"], found["medium"], found["open"]) == ((None, 0.5), ("not_selected", 0.5), (None, 0.5))
    assert (manifest.metrics["attempts_not_selected"], manifest.metrics["not_in_selections"]) == (2, 6)
    found, _ = banded(
        folder, "own", of="tries", attempts=None, selections=["some", "chosen"], at_least=0.3, at_most=0.7
    )
    assert (found["hard-0"][0], found["hard-3"], found["medium-0"][0]) == ("not_selected", (None, 0.5), "not_selected")


def test_what_measures_little_is_reported(folder: Path) -> None:
    write_attempts(folder / "k1", {"easy": "1", "medium": "0", "elsewhere": "1"})
    band = {"at_least": 0.25, "at_most": 0.75}
    _, manifest = banded(folder, attempts="k1", **band)
    assert notes(manifest, **band) == [
        "warning: none of 7 tasks is kept; the reasons are in the table",
        "warning: 2 rates are of so few attempts that the band is narrower than the difference that one attempt makes;"
        " make more attempts (k), or widen the band",
        "warning: 5 of 7 have fewer scored attempts than min_attempts: 1, and are not kept (unknown: drop)",
        "warning: 1 attempts are at none of these tasks, and do not count",
    ]
    write_attempts(folder / "k2", dict.fromkeys((*ATTEMPTS, "untried"), "01"))
    _, manifest = banded(folder, "enough", attempts="k2", **band)
    assert notes(manifest, **band) == []


def test_neither_the_order_of_tables_and_shards_nor_a_second_time_changes_anything(folder: Path) -> None:
    rows = rows_of(folder / "tries")
    write_table(folder / "t1", [rows[:7]], Trajectory)
    write_table(folder / "t2", [rows[7:12][::-1], rows[12:]], Trajectory)
    band = {"score": "verdict:judge", "verdicts": "verdicts", "at_least": 0.2, "at_most": 0.8}
    made = [
        (banded(folder, f"band{n}", attempts=list(tables), **band)[0], bytes_of(folder / f"band{n}"))
        for n, tables in enumerate((("tries",), *itertools.permutations(("t1", "t2"))))
    ]
    assert made == [made[0]] * 3
    again = job(folder, "difficulty_band", "band0", **ON, **band)
    assert again.finished() == again.run()
    assert bytes_of(folder / "band0") == made[0][1]


def test_bands_with_and_without_tools_are_combined_by_selections(folder: Path) -> None:
    """Solvable with tools, and not known by heart."""
    write_attempts(folder / "closed_book", {"easy": "11", "medium": "00", "hard": "01", "never": "00"})
    banded(folder, "solvable", at_least=0.25)
    banded(folder, "unknown", attempts="closed_book", at_most=0.3, unknown="keep")
    run(folder, "pick", "one", of="tries", by="first")
    rows = run(folder, "sft", "rows", **{"from": "tries"}, selections=["solvable", "unknown", "one"])
    assert {row.task_id for row in rows_of(folder / "rows")} == {"medium", "open", "once"}
    assert rows.counts == Counts(read=21, used=3, dropped=18, written=3)
    assert rows.reasons == {"not_selected": 18}


def test_rates_of_a_gambler_are_his_chances(tmp_path: Path) -> None:
    """Tasks that are won with 0.1, 0.5 and 0.9: the band around 0.5 keeps the second, and only this one is played.

    Each rate is within a 99.9 % interval of the closed form.
    """
    k, goal = 40, 10
    expected = {1: "too_hard", 5: None, 9: "too_easy"}
    tasks = [ruin_task(start, goal, f"from-{start}") for start in expected]
    write_table(tmp_path / "tasks", [tasks[:1], tasks[1:]], Task)
    write_table(tmp_path / "environments", [[SPEC]], EnvironmentSpec)
    on = {"tasks": "tasks", "environments": "environments"}
    with registered():
        gambler = {"actor": model("gambler", turns=["0.5"])}
        run(tmp_path, "sample", "tries", gambler, policy="p", k=k, **on)
        run(tmp_path, "check_outcome", "verdicts", of="tries", **on)
        band = {"score": "passed:check_outcome", "verdicts": "verdicts", "at_least": 0.25, "at_most": 0.75}
        found, manifest = banded(tmp_path, **band)
        again = run(tmp_path, "sample", "again", gambler, policy="p", k=3, seed=1, selections="band", **on)
    assert notes(manifest, **band) == []
    for start, reason in expected.items():
        chance = win_probability(start, goal, 0.5)
        rate = found[f"from-{start}"][1]
        assert rate is not None
        assert abs(rate - chance) < 3.29 * math.sqrt(chance * (1 - chance) / k)
        assert found[f"from-{start}"][0] == reason
    # A task that is not kept is one input, one that is played as many as it is played.
    assert again.counts == Counts(read=5, used=3, dropped=2, written=3)
    assert again.reasons == {"not_selected": 2}
    assert {row.task_id for row in rows_of(tmp_path / "again")} == {"from-5"}


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ({}, ("rule-broken", "at_least", "at_most")),
        ({"at_least": 0.7, "at_most": 0.3}, ("rule-broken", "0.7", "0.3")),
        ({"at_most": 25}, ("rule-broken", "25", "0 to 1")),
        ({"by": "vote", "at_least": -1}, ("rule-broken", "-1")),
        ({"by": "vote", "score": "reward", "at_most": 1}, ("rule-broken", "by: vote", "score: reward")),
        ({"answer": {"tool": "submit"}, "at_most": 1}, ("rule-broken", "answer", "by: vote")),
        ({"at_most": 1, "min_attempts": 0}, ("invalid-value", "min_attempts")),
        ({"at_most": 1, "where": "success"}, ("unknown-key", "where")),
    ],
)
def test_parameters_that_make_no_band_are_refused(parameters: dict[str, Any], error: tuple[str, ...]) -> None:
    with user_error(*error):
        stage("difficulty_band", **ON, **parameters)


def test_tables_that_measure_nothing_are_refused(folder: Path) -> None:
    with user_error("needs-another-key", "attempts", "sample") as caught:
        job(folder, "difficulty_band", "band", of="tasks", at_most=0.5)
    assert len(str(caught.value).splitlines()) == 2
    with user_error("needs-another-key", "score: passed:judge", "verdicts"):
        job(folder, "difficulty_band", "band", **ON, score="passed:judge", at_most=0.5)
    with user_error("wrong-record-type", "attempts", "Task", "Trajectory"):
        job(folder, "difficulty_band", "band", of="tasks", attempts="tasks", at_most=0.5)
    write_attempts(folder / "other", {"elsewhere": "11"})
    write_table(folder / "none", [[]], Trajectory)
    for attempts, error in (("other", ("attempts-of-others", "other", "tasks")), ("none", ("no-records", "none"))):
        step = job(folder, "difficulty_band", "band", of="tasks", attempts=attempts, at_most=0.5)
        for refused in (lambda step=step: step.parameters.check_inputs(step.inputs), step.run):
            with user_error(*error) as caught:
                refused()
            assert len(str(caught.value).splitlines()) == 2
    write_table(folder / "no_tasks", [[]], Task)
    with user_error("nothing-to-do"):
        run(folder, "difficulty_band", "band", of="no_tasks", attempts="tries", at_most=0.5)


def test_a_verdict_that_no_table_holds_is_refused_while_planning(folder: Path) -> None:
    step = {"operator": "difficulty_band", **ON, "verdicts": "verdicts", "at_most": 0.5, "as": "band"}
    data = {name: str(folder / name) for name in ("tasks", "tries", "verdicts")}

    def plan(score: str) -> str:
        recipe = {"name": "r", "run_dir": str(folder / "run"), "data": data, "steps": [{**step, "score": score}]}
        (made,) = make_plan(validate(Recipe, recipe, "recipe")).steps
        return made.parameters.writes(
            {role: [each.record for each in outputs] for role, outputs in made.inputs.items()}
        )

    assert plan("passed:judge") == "TaskSelection"
    with user_error("annotation-missing", "score: passed:juge", "judge"):
        plan("passed:juge")


def test_nothing_is_kept_where_the_outcome_is_unknown(folder: Path) -> None:
    rows = [msgspec.structs.replace(row, outcome=outcome("unknown")) for row in rows_of(folder / "tries")]
    write_table(folder / "open", [rows], Trajectory)
    found, manifest = banded(folder, attempts="open", at_most=0.5)
    assert set(found.values()) == {("too_few_attempts", None)}
    assert manifest.metrics == {"kept": 0, "left_out.too_few_attempts": 7, "attempts_unscored": 21}
    assert Table.open(folder / "band").manifest.record == "TaskSelection"
