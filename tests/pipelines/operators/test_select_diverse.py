"""``select_diverse``: which trajectories are kept, why the others are not, and what is refused."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.operators.operator import StepContext
from agentmill.pipelines.operators.select_diverse import SelectDiverse
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Label, Selection, Verdict
from agentmill.schemas.tables import Counts, Manifest
from tests.builders import agent_message, called, instruction, outcome, run_of_source, spec, task, trajectory, verdict
from tests.errors import user_error
from tests.pipelines.engine.stages import rows_of, write_table
from tests.pipelines.operators.steps import job, run, stage


def acted(trajectory_id: str, *tools: str, **fields: Any) -> Trajectory:
    """Calls of these tools; those of one letter have the bigrams of their neighbours."""
    calls = [called(name, turn, f"c{turn}") for turn, name in enumerate(tools, 1)]
    return trajectory(trajectory_id, content=[instruction(f"For {trajectory_id}."), *calls], **fields)


ROWS = (
    acted("a1", *"open", environment_id="home", task_id="t1"),
    acted("a2", *"open", environment_id="home", task_id="t1", outcome=outcome("failure")),
    acted("a3", *"ope", environment_id="shop", task_id="t2"),
    acted("b1", *"shut", environment_id="home", task_id="t3"),
    acted("b2", *"shu", environment_id="shop", task_id="t3"),
    acted("c1", *"mix", environment_id="lab", task_id="t4"),
)
"""Bigrams op, pe, en of two or three; sh, hu, ut; mi, ix: weights 3 + 3 + 2, 2 + 2 + 1, 1 + 1."""

FULL = {"quota: environment_id=home", "quota: environment_id=shop"}
QUOTA_TASK = [{"by": "task_id", "at_most": 1}]


def write(folder: Path, *rows: Trajectory, name: str = "runs") -> None:
    write_table(folder / name, [rows[::2], rows[1::2]], Trajectory)


def chosen(
    folder: Path, rows: int = len(ROWS), name: str = "few", **parameters: Any
) -> tuple[dict[str, tuple[str | None, float | None]], Manifest]:
    """The reason and the score of each, and the manifest."""
    manifest = run(folder, "select_diverse", name, **{"of": "runs", "features": ["tools"], **parameters})
    found = rows_of(folder / name)
    assert manifest.counts == Counts(read=rows, used=rows, dropped=0, written=rows)
    assert all(row.kept is (row.reason is None) for row in found)
    assert manifest.metrics["kept"] == sum(row.kept for row in found)
    return {row.trajectory_id: (row.reason, row.score) for row in found}, manifest


def kept(folder: Path, rows: int = len(ROWS), **parameters: Any) -> set[str]:
    found, _ = chosen(folder, rows, **parameters)
    return {name for name, (reason, _) in found.items() if reason is None}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write(tmp_path, *ROWS)
    return tmp_path


def test_coverage_keeps_what_adds_most(runs: Path) -> None:
    found, manifest = chosen(runs, size=2)
    assert found == {
        "a1": (None, pytest.approx(8 / 15)),
        "a2": ("covered", 0.0),
        "a3": ("covered", 0.0),
        "b1": (None, pytest.approx(5 / 15)),
        "b2": ("covered", 0.0),
        "c1": ("adds_less", pytest.approx(2 / 15)),
    }
    metrics = manifest.metrics
    assert metrics["coverage"] == pytest.approx(13 / 15, abs=1e-6)
    assert 0 < metrics["coverage_random"] <= metrics["coverage"]
    assert (metrics["kept_covered"], metrics["nothing_to_cover"], metrics["accepted"]) == (0, 0, 0)
    notes = stage("select_diverse", of="x", size=2).notes(manifest)
    assert notes == [f"covers 86.7% of the features, a random choice of as many {metrics['coverage_random']:.1%}"]


def test_the_random_choice_is_that_of_the_control(runs: Path) -> None:
    _, manifest = chosen(runs, size=2, seed=4)
    run(runs, "pick", "control", of="runs", by="random", like="few", seed=4)
    names = {row.trajectory_id for row in rows_of(runs / "control") if row.kept}
    tools = {row.trajectory_id: "".join(item.function for item in row.content[1:]) for row in ROWS}  # type: ignore[union-attr]
    weights = {"op": 3, "pe": 3, "en": 2, "sh": 2, "hu": 2, "ut": 1, "mi": 1, "ix": 1}
    covered = {two for name in names for two in map("".join, zip(tools[name], tools[name][1:], strict=False))}
    assert manifest.metrics["coverage_random"] == pytest.approx(sum(weights[two] for two in covered) / 15, abs=1e-6)


def test_more_than_coverage_needs_is_a_warning(runs: Path) -> None:
    found, manifest = chosen(runs, size=4)
    assert [name for name, (reason, _) in found.items() if reason is None] == ["a1", "a2", "b1", "c1"]
    assert (manifest.metrics["coverage"], manifest.metrics["kept_covered"]) == (1.0, 1)
    assert "1 of those kept add no feature" in stage("select_diverse", of="x", size=4).notes(manifest)[-1]


@pytest.mark.parametrize(
    ("features", "first"), [("tools", "t"), ("actions", "t"), ("text", "w"), ("states", "s"), ("text tools", "t")]
)
def test_features(features: str, first: str, tmp_path: Path) -> None:
    words = " ".join(f"w{number}" for number in range(40))
    states = [instruction("one"), *(agent_message("go", turn, state_digest=f"d{turn}") for turn in range(1, 9))]
    rows = [
        acted("t", *"abcdef"),
        trajectory("w", content=[instruction(words), agent_message("two")]),
        trajectory("s", content=states),
    ]
    write(tmp_path, *rows)
    assert kept(tmp_path, 3, size=1, features=features.split()) == {first}


def test_kept_features_are_bounded(tmp_path: Path) -> None:
    write(tmp_path, acted("a", *"abcdefghijklmnopqrst"), acted("b", *(f"x{number}" for number in range(9))))
    found, _ = chosen(tmp_path, 2, size=1, most_features=8)
    assert sorted(score for _, score in found.values() if score is not None) == [0.5, 0.5]
    found, _ = chosen(tmp_path, 2, "more", size=1)
    assert found == {"a": (None, pytest.approx(19 / 27)), "b": ("adds_less", pytest.approx(8 / 27))}


def test_scores_prefer_the_better_ones_and_leave_out_unscored_ones(runs: Path) -> None:
    scores = {"a1": 0.0, "a2": 1.0, "a3": 0.5, "b1": 0.0, "b2": 1.0}
    write_table(runs / "judged", [[verdict(name, name="j", score=each) for name, each in scores.items()]], Verdict)
    found, manifest = chosen(runs, size=2, verdicts="judged", score="verdict:j", quality_weight=0.9)
    assert {name: reason for name, (reason, _) in found.items()} == {
        "a1": "covered",
        "a2": None,
        "a3": "covered",
        "b1": "adds_less",
        "b2": None,
        "c1": "unscored",
    }
    assert manifest.metrics["left_out.unscored"] == 1
    assert kept(runs, size=2, name="light", verdicts="judged", score="verdict:j", quality_weight=0.1) == {"a2", "b1"}
    with user_error("rows-too-few", "`size: 6`", "the 5 of 6", "at most 5"):
        run(runs, "select_diverse", "all", of="runs", size=6, verdicts="judged", score="verdict:j")


@pytest.mark.parametrize(
    ("quotas", "size", "names", "reasons"),
    [
        (
            [{"by": "environment_id", "at_most": 1}],
            3,
            {"a1", "b2", "c1"},
            FULL,
        ),
        (QUOTA_TASK, 4, {"a1", "a3", "b1", "c1"}, {"quota: task_id=t1", "quota: task_id=t3"}),
        ([{"by": "outcome.status", "at_most": 1}], 2, {"a1", "a2"}, {"quota: outcome.status=success"}),
        (
            [{"by": "environment_id"}],
            3,
            {"a1", "b2", "c1"},
            FULL,
        ),
        (
            [{"by": "environment_id"}],
            4,
            {"a1", "b1", "a3", "c1"},
            FULL,
        ),
        ([{"by": "environment_id", "at_most": 2}, {"by": "task_id", "at_most": 1}], 4, {"a1", "b1", "a3", "c1"}, None),
        ([{"by": "extra.level", "at_most": 1}], 3, {"a1", "b1", "c1"}, set()),
        ([{"by": "outcome.status", "share": 0.5}], 2, {"a1", "a2"}, {"quota: outcome.status=success"}),
    ],
)
def test_quotas_are_exact(
    quotas: list[Any], size: int, names: set[str], reasons: set[str] | None, tmp_path: Path
) -> None:
    rows = [
        row
        if row.trajectory_id != "c1"
        else acted("c1", *"mix", environment_id="lab", task_id="t4", extra={"level": 3})
        for row in ROWS
    ]
    write(tmp_path, *rows)
    found, manifest = chosen(tmp_path, size=size, quotas=quotas)
    assert {name for name, (reason, _) in found.items() if reason is None} == names
    quota_reasons = {reason for reason, _ in found.values() if reason is not None and reason.startswith("quota")}
    assert quota_reasons == reasons if reasons is not None else quota_reasons
    if quotas == [{"by": "environment_id"}] and size == 4:
        counted = {name: n for name, n in manifest.metrics.items() if name.startswith("kept.")}
        assert sorted(counted.items()) == [
            ("kept.environment_id=home", 2),
            ("kept.environment_id=lab", 1),
            ("kept.environment_id=shop", 1),
        ]


def test_quotas_by_family_skill_and_dataset(runs: Path) -> None:
    specs = [spec(name, family="pddl" if name == "lab" else "text") for name in ("home", "shop", "lab")]
    tasks = [
        task(f"t{number}", skills=["a", "b"] if number < 3 else ["b"] if number == 3 else []) for number in (1, 2, 3, 4)
    ]
    write_table(runs / "specs", [specs], EnvironmentSpec)
    write_table(runs / "tasks", [tasks], Task)
    assert kept(runs, size=2, quotas=[{"by": "environment.family"}], environments="specs") == {"a1", "c1"}
    found, manifest = chosen(runs, name="s", size=2, quotas=[{"by": "task.skills", "at_most": 1}], tasks="tasks")
    assert found["b1"][0] == "quota: task.skills=b"
    assert {name for name, (reason, _) in found.items() if reason is None} == {"a1", "c1"}
    assert (manifest.metrics["kept.task.skills=a"], manifest.metrics["kept.task.skills=b"]) == (1, 1)
    rows = [run_of_source(dataset, None, name) for name, dataset in (("x", "d1"), ("y", "d1"), ("z", "d2"))]
    write(runs, *rows, name="sources")
    assert kept(runs, 3, name="d", of="sources", size=2, quotas=[{"by": "source.dataset", "at_most": 1}]) == {"x", "z"}


def test_accepted_ones_are_kept_and_count(runs: Path) -> None:
    labels = [
        Label(trajectory_id=name, name="review", value=value, labeller="ann")
        for name, value in (("a3", "accept"), ("b1", "reject"), ("c1", "accept"))
    ]
    write_table(runs / "reviews", [labels], Label)
    accept = {"labels": "reviews", "accept": [{"label": "review", "equals": "accept"}]}
    found, manifest = chosen(runs, size=3, **accept)
    assert found["a3"] == (None, pytest.approx(6 / 15))
    assert {name for name, (reason, _) in found.items() if reason is None} == {"a3", "c1", "b1"}
    assert manifest.metrics["accepted"] == 2
    quota = [{"by": "environment_id", "at_most": 1}]
    assert kept(runs, name="q", size=3, quotas=quota, **accept) == {"a3", "c1", "b1"}
    with user_error("rows-too-few", "2 trajectories are accepted", "`size` is 1"):
        run(runs, "select_diverse", "one", of="runs", size=1, **accept)


def test_accepted_ids_of_a_file(runs: Path) -> None:
    file = runs / "ids.txt"
    file.write_text("\ufeffc1\n\nb2\nc1\n")
    rows = [Selection(trajectory_id=row.trajectory_id, name="f", kept=row.trajectory_id != "c1") for row in ROWS]
    write_table(runs / "filtered", [rows], Selection)
    found, manifest = chosen(runs, size=2, accept_ids=str(file), selections="filtered")
    assert {name for name, (reason, _) in found.items() if reason is None} == {"b2", "a1"}
    assert found["c1"] == ("not_selected", None)
    assert (manifest.metrics["accepted_not_chosen"], manifest.metrics["left_out.not_selected"]) == (1, 1)
    step = job(runs, "select_diverse", "few", of="runs", size=2, accept_ids=str(file))
    assert "1 accepted trajectories are not kept" in "".join(step.parameters.notes(manifest))
    first = step.parameters.provenance_config(StepContext())
    file.write_text("c1\n")
    assert step.parameters.provenance_config(StepContext()) != first
    file.write_text("c2\nx\n")
    with user_error("unknown-name", "2 ids that no trajectory has, as 'c2'", "Did you mean"):
        step.parameters.check_inputs(step.inputs)
    for text, code in (("\n", "no-records"), (None, "no-such-file")):
        file.unlink() if text is None else file.write_text(text)
        with user_error(code, "ids.txt"):
            job(runs, "select_diverse", "none", of="runs", size=2, accept_ids=str(file))


def test_clusters_give_one_of_each(runs: Path) -> None:
    found, _ = chosen(runs, size=3, method="clusters")
    assert {name[0] for name, (reason, _) in found.items() if reason is None} == {"a", "b", "c"}
    write_table(
        runs / "judged",
        [[verdict(row.trajectory_id, name="j", score=float(row.trajectory_id[1])) for row in ROWS]],
        Verdict,
    )
    best = {"verdicts": "judged", "score": "verdict:j", "quality_weight": 1}
    assert kept(runs, name="best", size=3, method="clusters", **best) == {"a3", "b2", "c1"}
    # The largest cluster goes first in the second round, too.
    found, _ = chosen(runs, name="four", size=4, clusters=3, method="clusters", quotas=QUOTA_TASK, **best)
    assert {name for name, (reason, _) in found.items() if reason is None} == {"a3", "b2", "c1", "a2"}
    assert (found["a1"][0], found["b1"][0]) == ("quota: task_id=t1", "quota: task_id=t3")


def test_where_and_selections_decide_first(runs: Path) -> None:
    rows = [Selection(trajectory_id=row.trajectory_id, name="f", kept=row.trajectory_id != "a1") for row in ROWS[:5]]
    write_table(runs / "filtered", [rows], Selection)
    found, manifest = chosen(runs, size=2, selections="filtered")
    assert found["a1"] == ("not_selected", None)
    assert {name for name, (reason, _) in found.items() if reason is None} == {"a2", "b1"}
    assert (manifest.metrics["left_out.not_selected"], manifest.metrics["not_in_selections"]) == (1, 1)


@pytest.mark.parametrize("method", ["coverage", "clusters"])
def test_tables_shards_and_their_order_do_not_matter(method: str, tmp_path: Path) -> None:
    chance, found = random.Random(2), []
    rows = [
        acted(f"r{number:02d}", *chance.sample("abcdefghij", 5), environment_id=chance.choice("xyz"))
        for number in range(40)
    ]
    for number in range(3):
        folder = tmp_path / str(number)
        shuffled = chance.sample(rows, len(rows))
        cut = chance.randrange(1, len(rows))
        write(folder, *shuffled[:cut])
        write(folder, *shuffled[cut:], name="more")
        of = ["runs", "more"] if number % 2 else ["more", "runs"]
        found.append(chosen(folder, 40, of=of, size=8, method=method, quotas=[{"by": "environment_id"}])[0])
    assert found[0] == found[1] == found[2]
    assert sum(reason is None for reason, _ in found[0].values()) == 8


def test_running_again_does_nothing(runs: Path) -> None:
    _, first = chosen(runs, size=2)
    again = {"of": "runs", "features": ["tools"]}
    assert job(runs, "select_diverse", "few", **again, size=2).finished() == first
    with user_error("made-differently"):
        job(runs, "select_diverse", "few", **again, size=3).finished()


def test_what_has_no_features_is_chosen_last(tmp_path: Path) -> None:
    write(tmp_path, trajectory("a", content=[]), trajectory("b", content=[]), acted("c", *"xy"))
    assert kept(tmp_path, 3, size=1) == {"c"}
    found, manifest = chosen(tmp_path, 3, "two", size=2)
    assert {name: reason for name, (reason, _) in found.items()} == {"a": None, "b": "covered", "c": None}
    assert manifest.metrics["nothing_to_cover"] == 2
    assert "2 trajectories have none of the `features`" in "".join(
        stage("select_diverse", of="x", size=2).notes(manifest)
    )


def test_more_than_there_are_is_refused(runs: Path) -> None:
    step = job(runs, "select_diverse", "few", of="runs", size=7)
    for refused in (lambda: step.parameters.check_inputs(step.inputs), step.run):
        with user_error("rows-too-few", "`size: 7`", "the 6 trajectories", "at most 6"):
            refused()
    write(runs, name="nothing")
    empty = job(runs, "select_diverse", "none", of="nothing", size=1)
    with user_error("rows-too-few", "the 0 trajectories"):
        empty.parameters.check_inputs(empty.inputs)
    with user_error("rows-too-few", "`size: 5`", "environment_id", "3 of 6 trajectories fit into", "at most 3"):
        run(runs, "select_diverse", "q", of="runs", size=5, quotas=[{"by": "environment_id", "at_most": 1}])


def test_short_of_its_size_it_may_keep_what_there_is(runs: Path) -> None:
    given: dict[str, Any] = {"size": 7, "short": "allow"}
    found, manifest = chosen(runs, name="all", **given)
    assert {reason for reason, _ in found.values()} == {None}
    warned = SelectDiverse(of=["runs"], **given).notes(manifest)
    assert "warning: `size: 7` asks for more than the 6 that may be kept" in warned
    quotas = [{"by": "environment_id", "at_most": 1}]
    assert len(kept(runs, name="each", size=5, short="allow", quotas=quotas)) == 3
    write(runs, acted("d", *"open", outcome=outcome("unknown")), name="unscored")
    none, _ = chosen(runs, 1, "none", of="unscored", method="clusters", score="outcome", **given)
    assert none == {"d": ("unscored", None)}
    again = job(runs, "select_diverse", "all", of="runs", features=["tools"], size=6)
    with user_error("made-differently", "short"):
        again.finished()


@pytest.mark.parametrize(
    ("by", "words"),
    [
        ("source.dataset", ("`quotas`", "none of 2 rows has a value of source.dataset")),
        ("extra.levle", ("value of extra.levle", "Did you mean 'extra.level'?")),
    ],
)
def test_a_quota_on_what_no_trajectory_has_is_refused(by: str, words: tuple[str, ...], tmp_path: Path) -> None:
    write(tmp_path, *(acted(name, *"ab", extra={"level": 1}) for name in "xy"))
    with user_error("field-missing", *words):
        run(tmp_path, "select_diverse", "few", of="runs", size=1, quotas=[{"by": by, "at_most": 1}])


@pytest.mark.parametrize(
    ("parameters", "code", "words"),
    [
        ({"size": 0}, "invalid-value", "size"),
        ({"features": []}, "invalid-value", "features"),
        ({"features": ["tool"]}, "invalid-value", "Did you mean 'tools'?"),
        ({"features": ["text", "text"]}, "rule-broken", "'text' twice"),
        ({"quality_weight": 0.2}, "rule-broken", "needs `score`"),
        ({"clusters": 4}, "rule-broken", "needs `method: clusters`"),
        ({"method": "clusters", "size": 1}, "rule-broken", "one cluster"),
        ({"quotas": [{"by": "task.skills"}]}, "rule-broken", "give `at_most`"),
        ({"quotas": [{"by": "task_id", "at_most": 1, "share": 0.5}]}, "rule-broken", "one of them"),
        (
            {"quotas": [{"by": "task_id", "share": 0.01}]},
            "rule-broken",
            "`share: 0.01` of the quota by task_id is less",
        ),
        ({"quotas": [{"by": "task_id"}, {"by": "task_id"}]}, "rule-broken", "'task_id' twice"),
        ({"score": "best"}, "rule-broken", "no score"),
    ],
)
def test_mistakes(parameters: dict[str, Any], code: str, words: str) -> None:
    with user_error(code, words):
        stage("select_diverse", **{"of": "x", "size": 2, **parameters})


@pytest.mark.parametrize(
    ("parameters", "code", "words"),
    [
        ({"quotas": [{"by": "environment.family"}]}, "needs-another-key", "environments"),
        ({"quotas": [{"by": "task.skills", "at_most": 1}]}, "needs-another-key", "tasks"),
        ({"score": "verdict:judge"}, "needs-another-key", "verdicts"),
        ({"accept": [{"label": "ok", "equals": "yes"}]}, "needs-another-key", "labels"),
        ({"tasks": "runs"}, "wrong-record-type", "tasks"),
        ({"quotas": [{"by": "environment_ids"}]}, "field-missing", "Did you mean 'environment_id'?"),
    ],
)
def test_tables_that_are_missing_or_wrong(parameters: dict[str, Any], code: str, words: str, runs: Path) -> None:
    with user_error(code, words):
        job(runs, "select_diverse", "few", of="runs", size=2, **parameters)


def test_a_table_that_no_quota_asks_is_refused(runs: Path) -> None:
    write_table(runs / "tasks", [[task("t1")]], Task)
    with user_error("key-not-for-this", "no quota asks `tasks`"):
        job(runs, "select_diverse", "few", of="runs", size=2, tasks="tasks")


def test_it_is_a_curation() -> None:
    assert SelectDiverse.verb == "curate"
