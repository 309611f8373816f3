"""A full device: one line for the user, nothing half written, and the run goes on once there is space."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentmill.pipelines.engine import attempts
from agentmill.pipelines.engine.operation import Operation
from agentmill.pipelines.engine.run import run_stage
from agentmill.schemas.tables import Table
from tests.errors import user_error
from tests.pipelines.engine.operations import Distinct, Explore, Shout
from tests.pipelines.engine.stages import order, rows_of, task, write_table


@pytest.fixture
def small_device(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "device"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("a tmpfs can be mounted here by nobody but root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("runner", ["embedded", "bundle_retry", "multi_processing"])
@pytest.mark.parametrize("operation", [Shout(), Distinct(), Explore()])
def test_a_full_device(operation: Operation, runner: str, small_device: Path, tmp_path: Path) -> None:
    chance = random.Random(0)
    table = write_table(
        tmp_path / "tasks", [[task(i, instruction=f"{chance.randbytes(4_000).hex()}") for i in range(60)]]
    )
    request = order(operation, table, small_device / "out", runner={"name": runner})
    with user_error("no-space") as caught:
        run_stage(request)
    assert len(str(caught.value).splitlines()) == 1
    assert not (small_device / "out" / "manifest.json").exists()
    left = attempts.current(small_device / "out")
    assert left is not None
    results = [left.result("results", index) for index in left.finished("results")]
    done = {each.data.name: left.path / each.place / "data" / each.data.name for each in results if each is not None}
    stamps = {name: path.stat().st_mtime_ns for name, path in done.items()}
    subprocess.run(["mount", "-o", "remount,size=16m", str(small_device)], check=True)
    manifest = run_stage(request)
    assert manifest.counts.written == len(rows_of(small_device / "out")) in (60, 120)
    after = {name: (small_device / "out/data" / name).stat().st_mtime_ns for name in stamps}
    assert after == stamps, "finished chunks were done again"
    Table.open(small_device / "out").shards()
