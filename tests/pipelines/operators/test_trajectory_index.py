"""Trajectories fetched by id from several shards, tables and row groups."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from agentmill.pipelines.operators import trajectory_index as contents
from agentmill.pipelines.operators.trajectory_index import TrajectoryIndex
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.tables import Table
from tests.builders import agent_message, instruction, tool_trajectory, trajectory
from tests.errors import user_error
from tests.pipelines.engine.stages import task, write_table

RUNS = [
    trajectory(f"t{number}", content=[instruction(), agent_message(f"step {number}")])
    if number % 3
    else tool_trajectory(f"t{number}")
    for number in range(9)
]


@pytest.fixture
def tables(tmp_path: Path) -> list[Table]:
    return [
        write_table(tmp_path / "one", [RUNS[:3], RUNS[3:4]], Trajectory),
        write_table(tmp_path / "two", [RUNS[4:]], Trajectory),
    ]


def test_every_trajectory_is_seen_once_and_then_found(tables: list[Table]) -> None:
    held: TrajectoryIndex = pickle.loads(pickle.dumps(TrajectoryIndex(tables)))
    for _ in range(2):
        assert list(held.scan()) == RUNS
    for run in reversed(RUNS):
        assert held.get(run.trajectory_id) == run


def test_row_groups_are_read_one_by_one_and_few_are_held(
    tables: list[Table], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (path,) = tables[1].shards()
    whole = pq.read_table(path)
    regrouped = tmp_path / "many.parquet"
    with pq.ParquetWriter(regrouped, whole.schema) as writer:
        writer.write_table(whole, row_group_size=2)
    monkeypatch.setattr(contents, "GROUPS_HELD", 2)
    held = TrajectoryIndex([])
    held._paths = [regrouped]
    assert [run.trajectory_id for run in held.scan()] == ["t4", "t5", "t6", "t7", "t8"]
    for name in ("t4", "t8", "t6", "t5", "t7"):
        assert held.get(name).trajectory_id == name
    assert held._group.cache_info().currsize == 2


def test_more_rows_than_are_decoded_together(tables: list[Table], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "ROWS_AT_ONCE", 2)
    held = TrajectoryIndex(tables)
    assert list(held.scan()) == RUNS
    assert held.get("t7") == RUNS[7]


def test_an_id_that_stands_twice_is_refused(tables: list[Table], tmp_path: Path) -> None:
    again = write_table(tmp_path / "again", [RUNS[:1]], Trajectory)
    with user_error("record-twice"):
        list(TrajectoryIndex([*tables, again]).scan())


def test_a_damaged_file_is_named(tables: list[Table]) -> None:
    held = TrajectoryIndex(tables)
    path = tables[1].shards()[0]
    path.write_bytes(b"x" * path.stat().st_size)
    with user_error("damaged-file", "two/data/part-00000.parquet"):
        list(held.scan())


def test_a_file_that_is_gone_is_named(tables: list[Table], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "GROUPS_HELD", 1)
    held = TrajectoryIndex(tables)
    list(held.scan())
    tables[0].shards()[0].unlink()
    with user_error("damaged-file", "one/data/part-00000.parquet"):
        held.get("t1")


def test_other_records_are_refused(tmp_path: Path) -> None:
    tasks = write_table(tmp_path / "tasks", [[task(0)]])
    with user_error("wrong-record-type", "Task", "Trajectory"):
        list(TrajectoryIndex([tasks]).scan())


@pytest.mark.parametrize("together", [1, 2, 100])
def test_some_are_streamed_by_number(tables: list[Table], together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "ROWS_AT_ONCE", together)
    shards = [path for table in tables for path in table.shards()]
    whole = list(contents.stream(shards, ["trajectory_id", "content"]))
    assert [number for number, _ in whole] == list(range(len(RUNS)))
    assert [run.trajectory_id for _, run in whole] == [run.trajectory_id for run in RUNS]
    assert [run.content for _, run in whole] == [run.content for run in RUNS]
    assert {run.task_id for _, run in whole} == {None}
    wanted = [0, 3, len(RUNS) - 1]
    some = list(contents.stream(shards, ["trajectory_id", "content"], np.array(wanted)))
    assert some == [whole[number] for number in wanted]


def test_groups_without_any_are_not_read(tables: list[Table], monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    original = contents._read_group
    monkeypatch.setattr(contents, "_read_group", lambda path, *rest: read.append(path) or original(path, *rest))
    shards = [path for table in tables for path in table.shards()]
    assert list(contents.stream(shards, ["trajectory_id"], np.array([], dtype=np.int64))) == []
    assert not read
    ((number, _),) = contents.stream(shards, ["trajectory_id", "content"], np.array([len(RUNS) - 1]))
    assert (number, read) == (len(RUNS) - 1, shards[-1:])


def test_content_that_is_not_wanted_is_empty(tables: list[Table]) -> None:
    shards = [path for table in tables for path in table.shards()]
    without = [run for _, run in contents.stream(shards, ["trajectory_id", "task_id"])]
    assert [(run.trajectory_id, run.task_id, run.content) for run in without] == [
        (run.trajectory_id, run.task_id, []) for run in RUNS
    ]
