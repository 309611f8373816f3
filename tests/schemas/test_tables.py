"""Tables on disk: whole or not at all, the same bytes for the same records, and clear words for what is wrong."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any, Never

import pyarrow.parquet as pq
import pytest

from agentmill.schemas import tables
from agentmill.schemas.records.record import SCHEMA_VERSION, Record
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Dropped
from agentmill.schemas.tables import (
    Counts,
    Manifest,
    ShardFile,
    Table,
    read_columns,
    read_manifest,
    read_shard,
    write_manifest,
    write_shard,
)
from tests.builders import task, trajectory
from tests.errors import user_error


def manifest(files: list[ShardFile], dropped_files: list[ShardFile] | None = None, **fields: Any) -> Manifest:
    written = sum(file.rows for file in files)
    dropped = sum(file.rows for file in dropped_files or [])
    values: dict[str, Any] = {
        "table": "explored",
        "record": "Trajectory",
        "schema_version": SCHEMA_VERSION,
        "operator": "sample",
        "config": {"k": 1},
        "config_digest": "c",
        "inputs": {"tasks": "d"},
        "counts": Counts(read=written + dropped, used=written, dropped=dropped, written=written),
        "reasons": {"timeout": dropped} if dropped else {},
        "files": files,
        "dropped_files": dropped_files or [],
        "seconds": 1.5,
        "created": "2026-01-01T00:00:00Z",
        "versions": {"agentmill": "0.1.0"},
    }
    return Manifest(**{**values, **fields})


def write_table(folder: Path, shards: list[list[Record]]) -> Table:
    files = [
        write_shard(folder / f"data/part-{index:05d}.parquet", shard, Trajectory) for index, shard in enumerate(shards)
    ]
    write_manifest(folder, manifest(files))
    return Table.open(folder)


def test_a_table_reads_back_in_order(tmp_path: Path) -> None:
    shards: list[list[Record]] = [[trajectory("a"), trajectory("b")], [], [trajectory("c")]]
    table = write_table(tmp_path / "explored", shards)
    assert [row.trajectory_id for row in table.rows()] == ["a", "b", "c"]
    assert [path.name for path in table.shards()] == [f"part-0000{n}.parquet" for n in range(3)]
    assert table.record_type is Trajectory
    assert table.manifest.counts == Counts(read=3, used=3, dropped=0, written=3)


def test_a_shard_is_described_by_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "t/data/part-00000.parquet"
    file = write_shard(path, [trajectory()], Trajectory)
    data = path.read_bytes()
    assert file == ShardFile(
        name="part-00000.parquet", rows=1, bytes=len(data), sha256=hashlib.sha256(data).hexdigest()
    )
    assert write_shard(tmp_path / "u/data/part-00000.parquet", [trajectory()], Trajectory) == file


def test_only_finished_files_lie_in_a_finished_table(tmp_path: Path) -> None:
    (tmp_path / "explored/.tmp").mkdir(parents=True)
    (tmp_path / "explored/.tmp/left-by-a-killed-writer").write_bytes(b"half")
    write_table(tmp_path / "explored", [[trajectory()]])
    files = sorted(str(path.relative_to(tmp_path / "explored")) for path in (tmp_path / "explored").rglob("*"))
    assert files == ["data", "data/part-00000.parquet", "manifest.json"]


def test_dropped_rows_lie_beside_the_data(tmp_path: Path) -> None:
    dropped = Dropped(input_id="x", stage="sample", reason="timeout", blamed="policy", input={"task_id": "x"})
    data = write_shard(tmp_path / "t/data/part-00000.parquet", [trajectory()], Trajectory)
    dead = write_shard(tmp_path / "t/dropped/part-00000.parquet", [dropped], Dropped)
    write_manifest(tmp_path / "t", manifest([data], [dead]))
    table = Table.open(tmp_path / "t")
    assert [read_shard(path, Dropped) for path in table.dropped_shards()] == [[dropped]]
    assert len(list(table.rows())) == 1


def test_the_digest_is_that_of_the_content(tmp_path: Path) -> None:
    one = write_table(tmp_path / "one", [[trajectory("a")]])
    same = write_table(tmp_path / "same", [[trajectory("a")]])
    other = write_table(tmp_path / "other", [[trajectory("b")]])
    assert one.digest == same.digest
    assert one.digest != other.digest


def test_row_groups_stay_below_their_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROW_GROUP_BYTES", 20_000)
    records = [trajectory(f"{index:02d}", system_prompt=f"{index}" * 2_000) for index in range(16)]
    records[5] = trajectory("05", system_prompt="x" * 50_000)
    write_shard(tmp_path / "t/data/part-00000.parquet", records, Trajectory)
    file = pq.ParquetFile(tmp_path / "t/data/part-00000.parquet")
    rows = [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]
    assert sum(rows) == 16
    assert len(rows) >= 4
    assert all(file.read_row_group(index).nbytes <= 20_000 or rows[index] == 1 for index in range(len(rows)))
    assert read_shard(tmp_path / "t/data/part-00000.parquet", Trajectory) == records


def test_some_columns_leave_the_others_at_their_defaults(tmp_path: Path) -> None:
    write_shard(tmp_path / "t/data/part-00000.parquet", [trajectory()], Trajectory)
    (row,) = read_shard(tmp_path / "t/data/part-00000.parquet", Trajectory, ["split"])
    assert (row.split, row.task_id, row.content) == ("train", None, trajectory().content)
    ids = read_columns(tmp_path / "t/data/part-00000.parquet", Trajectory, ["trajectory_id", "split"])
    assert ids.to_pylist() == [{"trajectory_id": "t1", "split": "train"}]
    with pytest.raises(ValueError, match=r"Trajectory has no columns \['spilt'\]"):
        read_columns(tmp_path / "t/data/part-00000.parquet", Trajectory, ["spilt"])


def test_a_missing_table_has_a_near_match(tmp_path: Path) -> None:
    write_table(tmp_path / "explored", [[trajectory()]])
    with user_error("table-missing", "/explord", "explored"):
        Table.open(tmp_path / "explord")


def test_a_folder_without_a_manifest_is_no_table(tmp_path: Path) -> None:
    write_shard(tmp_path / "t/data/part-00000.parquet", [trajectory()], Trajectory)
    with user_error("table-unfinished", "manifest.json"):
        Table.open(tmp_path / "t")


def test_a_folder_with_nothing_of_a_table_is_not_to_be_run_again(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    with user_error("table-missing", f"{tmp_path}/notes holds no table", "manifest.json"):
        Table.open(tmp_path / "notes")


def test_a_run_is_no_table_and_its_tables_are_named(tmp_path: Path) -> None:
    for name in ("explored", "kept"):
        write_table(tmp_path / "run" / name, [[trajectory()]])
    with user_error("folder-of-tables", f"{tmp_path}/run is a folder of tables", "explored, kept", "run/explored)"):
        Table.open(tmp_path / "run")
    # An unfinished table with finished ones in it is to be finished.
    write_shard(tmp_path / "run/data/part-00000.parquet", [trajectory()], Trajectory)
    with user_error("table-unfinished", "manifest.json"):
        Table.open(tmp_path / "run")


@pytest.mark.parametrize("method", ["read_bytes", "exists"])
def test_a_table_that_may_not_be_read(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(tmp_path / "t", [[trajectory()]])

    def denied(path: Path) -> Never:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    # Modes of files do not hold for root, as whom tests may run.
    monkeypatch.setattr(Path, method, denied)
    with user_error("not-readable", f"{tmp_path}/t/manifest.json cannot be read (Permission denied)"):
        Table.open(tmp_path / "t")


def test_the_data_folder_of_a_table_is_told_from_the_table(tmp_path: Path) -> None:
    write_table(tmp_path / "t", [[trajectory()]])
    with user_error("inside-a-table", "/t"):
        Table.open(tmp_path / "t/data")


def test_a_table_of_another_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t/data/part-00000.parquet"
    write_shard(path, [trajectory()], Trajectory)
    with user_error("wrong-record-type", "part-00000.parquet", "Trajectory", "Task"):
        read_shard(path, type(task()))


@pytest.mark.parametrize("text", [b"{", b"", b"[]", b'{"schema_version": "1.0"}', b"\xff"])
def test_a_damaged_manifest_is_named(text: bytes, tmp_path: Path) -> None:
    write_table(tmp_path / "t", [[trajectory()]])
    (tmp_path / "t/manifest.json").write_bytes(text)
    with user_error("damaged-file", "t/manifest.json"):
        read_manifest(tmp_path / "t")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"counts": Counts(read=3, used=1, dropped=0, written=1)}, "read 3, but used 1 and dropped 0"),
        ({"counts": Counts(read=2, used=1, dropped=1, written=1)}, "dropped 1, but the reasons say"),
        ({"counts": Counts(read=1, used=1, dropped=0, written=2)}, "written 2, but the files hold 1 rows"),
    ],
)
def test_counts_that_do_not_add_up_are_never_written(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = write_shard(tmp_path / "t/data/part-00000.parquet", [trajectory()], Trajectory)
    with pytest.raises(ValueError, match=message):
        write_manifest(tmp_path / "t", manifest([file], **fields))
    assert not (tmp_path / "t/manifest.json").exists()
