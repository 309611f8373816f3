"""``select_diverse`` on many trajectories: seconds, memory, and coverage against a random choice and MiniBatchKMeans.

    PYTHONPATH=. .venv/bin/python benchmarks/bench_select_diverse.py [--rows 100000] [--size 78]

The trajectories are of topics, which are as frequent as words are (Zipf). A topic has favourite tools and phrases; each
trajectory mixes them with tools and words that all topics share. The whole step is measured, from the Parquet files of
trajectories to those of selections, with ``method: coverage`` and with ``clusters``, which is MiniBatchKMeans with the
member nearest to each centre. Coverage is that of the features of all trajectories, without sketches, counted anew.
Memory is the most that a process took, at two numbers of rows.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from bench_normalize import peak_gb
from machine import describe

from agentmill.pipelines.duplicates import shingles
from agentmill.pipelines.operators.dedup import tokens_of
from agentmill.pipelines.operators.select_diverse import FEATURES, SelectDiverse
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.tables import Table
from tests.builders import agent_message, called, instruction, trajectory
from tests.pipelines.engine.stages import write_table
from tests.pipelines.operators.steps import job

SHARD_ROWS = 5_000
TOPICS = 400
TOOLS, WORDS = 120, 8_000
CALLS = 10
METHODS = ("coverage", "clusters")
TARGET = 1.0
"""The least coverage, as a multiple of that of MiniBatchKMeans."""


def made(number: int) -> Trajectory:
    """The trajectory of a number."""
    chance = random.Random(number)
    topic = min(TOPICS - 1, int(TOPICS ** chance.random()) - 1)
    own = random.Random(f"topic {topic}")
    tools = [own.randrange(TOOLS) for _ in range(6)]
    phrases = [" ".join(f"w{own.randrange(WORDS)}" for _ in range(5)) for _ in range(12)]
    content: list[Any] = [instruction(" ".join(chance.sample(phrases, 4)))]
    for turn in range(1, CALLS + 1):
        tool = chance.choice(tools) if chance.random() < 0.8 else chance.randrange(TOOLS)
        content.append(called(f"tool{tool}", turn, f"c{turn}", x=chance.randrange(9)))
    content.append(agent_message(f"{chance.choice(phrases)} w{chance.randrange(WORDS)} done", CALLS + 1))
    return trajectory(f"{number:032x}", content=content, environment_id=f"e{topic % 20}")


class Parts:
    """Shards that are made when they are written."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __iter__(self) -> Any:
        for start in range(0, self._rows, SHARD_ROWS):
            yield [made(number) for number in range(start, min(self._rows, start + SHARD_ROWS))]


def select(folder: Path, method: str, size: int) -> None:
    """The whole step."""
    job(folder, "select_diverse", method, of="runs", size=size, method=method).run()


def all_features(row: Trajectory) -> list[set[int]]:
    """The features of a trajectory by kind, none left out."""
    found = []
    for kind in SelectDiverse.model_fields["features"].default:
        tokens = tokens_of(kind, row)
        found.append(set(shingles([tokens], FEATURES[kind])[0].tolist()) if tokens else set())
    return found


def coverage(counts: list[Counter[int]], ids: set[str]) -> float:
    """The share of all features, by frequency and alike for each kind, that the trajectories of these ids have."""
    rows = [all_features(made(int(each, 16))) for each in ids]
    shares = []
    for kind, count in enumerate(counts):
        covered = set[int]().union(*(row[kind] for row in rows))
        shares.append(sum(count[each] for each in covered) / count.total())
    return float(np.mean(shares))


def peak(folder: Path, rows: int, method: str, size: int) -> float:
    """The most GB of memory that a process took for so many rows."""
    if not (folder / str(rows)).exists():
        write_table(folder / str(rows) / "runs", Parts(rows), Trajectory)  # type: ignore[arg-type]
    command = [sys.executable, __file__, "--run", str(folder / str(rows)), method, "--size", str(size)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.splitlines()[-1])


def measured(folder: Path, method: str, rows: int, size: int, counts: list[Counter[int]]) -> float:
    """Choose by ``method``, print how long it took, and return what share of the features it covers."""
    began, wall = time.process_time(), time.monotonic()
    select(folder, method, size)
    seconds, wall = time.process_time() - began, time.monotonic() - wall
    found = coverage(counts, {row.trajectory_id for row in Table.open(folder / method).rows() if row.kept})
    metrics = Table.open(folder / method).manifest.metrics
    print(f"  {method}: {size} of {rows:,}, {seconds:.1f} s of a processor (wall {wall:.1f} s)")
    print(
        f"    covers {found:.4f}; by its sketches {metrics['coverage']:.4f}, a random choice"
        f" {metrics['coverage_random']:.4f}"
    )
    return found


def best_by_chance(rows: int, size: int, counts: list[Counter[int]]) -> float:
    """What the best of ten random choices covers; prints their mean."""
    chance = random.Random(1)
    draws = [{f"{each:032x}" for each in chance.sample(range(rows), size)} for _ in range(10)]
    shares = [coverage(counts, ids) for ids in draws]
    print(f"  random: covers {np.mean(shares):.4f}, standard deviation {np.std(shares):.4f} of {len(draws)} draws")
    return max(shares)


def main() -> int:
    """Measure coverage and speed, then memory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=78)
    parser.add_argument("--memory", type=int, nargs=2, default=[20_000, 100_000], help="rows to compare memory at")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        select(Path(given.run[0]), given.run[1], given.size)
        print(peak_gb())
        return 0
    print(describe("scikit-learn", "numpy", "pyarrow"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_table(folder / "runs", Parts(given.rows), Trajectory)  # type: ignore[arg-type]
        counts = [Counter[int]() for _ in SelectDiverse.model_fields["features"].default]
        for number in range(given.rows):
            for count, own in zip(counts, all_features(made(number)), strict=True):
                count.update(own)
        found = {method: measured(folder, method, given.rows, given.size, counts) for method in METHODS}
        best = best_by_chance(given.rows, given.size, counts)
        ratio = found["coverage"] / found["clusters"]
        print(f"  coverage against MiniBatchKMeans: {ratio:.2f} times (target {TARGET:g})")
        few, many = given.memory
        for method in METHODS:
            low, high = (peak(folder, rows, method, given.size) for rows in (few, many))
            each = (high - low) * 1e9 / (many - few)
            print(
                f"  memory, {method}: {low:.2f} GB at {few:,} rows, {high:.2f} GB at {many:,}: {each:,.0f} bytes each"
            )
    return 0 if ratio >= TARGET and found["coverage"] > best else 1


if __name__ == "__main__":
    # What pickles must be importable by its name.
    from bench_select_diverse import main as importable

    sys.exit(importable())
