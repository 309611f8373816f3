"""Broken files and full disks: one clear line, nothing half-written, no garbage rows."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentmill.schemas.arrow.convert import to_arrow
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.tables import Table, read_shard, write_manifest, write_shard
from tests.builders import trajectory
from tests.errors import user_error
from tests.schemas.test_tables import manifest, write_table


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "t/data/part-00000.parquet"
    records = [trajectory(f"t{index}", system_prompt=os.urandom(500).hex()) for index in range(20)]
    write_shard(path, records, Trajectory)
    return path


def refused(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_shard(path, Trajectory)
    message = str(caught.value)
    assert str(path) in message
    assert message.count("\n") == 0
    return message


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all", b"PAR1" + bytes(64) + b"PAR1"])
def test_what_is_no_parquet_file_is_named(content: bytes, shard: Path) -> None:
    shard.write_bytes(content)
    assert "is no readable Parquet file" in refused(shard)
    assert "delete it and run again what writes it" in refused(shard)


def test_a_folder_whose_name_is_no_text_does_not_make_its_files_damaged(shard: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(shard.parent.parent) + b"\xff"))
    shard.parent.parent.rename(folder)
    with user_error("not-readable", "not UTF-8; rename it"):
        read_shard(folder / "data" / shard.name, Trajectory)


@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_a_truncated_file_is_named(share: float, shard: Path) -> None:
    data = shard.read_bytes()
    shard.write_bytes(data[: int(len(data) * share)])
    refused(shard)


def test_a_flipped_bit_anywhere_is_never_read_as_data(shard: Path) -> None:
    good = read_shard(shard, Trajectory)
    data = shard.read_bytes()
    outcomes = []
    for position in range(4, len(data) - 8, len(data) // 60):
        broken = bytearray(data)
        broken[position] ^= 0x10
        shard.write_bytes(broken)
        try:
            outcomes.append(read_shard(shard, Trajectory) == good)
        except UserError:
            outcomes.append(True)
    assert len(outcomes) >= 60
    assert all(outcomes)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with user_error("no-such-file", "nothing.parquet"):
        read_shard(tmp_path / "nothing.parquet", Trajectory)
    refused(tmp_path)


def test_rows_that_break_the_schema_are_refused(tmp_path: Path) -> None:
    table = to_arrow([trajectory()], Trajectory)
    path = tmp_path / "rows.parquet"
    pq.write_table(table.set_column(0, "trajectory_id", pa.nulls(1, pa.large_string())), path)
    assert "rows break the Trajectory schema" in refused(path)
    pq.write_table(table.set_column(table.schema.get_field_index("extra"), "extra", pa.array(["{oops"])), path)
    assert "rows break the Trajectory schema" in refused(path)
    pq.write_table(table.set_column(table.schema.get_field_index("attempt"), "attempt", pa.array(["x"])), path)
    assert "column 'attempt': expected int64, got string" in refused(path)
    outcomes = pa.array([{"status": "failure", "rewrad": 0.5}])
    pq.write_table(table.set_column(table.schema.get_field_index("outcome"), "outcome", outcomes), path)
    assert "column 'outcome': unknown fields ['rewrad']" in refused(path)
    pq.write_table(table.set_column(table.schema.get_field_index("tools"), "tools", pa.array([1])), path)
    assert "column 'tools': expected a list, got int64" in refused(path)
    pq.write_table(table.append_column("extar", pa.array([1])), path)
    assert "Trajectory has no column 'extar'. Did you mean 'extra'?" in refused(path)


def test_a_shard_that_vanished_or_shrank_is_named(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t", [[trajectory()]])
    path = tmp_path / "t/data/part-00000.parquet"
    path.write_bytes(b"short")
    with user_error("manifest-mismatch", "part-00000.parquet", "5", "/t"):
        table.shards()
    path.unlink()
    with user_error("file-missing", "part-00000.parquet"):
        list(Table.open(tmp_path / "t").rows())


@pytest.fixture
def small_device(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if not mounted or mounted.returncode:
        pytest.skip("a tmpfs can be mounted here by nobody but root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_device_leaves_nothing_half_written(small_device: Path) -> None:
    table = small_device / "t"
    first = write_shard(table / "data/part-00000.parquet", [trajectory()], Trajectory)
    big = [trajectory("big", system_prompt=os.urandom(200_000).hex())]
    with user_error("no-space", "part-00001.parquet"):
        write_shard(table / "data/part-00001.parquet", big, Trajectory)
    assert [path.name for path in table.rglob("*") if path.is_file()] == ["part-00000.parquet"]
    (small_device / "filler").write_bytes(bytes(_free(small_device)))
    with user_error("no-space", "manifest.json"):
        write_manifest(table, manifest([first]))
    (small_device / "filler").unlink()
    with user_error("table-unfinished", "manifest.json"):
        Table.open(table)
    write_manifest(table, manifest([first]))
    assert [row.trajectory_id for row in Table.open(table).rows()] == ["t1"]


def _free(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_bsize
