"""Chunks cover every row once, in order, whatever the shards and the size of a chunk."""

from __future__ import annotations

from pathlib import Path

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


def test_a_damaged_shard_is_named_also_when_it_is_read_in_parts(tmp_path: Path) -> None:
    table = write_table(tmp_path / "tasks", [[task(i) for i in range(8)]])
    path = table.shards()[0]
    path.write_bytes(path.read_bytes()[:-30])
    with user_error("damaged-file", "part-00000.parquet"):
        read_chunk(Chunk(0, str(path), 2, 4, 8), Task)
