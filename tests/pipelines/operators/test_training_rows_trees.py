"""Search trees as stages: who belongs together, over shards and tables, and what is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from agentmill.pipelines.operators.training_rows import Telling, root
from agentmill.schemas.records.trajectory import MessageAction, Trajectory
from agentmill.schemas.records.verdict import Selection, Verdict
from agentmill.schemas.tables import Counts
from agentmill.schemas.views.tree import SearchTrace
from agentmill.schemas.views.tree_view import Made, Relative
from tests.pipelines.engine.stages import dropped_of, rows_of, write_table
from tests.pipelines.operators.steps import run as run_step
from tests.schemas.views.trees import run


def branch(of: str, name: str, *commands: str, good: bool = False) -> Trajectory:
    return msgspec.structs.replace(run(name, *commands, good=good, copied=1), parent_id=of, branch_turn=2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tree over two tables, whose root failed; one whose root is in none; and a run alone."""
    first = [[run("r", "a", "d"), run("alone", "a", "b", good=True)], [branch("gone", "g1", "a", "c", good=True)]]
    write_table(tmp_path / "first", first, Trajectory)
    second = [branch("r", "b1", "a", "b", good=True), branch("b1", "b2", "a", "e"), branch("gone", "g2", "a", "d")]
    write_table(tmp_path / "second", [second], Trajectory)
    return tmp_path


def test_trees_are_put_together_over_tables(folder: Path) -> None:
    manifest = run_step(folder, "search_trace", "traces", **{"from": ["first", "second"]})
    assert manifest.counts == Counts(read=6, used=5, dropped=1, written=2)
    assert {row.trajectory_id: len(row.messages) for row in rows_of(folder / "traces")} == {"b1": 12, "g1": 8}
    assert {letter.input_id: letter.reason for letter in dropped_of(folder / "traces")} == {"alone": "no_dead_end"}


def test_failed_runs_are_corrected(folder: Path) -> None:
    manifest = run_step(folder, "spliced", "revisions", **{"from": ["first", "second"]})
    assert manifest.counts == Counts(read=6, used=5, dropped=1, written=3)
    assert {row.trajectory_id for row in rows_of(folder / "revisions")} == {"r", "b2", "g2"}


def test_a_step_that_runs_share_is_judged_in_one_of_them(tmp_path: Path) -> None:
    first, second = run("r", "a", "w", "p"), run("s", "a", "w", "q", copied=2)
    second = msgspec.structs.replace(second, parent_id="r", branch_turn=3)
    write_table(tmp_path / "tree", [[first, second, branch("r", "t", "a", "b", good=True)]], Trajectory)
    place = next(n for n, item in enumerate(first.content) if isinstance(item, MessageAction) and item.content == "w")
    wrong = Verdict(
        trajectory_id="r", name="step_judge", status="scored", passed=False, score=0.0, judge="j", item=place
    )
    write_table(tmp_path / "judged", [[wrong]], Verdict)
    error = {"verdict": "step_judge", "passed": False}
    run_step(tmp_path, "spliced", "revisions", **{"from": "tree"}, verdicts="judged", error=error)
    said = {
        row.trajectory_id: [message.content for message in row.messages if message.role == "assistant"]
        for row in rows_of(tmp_path / "revisions")
    }
    assert {name: [text for text in texts if text and len(text) == 1] for name, texts in said.items()} == {
        "r": ["a", "w", "b"],
        "s": ["a", "w", "b"],
    }


def test_runs_that_are_not_chosen_are_no_part_of_the_tree(folder: Path) -> None:
    kept = [
        Selection(trajectory_id=name, name="filter", kept=name != "b1")
        for name in ("r", "alone", "b1", "b2", "g1", "g2")
    ]
    write_table(folder / "kept", [kept], Selection)
    run_step(folder, "spliced", "revisions", **{"from": ["first", "second"]}, selections="kept")
    assert {row.trajectory_id for row in rows_of(folder / "revisions")} == {"g2"}
    reasons = {letter.input_id: letter.reason for letter in dropped_of(folder / "revisions")}
    assert reasons == {"b1": "not_selected", "r": "no_partner", "b2": "no_partner", "alone": "no_partner"}


def test_trees_that_a_shard_mixes_are_put_together_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Counter[str]()

    def counted(view: SearchTrace, family: Sequence[Relative]) -> Made:
        made[min(each.trajectory.trajectory_id for each in family)] += 1
        return make_rows(view, family)

    make_rows = SearchTrace.make_rows
    monkeypatch.setattr(SearchTrace, "make_rows", counted)
    trees = [f"r{number:02}" for number in range(12)]
    runs = [run(name, "a", "d") for name in trees]
    runs += [branch(name, f"s-{name}", "a", "b", good=True) for name in trees]
    write_table(tmp_path / "runs", [runs], Trajectory)
    assert run_step(tmp_path, "search_trace", "traces", **{"from": "runs"}).counts.written == len(trees)
    assert made == dict.fromkeys(trees, 1)


def test_a_tree_that_fails_drops_its_own_runs_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(view: SearchTrace, family: Sequence[Relative]) -> Made:
        if any(each.trajectory.trajectory_id == "g1" for each in family):
            raise ValueError("no such node")
        return make_rows(view, family)

    make_rows = SearchTrace.make_rows
    monkeypatch.setattr(SearchTrace, "make_rows", failing)
    run_step(folder, "search_trace", "traces", **{"from": ["first", "second"]})
    assert {row.trajectory_id for row in rows_of(folder / "traces")} == {"b1"}
    lost = {letter.input_id: letter.detail for letter in dropped_of(folder / "traces") if letter.input_id != "alone"}
    assert lost.keys() == {"g1", "g2"}
    assert all("no such node" in str(detail) for detail in lost.values())


def test_roots() -> None:
    parents = {"a": None, "b": "a", "c": "b", "x": "gone", "p": "q", "q": "p"}
    assert [root(name, parents) for name in ("a", "b", "c", "x", "p", "q")] == ["a", "a", "a", "gone", "p", "p"]


def test_a_tree_whose_trajectories_lie_apart_is_put_together_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees = range(12)
    roots = [run(f"r{tree}", "a", "d") for tree in trees]
    branches = [branch(f"r{tree}", f"s{place}{tree}", "a", "b", good=True) for place in "ab" for tree in trees]
    write_table(tmp_path / "tree", [[*roots, *branches]], Trajectory)
    made, make = [], Telling._make
    monkeypatch.setattr(Telling, "_make", lambda self, origin: made.append(origin) or make(self, origin))
    manifest = run_step(tmp_path, "spliced", "revisions", **{"from": "tree"})
    assert manifest.counts.written >= len(roots)
    assert sorted(made) == sorted(row.trajectory_id for row in roots)
