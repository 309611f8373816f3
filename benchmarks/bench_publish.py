"""A dry run of publishing a large table: every check over every row, the card, and what would change on the Hub.

The table holds ``ROWS`` rows of about 2 kB of text each, pieces of a long one of random words, in shards as a stage
writes them. The Hub is one on the loopback. The dry run is a process of its own; its wall time and its largest resident
set count.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import describe

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentmill.pipelines.engine.run import versions
from agentmill.schemas.ids import digest
from agentmill.schemas.records.record import SCHEMA_VERSION
from agentmill.schemas.records.rows import Message, SftRow
from agentmill.schemas.tables import Counts, Manifest, write_manifest, write_shard
from tests.writing_hub import WRITER, WritingHub

ROWS = int(os.environ.get("AGENTMILL_ROWS", "1000000"))
SHARD_ROWS = 20_000
TARGET_S, TARGET_GB = 60.0, 1.0
TURNS, CHARACTERS = 6, 340
WORDS = 6_000_000
PROGRAM = "from agentmill.pipelines.cli.main import main; main()"


def row(index: int, chance: random.Random, babble: str) -> SftRow:
    """A conversation of about 2 kB that no other equals."""
    starts = [chance.randrange(len(babble) - CHARACTERS) for _ in range(TURNS)]
    said = [babble[start : start + CHARACTERS] for start in starts]
    messages = [
        Message(role="assistant" if turn % 2 else "user", content=text, train=bool(turn % 2))
        for turn, text in enumerate(said)
    ]
    return SftRow(
        row_id=f"row-{index:08d}",
        trajectory_id=f"t-{index:08d}",
        view="sft",
        view_parameters={},
        messages=messages,
        task_id=f"task-{index % 5000}",
        environment_id=f"env-{index % 100}",
        split="train",
    )


def make(folder: Path) -> int:
    """Write the table; the characters of its conversations."""
    chance = random.Random(0)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(20_000)]
    babble = " ".join(chance.choices(words, k=WORDS))
    files, characters = [], 0
    for number, start in enumerate(range(0, ROWS, SHARD_ROWS)):
        rows = [row(index, chance, babble) for index in range(start, min(start + SHARD_ROWS, ROWS))]
        characters += sum(len(each.content or "") for one in rows for each in one.messages)
        files.append(write_shard(folder / f"data/part-{number:05d}.parquet", rows, SftRow))
    manifest = Manifest(
        table=folder.name,
        record="SftRow",
        schema_version=SCHEMA_VERSION,
        operator="sft",
        config={},
        config_digest=digest({}),
        inputs={},
        counts=Counts(read=ROWS, used=ROWS, dropped=0, written=ROWS),
        reasons={},
        files=files,
        dropped_files=[],
        seconds=0.0,
        created="2026-01-01T00:00:00+00:00",
        versions=versions(),
    )
    write_manifest(folder, manifest)
    return characters


def dry_run(folder: Path, address: str) -> tuple[float, float]:
    """Seconds and GB of one dry run."""
    named = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    hub = {"HF_ENDPOINT": address, "HF_HOME": str(folder.parent / "home"), "HF_TOKEN": WRITER}
    settings = {**hub, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = ["publish", str(folder), "--repo", "org/large", "--licence", "mit", "--dry-run"]
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", PROGRAM, *command], env={**named, **settings}, check=True)
    return time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e9


def main() -> int:
    """Make the table, try to publish it."""
    print(describe("pyarrow", "polars", "huggingface_hub"))
    with tempfile.TemporaryDirectory() as place, WritingHub().served() as address:
        folder = Path(place) / "rows"
        characters = make(folder)
        megabytes = sum(each.stat().st_size for each in (folder / "data").iterdir()) / 1e6
        print(f"{ROWS:,} rows of {characters / ROWS:,.0f} characters, {megabytes:,.0f} MB on disk")
        seconds, gigabytes = dry_run(folder, address)
    print(f"  dry run: {seconds:.1f} s (target {TARGET_S:g}), {gigabytes:.2f} GB (target {TARGET_GB:g})")
    return 0 if seconds <= TARGET_S and gigabytes <= TARGET_GB else 1


if __name__ == "__main__":
    sys.exit(main())
