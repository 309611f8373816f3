"""A report of 1,000,000 trajectories and as many dead letters: time and memory, beside those of a fiftieth of it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
from bench_records import trajectories
from bench_view import run
from machine import describe

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.recipes.run_folder import RECIPE
from agentmill.schemas.config import dump_yaml
from agentmill.schemas.records.verdict import Dropped
from agentmill.schemas.tables import Counts, ShardFile, write_manifest, write_shard

SHARD_ROWS = 20_000
SHARDS = 50
TARGET_S = 30.0
TARGET_MIB = 1_024
STEP = {"operator": "sample", "policy": "actor", "tasks": "tasks", "environments": "worlds", "as": "explored"}


def write_run(folder: Path, shards: int) -> None:
    """A run of one table, all of whose files hold the same rows."""
    models, data = {"actor": {"policy": "scripted", "turns": []}}, {"tasks": "tasks", "worlds": "worlds"}
    recipe = {"name": "large", "run_dir": str(folder), "models": models, "data": data, "steps": [STEP]}
    likes = trajectories(200, 6, 30)
    table = seed_table(folder / "explored", [run(index, likes[index % len(likes)]) for index in range(SHARD_ROWS)])
    letters = [letter(index) for index in range(SHARD_ROWS)]
    dropped = write_shard(folder / "explored/dropped/part-00000.parquet", letters, Dropped)
    rows = shards * SHARD_ROWS
    reasons = Counter(each.reason for each in letters)
    manifest = msgspec.structs.replace(
        table.manifest,
        files=copies(folder / "explored/data", table.manifest.files[0], shards),
        dropped_files=copies(folder / "explored/dropped", dropped, shards),
        counts=Counts(read=2 * rows, used=rows, dropped=rows, written=rows),
        reasons={reason: shards * n for reason, n in reasons.items()},
    )
    write_manifest(folder / "explored", manifest)
    (folder / RECIPE).write_text(dump_yaml(recipe), encoding="utf-8")


def letter(index: int) -> Dropped:
    """One of the dead letters: the last twenty of a file are of a rare reason."""
    reason = "rare" if index >= SHARD_ROWS - 20 else f"reason {index % 5}"
    return Dropped(
        input_id=f"{index:032x}", stage="explored", reason=reason, blamed="policy", input={"text": "word " * 100}
    )


def copies(folder: Path, file: ShardFile, n: int) -> list[ShardFile]:
    """A file under ``n`` names."""
    names = [f"part-{number:05d}.parquet" for number in range(n)]
    for name in names[1:]:
        os.link(folder / file.name, folder / name)
    return [msgspec.structs.replace(file, name=name) for name in names]


def measured(folder: Path, file: Path) -> tuple[float, float]:
    """Seconds and MiB of a report, in a process of its own."""
    code = (
        "import resource, sys\nfrom agentmill.pipelines.cli.main import invoke\n"
        f"assert invoke({['report', str(folder), '--out', str(file)]!r}) == 0\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    command: Sequence[str] = [sys.executable, "-c", code]
    start = time.perf_counter()
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return time.perf_counter() - start, float(told.split()[-1])


def main() -> int:
    """Write and measure."""
    print(describe("matplotlib", "polars", "pyarrow"))
    good = True
    for shards in (1, SHARDS):
        with tempfile.TemporaryDirectory() as root:
            write_run(Path(root) / "run", shards)
            taken, memory = measured(Path(root) / "run", Path(root) / "report.html")
            counted = f'<td class="number">{shards * SHARD_ROWS:,}</td>'
            assert (Path(root) / "report.html").read_text().count(counted) > 2
        good &= taken <= TARGET_S and memory <= TARGET_MIB
        print(f"  {shards * SHARD_ROWS:,} trajectories, as many dead letters: {taken:.1f} s, {memory:,.0f} MiB")
    print(f"  targets: {TARGET_S:g} s, {TARGET_MIB:,} MiB")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
