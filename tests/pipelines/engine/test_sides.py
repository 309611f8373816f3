"""A table beside a table: written with it, dropped with it, journalled with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.engine.execute import StageFailed
from agentmill.pipelines.engine.journal import Journal
from agentmill.pipelines.engine.operation import Result, RowOperation, Unit
from agentmill.pipelines.engine.run import run_stage
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Node
from agentmill.schemas.tables import Counts, Table
from tests.builders import trajectory
from tests.pipelines.engine.operations import lived
from tests.pipelines.engine.stages import dropped_of, order, rows_of, task, write_table


def node(name: str, **fields: Any) -> Node:
    return Node(node_id=name, tree_id="tree", parent_id=None, trajectory_id=None, turn=0, **fields)


class Branching(RowOperation):
    """A trajectory and two nodes of each task; what the task's first skill says goes wrong."""

    sides = ("nodes",)

    def __init__(self) -> None:
        super().__init__("branching", Task, Trajectory)

    def process(self, record: Any, unit: Unit) -> Iterable[Result]:
        fault = record.skills[0] if record.skills else ""
        extra = {"value": float("nan")} if fault == "nan" else {}
        nodes = [node(f"{unit[0]}-1"), node(f"{unit[0]}-0", extra=extra)]
        outputs = [] if fault == "only nodes" else [lived(record, unit[0])]
        sides = {"values": nodes} if fault == "other side" else {"nodes": nodes}
        return [Result(input_id=unit[0], outputs=outputs, sides=sides)]

    def measures(self, output: Any) -> Mapping[str, float]:
        return {"runs": 1}

    def side_measures(self, output: Any) -> Mapping[str, float]:
        return {"nodes": 1}


def test_both_tables_are_written_and_what_one_cannot_hold_is_in_neither(tmp_path: Path) -> None:
    faults = {2: "nan", 3: "only nodes"}
    table = write_table(tmp_path / "tasks", [[task(i, faults.get(i, "")) for i in range(5)]])
    manifest = run_stage(order(Branching(), table, tmp_path / "out"))
    assert manifest.counts == Counts(read=5, used=4, dropped=1, written=3)
    assert manifest.metrics == {"runs": 3, "nodes": 8}
    beside = Table.open(tmp_path / "out" / "nodes").manifest
    assert beside.counts == Counts(read=5, used=4, dropped=1, written=8)
    assert (beside.record, beside.table, beside.reasons) == ("Node", "out/nodes", {"unrepresentable": 1})
    [letter] = dropped_of(tmp_path / "out")
    assert (letter.input_id, letter.reason) == ("task-0002", "unrepresentable")
    assert letter.detail.startswith("field extra.value: nan")
    names = [row.node_id for row in rows_of(tmp_path / "out" / "nodes")]
    assert names == sorted(f"task-000{i}-{n}" for i in (0, 1, 3, 4) for n in (0, 1))


def test_a_side_that_was_not_declared_is_a_fault_of_the_operator(tmp_path: Path) -> None:
    table = write_table(tmp_path / "tasks", [[task(0, "other side")]])
    with pytest.raises(StageFailed, match="operator branching broke its contract: input task-0000 gave to 'values'"):
        run_stage(order(Branching(), table, tmp_path / "out"))


def test_the_journal_keeps_sides_and_measures(tmp_path: Path) -> None:
    result = Result(
        input_id="a",
        outputs=[trajectory("a")],
        sides={"nodes": [node("n", q=0.1 + 0.2, extra={"ü": [1]})]},
        measures={"calls": 3.0},
    )
    bare = Result(input_id="b", outputs=[], sides={"nodes": []})
    journal = Journal(tmp_path / "journal.sqlite", Trajectory, ("nodes",))
    journal.write(("a", "b"), [result, Result(input_id="b")])
    assert journal.read(["a", "b"]) == {"a": result, "b": bare}
    journal.close()
