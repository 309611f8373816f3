"""Chunks cover every row once, in order, whatever the shards and the size of a chunk."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmill.pipelines.engine.chunks import Chunk, plan, read_chunk
from agentmill.schemas.records.task import Task
from tests.errors import user_error
from tests.pipelines.engine.stages import task, write_table


@settings(max_examples=25)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(1, 12))
def test_every_row_is_in_one_chunk(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], chunk_rows: int) -> None:
    numbers = iter(range(100))
    shards = [[task(next(numbers)) for _ in range(size)] for size in sizes]
    table = write_table(tmp_path_factory.mktemp("table") / "tasks", shards)
    chunks = plan([table], chunk_rows)
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert all(0 < chunk.stop - chunk.start <= chunk_rows for chunk in chunks)
    read = [row for chunk in chunks for row in read_chunk(chunk, Task)]
    assert read == [row for shard in shards for row in shard]


def test_tables_follow_each_other(tmp_path: Path) -> None:
    first, second = (write_table(tmp_path / name, [[task(i)], [task(i + 1)]]) for i, name in ((5, "a"), (0, "b")))
    chunks = plan([first, second], 10)
    assert [chunk.name for chunk in chunks] == [f"part-0000{i}.parquet" for i in range(4)]
    assert [row.task_id for chunk in chunks for row in read_chunk(chunk, Task)] == [
        "task-0005",
        "task-0006",
        "task-0000",
        "task-0001",
    ]


def test_a_row_group_is_read_once_for_the_chunks_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[list[int]] = []
    whole = pq.ParquetFile.read_row_groups

    def counted(file: pq.ParquetFile, groups: list[int]) -> pa.Table:
        read.append(groups)
        return whole(file, groups)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", counted)
    table = write_table(tmp_path / "tasks", [[task(i) for i in range(8)]])
    path = table.shards()[0]
    pq.write_table(pq.read_table(path), path, row_group_size=4)

    def chunks(size: int) -> list[list[str]]:
        starts = range(0, 8, size)
        return [[row.task_id for row in read_chunk(Chunk(0, str(path), at, at + size, 9), Task)] for at in starts]

    names = [f"task-{i:04d}" for i in range(8)]
    assert chunks(2) == [names[at : at + 2] for at in range(0, 8, 2)]
    assert read == [[0], [1]]
    assert chunks(8) == [names]
    assert read[2:] == [[0, 1]]
    pq.write_table(pq.read_table(path)[::-1], path)
    os.utime(path, ns=(1, 1))
    assert chunks(8) == [names[::-1]], "what was kept is of a file that is another now"


def test_a_damaged_shard_is_named_also_when_it_is_read_in_parts(tmp_path: Path) -> None:
    table = write_table(tmp_path / "tasks", [[task(i) for i in range(8)]])
    path = table.shards()[0]
    path.write_bytes(path.read_bytes()[:-30])
    with user_error("damaged-file", "part-00000.parquet"):
        read_chunk(Chunk(0, str(path), 2, 4, 8), Task)
