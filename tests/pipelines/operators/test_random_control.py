"""``pick`` with ``by: random``: k of each task, and the control that keeps as many as a selection, in each stratum."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import chisquare

from agentmill.pipelines.operators.operator import StepContext
from agentmill.schemas.ids import random_key
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Selection, TaskSelection, Verdict
from agentmill.schemas.tables import Counts, Manifest
from tests.builders import outcome, task, trajectory, verdict
from tests.errors import user_error
from tests.pipelines.engine.stages import rows_of, write_table
from tests.pipelines.operators.steps import job, run, stage

ROWS = [
    trajectory(
        f"r{number:02d}",
        task_id=f"t{number // 4}",
        attempt=number % 4,
        environment_id=f"e{number % 3}",
        outcome=outcome("success" if number % 5 else "failure"),
    )
    for number in range(24)
]
KEPT = {f"r{number:02d}" for number in (0, 1, 2, 5, 9, 10, 20)}


def selections(*kept: str, of: list[Trajectory] = ROWS, name: str = "picked") -> list[Selection]:
    return [Selection(trajectory_id=row.trajectory_id, name=name, kept=row.trajectory_id in kept) for row in of]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_table(tmp_path / "runs", [ROWS[::2], ROWS[1::2]], Trajectory)
    write_table(tmp_path / "picked", [selections(*KEPT)], Selection)
    return tmp_path


def drawn(folder: Path, name: str = "control", **parameters: Any) -> tuple[set[str], Manifest]:
    """The ids that are kept, and the manifest."""
    manifest = run(folder, "pick", name, **{"of": "runs", "by": "random", **parameters})
    rows = rows_of(folder / name)
    assert manifest.metrics["kept"] == sum(row.kept for row in rows)
    assert {row.reason for row in rows if row.kept} <= {None}
    return {row.trajectory_id for row in rows if row.kept}, manifest


def test_k_of_each_task_by_the_seed_alone(runs: Path) -> None:
    kept, manifest = drawn(runs, k=2, seed=3)
    assert manifest.counts == Counts(read=24, used=24, dropped=0, written=24)
    expected = set()
    for number in range(6):
        names = [f"r{each:02d}" for each in range(4 * number, 4 * number + 4)]
        expected |= set(sorted(names, key=lambda name: random_key(name, 3))[:2])
    assert kept == expected
    assert drawn(runs, "again", k=2, seed=3)[0] == kept
    assert drawn(runs, "other", k=2, seed=4)[0] != kept
    assert {row.reason for row in rows_of(runs / "control")} == {None, "not_random"}


@pytest.mark.parametrize(
    ("per", "key"),
    [
        ("all", lambda row: None),
        ("task_id", lambda row: row.task_id),
        ("environment_id", lambda row: row.environment_id),
        ("outcome.status", lambda row: row.outcome.status),
        ("attempt", lambda row: row.attempt),
    ],
)
def test_a_control_keeps_as_many_in_each_stratum(per: str, key: Any, runs: Path) -> None:
    by_name = {row.trajectory_id: key(row) for row in ROWS}
    found = [drawn(runs, f"control{seed}", like="picked", per=per, seed=seed) for seed in range(3)]
    for kept, manifest in found:
        assert Counter(map(by_name.__getitem__, kept)) == Counter(map(by_name.__getitem__, KEPT))
        assert manifest.metrics["drawn_from"] == 24
        assert manifest.metrics["kept_by_both"] == len(kept & KEPT)
        assert manifest.counts.written == 24
    assert len({frozenset(kept) for kept, _ in found}) > 1


def test_it_is_uniform() -> None:
    """Each trajectory of ten is drawn as often, and each of the 45 pairs."""
    names, seeds = [f"r{number}" for number in range(10)], range(4_500)
    pairs: Counter[tuple[str, ...]] = Counter(
        tuple(sorted(sorted(names, key=lambda name: random_key(name, seed))[:2])) for seed in seeds
    )
    expected = list(itertools.combinations(names, 2))
    assert chisquare([pairs[pair] for pair in expected]).pvalue > 0.01
    assert chisquare([sum(n for pair, n in pairs.items() if name in pair) for name in names]).pvalue > 0.01


def test_tables_shards_and_their_order_do_not_matter(tmp_path: Path) -> None:
    chance, found = random.Random(2), []
    for number in range(3):
        folder = tmp_path / str(number)
        rows = chance.sample(ROWS, len(ROWS))
        for name, part in (("runs", rows[:9]), ("more", rows[9:])):
            write_table(folder / name, [part[:3], part[3:]], Trajectory)
        chosen = selections(*KEPT, of=rows)
        write_table(folder / "first", [chosen[:7]], Selection)
        write_table(folder / "second", [chosen[7:]], Selection)
        of = ["runs", "more"] if number % 2 else ["more", "runs"]
        found.append(drawn(folder, of=of, like=["first", "second"], per="environment_id", seed=1)[0])
    assert found[0] == found[1] == found[2]


def test_several_tables_keep_what_all_of_them_keep(runs: Path) -> None:
    write_table(runs / "short", [selections("r00", "r01", "r03", name="short")], Selection)
    assert len(drawn(runs, like=["picked", "short"])[0]) == 2


def test_what_the_selection_does_not_list_is_not_listed(runs: Path) -> None:
    write_table(runs / "part", [selections("r00", "r01", "r02", of=ROWS[:8])], Selection)
    kept, manifest = drawn(runs, like="part")
    assert len(kept) == 3
    assert kept <= {row.trajectory_id for row in ROWS[:8]}
    assert manifest.counts == Counts(read=24, used=24, dropped=0, written=8)
    assert (manifest.metrics["not_in_like"], manifest.metrics["drawn_from"]) == (16, 8)


def test_where_and_selections_decide_first(runs: Path) -> None:
    write_table(runs / "filtered", [selections(*(f"r{number:02d}" for number in range(12)))], Selection)
    kept, manifest = drawn(runs, like="picked", selections="filtered")
    assert len(kept) == len(KEPT)
    assert kept <= {f"r{number:02d}" for number in range(12)}
    assert manifest.metrics["drawn_from"] == 12
    with user_error("rows-too-few", "`like` keeps 1 with task_id t5", "leave 0"):
        drawn(runs, "tasks", like="picked", selections="filtered", per="task_id")


def test_notes(runs: Path) -> None:
    step = stage("pick", of="runs", by="random", like="picked")
    _, manifest = drawn(runs, like="picked", seed=2)
    both = int(manifest.metrics["kept_by_both"])
    assert step.notes(manifest) == [f"control: 7 of 24 at random, {both} of them kept by the selection, too"]
    write_table(runs / "every", [selections(*(row.trajectory_id for row in ROWS))], Selection)
    (note,) = step.notes(drawn(runs, "equal", like="every")[1])
    assert note.startswith("warning: the selection keeps all 24 that may be drawn")
    write_table(runs / "none", [selections()], Selection)
    assert "none of 24 trajectories is kept" in step.notes(drawn(runs, "empty", like="none")[1])[0]


def test_running_again_does_nothing_and_the_seed_of_the_run_counts(runs: Path) -> None:
    _, first = drawn(runs, like="picked")
    given = {"of": "runs", "by": "random", "like": "picked"}
    assert job(runs, "pick", "control", **given).finished() == first
    with user_error("made-differently"):
        job(runs, "pick", "control", **given, per="task_id").finished()
    write_table(runs / "changed", [selections("r00")], Selection)
    with user_error("made-differently"):
        job(runs, "pick", "control", **{**given, "like": "changed"}).finished()
    config = stage("pick", **given).provenance_config(StepContext(seed=9))
    assert (config["seed"], config["per"]) == (9, "all")
    assert "like" not in config
    assert not {"seed", "per"} & stage("pick", of="x").provenance_config(StepContext(seed=9)).keys()


def test_a_selection_of_others_or_of_nothing_is_refused(runs: Path) -> None:
    others = [trajectory(f"x{number}") for number in range(3)]
    write_table(runs / "others", [selections("x0", of=others)], Selection)
    write_table(runs / "mixed", [selections("x0", "r00", of=[*ROWS, *others])], Selection)
    write_table(runs / "empty", [], Selection)
    for name, code, words in (
        ("others", "selection-of-others", "selects 3 records"),
        ("mixed", "selection-of-others", "selects 3 records"),
        ("empty", "no-records", "no selections"),
    ):
        step = job(runs, "pick", "control", of="runs", by="random", like=name)
        with user_error(code, words, name):
            step.parameters.check_inputs(step.inputs)
    good = job(runs, "pick", "control", of="runs", by="random", like="picked")
    good.parameters.check_inputs(good.inputs)
    with user_error("wrong-record-type", "like"):
        job(runs, "pick", "control", of="runs", by="random", like="runs")


TASKS = [task(f"t{number}", environment_id=f"e{number % 2}") for number in range(8)]


def task_selections(*kept: int, of: int = 8) -> list[TaskSelection]:
    return [TaskSelection(task_id=f"t{number}", name="band", kept=number in kept) for number in range(of)]


def test_tasks_have_a_control_too(tmp_path: Path) -> None:
    write_table(tmp_path / "tasks", [TASKS[:3], TASKS[3:]], Task)
    write_table(tmp_path / "band", [task_selections(0, 2, 4, 7)], TaskSelection)
    found = [drawn_tasks(tmp_path, f"control{seed}", seed=seed) for seed in range(3)]
    for kept, _ in found:
        assert sorted(int(name[1:]) % 2 for name in kept) == [0, 0, 0, 1]
    assert len({frozenset(kept) for kept, _ in found}) > 1
    write_table(tmp_path / "few", [task_selections(0, 2, 4, 6, 7)], TaskSelection)
    kept, manifest = drawn_tasks(tmp_path, "less", seed=1, selections="few")
    assert kept == {"t7"} | (kept & {"t0", "t2", "t4", "t6"})
    assert (len(kept), manifest.metrics["left_out.not_selected"], manifest.metrics["drawn_from"]) == (4, 3, 5)
    with user_error("field-missing", "Task has no field 'outcome'"):
        drawn_tasks(tmp_path, "outcomes", per="outcome.status")


def drawn_tasks(folder: Path, name: str, **parameters: Any) -> tuple[set[str], Manifest]:
    manifest = run(
        folder, "pick", name, **{"of": "tasks", "by": "random", "like": "band", "per": "environment_id", **parameters}
    )
    assert manifest.record == "TaskSelection"
    return {row.task_id for row in rows_of(folder / name) if row.kept}, manifest


def test_a_selection_of_tasks_has_a_control_of_trajectories(runs: Path) -> None:
    write_table(runs / "band", [task_selections(0, 1, 6)], TaskSelection)
    step = job(runs, "pick", "control", of="runs", by="random", like="band")
    step.parameters.check_inputs(step.inputs)
    kept, manifest = drawn(runs, like="band", seed=1)
    # Four trajectories of each of two tasks; the others have none.
    assert (len(kept), manifest.counts.written) == (8, 24)
    assert len({int(name[1:]) // 4 for name in kept}) > 2


def test_tasks_take_nothing_that_is_of_trajectories(runs: Path) -> None:
    write_table(runs / "tasks", [TASKS], Task)
    write_table(runs / "band", [task_selections(1)], TaskSelection)
    write_table(runs / "verdicts", [[verdict("r00")]], Verdict)
    of = {"of": "tasks", "by": "random"}
    with user_error("wrong-record-type", "like holds Selection"):
        job(runs, "pick", "control", **of, like="picked")
    with user_error("wrong-record-type", "selections holds Selection"):
        job(runs, "pick", "control", **of, like="band", selections="picked")
    with user_error("key-not-for-this", "`verdicts`"):
        job(runs, "pick", "control", **of, like="band", verdicts="verdicts", where="success")
    with user_error("wrong-record-type", "of holds Task"):
        job(runs, "pick", "control", **of)


def test_a_stratum_that_no_trajectory_has_is_refused(runs: Path) -> None:
    with user_error("field-missing", "pick: `per`", "none of 24 rows has a value of source.dataset"):
        drawn(runs, like="picked", per="source.dataset")
    with user_error("field-missing", "Did you mean 'environment_id'?"):
        drawn(runs, like="picked", per="enviroment_id")
    with user_error("key-not-for-this", "`per: environment.family`"):
        drawn(runs, like="picked", per="environment.family")


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"like": "picked"}, ("`like`", "by: random", "by: best")),
        ({"seed": 1}, ("`seed`", "by: random")),
        ({"by": "random", "per": "task_id"}, ("`per: task_id` needs `like`",)),
        ({"by": "random", "like": "picked", "k": 2}, ("`like`", "`k: 2`")),
        ({"by": "random", "score": "reward"}, ("score",)),
    ],
)
def test_mistakes(parameters: dict[str, Any], words: tuple[str, ...]) -> None:
    with user_error("rule-broken", *words):
        stage("pick", of="runs", **parameters)
