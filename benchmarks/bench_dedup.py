"""``dedup`` on trajectories with planted near-duplicates: recall, precision, rows per processor second, and memory.

    PYTHONPATH=. .venv/bin/python benchmarks/bench_dedup.py [--rows 200000] [--datatrove /tmp/venv/bin/python]

A tenth of the trajectories are edited copies of others, whose exact Jaccard similarity of shingles of five words is
spread around 0.8; those of at least 0.8 are the pairs to be found, those below must not be joined. The whole step is
measured, from the Parquet files of trajectories to those of selections. With ``--datatrove``, a Python that has it and
spaCy, its MinHash (signatures, buckets, clusters, filter, with its defaults: shingles of five words, 14 bands of 8, no
comparison of candidates) runs over the texts of the first ``--compared`` rows, in JSON lines: once with its tokenizer
for English (spaCy), its default, and once with words split at spaces. Memory is the most that a process took, at two
numbers of rows of one short text.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from bench_normalize import peak_gb
from machine import describe

from agentmill.pipelines.duplicates import jaccard, shingles
from agentmill.pipelines.operators.dedup import SHINGLE, tokens_of
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.tables import Table
from tests.builders import agent_message, instruction, seen, trajectory
from tests.pipelines.engine.stages import write_table
from tests.pipelines.operators.steps import job

NEAR = 0.8
RECALL_TARGET, PRECISION_TARGET, SPEED_TARGET = 0.98, 0.99, 5.0
SHARD_ROWS = 5_000
TURNS = 6
WORDS = 40
"""Of each text; a trajectory has an instruction, ``TURNS`` messages and as many observations."""
VOCABULARY = 20_000
EVERY = 10
"""One in so many trajectories is an edited copy of the one before."""

DATATROVE = """
import sys, time, json
from pathlib import Path
from loguru import logger
logger.remove()
from datatrove.data import Document
from datatrove.pipeline.dedup.minhash import *
from datatrove.utils import word_tokenizers
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter
data, folder, spacy = sys.argv[1], sys.argv[2], sys.argv[3] == "spacy"
signature = MinhashDedupSignature(f"{folder}/sig", MinhashConfig())
if not spacy:
    class Spaces:
        def word_tokenize(self, text):
            return text.split()
    signature.word_tokenizer = Spaces()
began = time.process_time()
for _ in signature.run(JsonlReader(data).run(rank=0, world_size=1)) or (): pass
buckets = MinhashConfig().num_buckets
finder = MinhashDedupBuckets(f"{folder}/sig", f"{folder}/buckets", config=MinhashConfig())
for rank in range(buckets):
    finder.run(None, rank, buckets)
MinhashDedupCluster(f"{folder}/buckets", f"{folder}/remove", config=MinhashConfig()).run(None, 0, 1)
kept = sum(1 for _ in MinhashDedupFilter(f"{folder}/remove").run(JsonlReader(data).run(rank=0, world_size=1), 0, 1))
print(json.dumps({"seconds": time.process_time() - began, "kept": kept}))
"""


def word(number: int) -> str:
    """A word of four letters: datatrove takes all numbers for the same."""
    return "".join(chr(ord("a") + number // 26**place % 26) for place in range(4))


def texts(chance: random.Random, number: int) -> list[list[str]]:
    """The words of a trajectory that is like no other, or with ``EVERY`` an edited copy of the one before."""
    if number % EVERY == EVERY - 1:
        found = texts(random.Random(number - 1), number - 1)
        # Of n words, k that differ change at most 5 k of n - 4 shingles.
        total = len(found) * WORDS
        for place in chance.sample(range(total), round(total * chance.uniform(0.016, 0.031))):
            found[place // WORDS][place % WORDS] = word(chance.randrange(VOCABULARY, 2 * VOCABULARY))
        return found
    return [[word(chance.randrange(VOCABULARY)) for _ in range(WORDS)] for _ in range(2 * TURNS + 1)]


def made(number: int, turns: int = TURNS) -> Trajectory:
    """The trajectory of a number."""
    if turns == 0:
        return trajectory(f"{number:032x}", content=[instruction(f"{number} of no other words than these few")])
    first, *others = [" ".join(each) for each in texts(random.Random(number), number)]
    content: list[Any] = [instruction(first)]
    for turn in range(1, turns + 1):
        content += [agent_message(others[2 * turn - 2], turn), seen(others[2 * turn - 1], turn)]
    return trajectory(f"{number:032x}", content=content, task_id=f"{number // 20:08x}")


def write(folder: Path, rows: int, turns: int = TURNS) -> Table:
    """A table of so many trajectories, written a shard at a time."""
    parts = [range(start, min(rows, start + SHARD_ROWS)) for start in range(0, rows, SHARD_ROWS)]
    return write_table(folder, Parts(parts, turns), Trajectory)  # type: ignore[arg-type]


class Parts:
    """Shards that are made when they are written."""

    def __init__(self, parts: list[range], turns: int) -> None:
        self._parts = parts
        self._turns = turns

    def __iter__(self) -> Any:
        for part in self._parts:
            yield [made(number, self._turns) for number in part]


def exact(number: int) -> float:
    """The Jaccard similarity of a planted pair, the copy being ``number``."""
    sets = []
    for each in (number - 1, number):
        hashes, _ = shingles([tokens_of("text", made(each))], SHINGLE["text"])
        sets.append(np.unique(hashes))
    return jaccard(*sets)


def quality(table: Table, rows: int) -> bool:
    """Print recall and precision; whether they reach the targets."""
    dropped = {row.trajectory_id: row.reason for row in table.rows(["reason"]) if not row.kept}
    planted = range(EVERY - 1, rows, EVERY)
    similar = {number: exact(number) for number in planted}
    wanted = {number for number, found in similar.items() if found >= NEAR}
    near = {number for number in wanted if similar[number] < NEAR + 0.02}
    found = {int(each, 16) for each in dropped}
    recall, precision = len(wanted & found) / max(1, len(wanted)), len(wanted & found) / max(1, len(found))
    print(
        f"  {rows:,} rows, {len(planted):,} copies, {len(wanted):,} of Jaccard >= {NEAR}: recall {recall:.4f} (target"
        f" {RECALL_TARGET}), of the {len(near):,} below {NEAR + 0.02:.2f}"
        f" {len(near & found) / max(1, len(near)):.4f}; precision {precision:.4f} (target {PRECISION_TARGET})"
    )
    return recall >= RECALL_TARGET and precision >= PRECISION_TARGET


def dedup(folder: Path, name: str) -> None:
    """The whole step."""
    job(folder, "dedup", name, of="runs", near=NEAR).run()


def datatrove(python: str, folder: Path, kind: str, rows: int) -> float:
    """Rows per processor second of datatrove over the texts. Raises ``CalledProcessError`` if it fails."""
    with tempfile.TemporaryDirectory(dir=folder) as out:
        command = [python, "-c", DATATROVE, str(folder / "texts"), out, kind]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"  datatrove ({kind}): {rows / found['seconds']:,.0f} rows per processor second, keeps {found['kept']:,}")
    return float(rows / found["seconds"])


def write_texts(folder: Path, rows: int) -> None:
    """The texts of the first rows, as JSON lines."""
    (folder / "texts").mkdir()
    with (folder / "texts" / "0.jsonl").open("w") as file:
        for row in islice(Table.open(folder / "runs").rows(["content"]), rows):
            text = " ".join(item.content for item in row.content)
            file.write(json.dumps({"id": row.trajectory_id, "text": text}) + "\n")


def peak(rows: int, folder: Path) -> float:
    """The most GB of memory that a process took for so many rows, of one short text each."""
    write(folder / str(rows) / "runs", rows, turns=0)
    command = [sys.executable, __file__, "--run", str(folder / str(rows))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.splitlines()[-1])


def main() -> int:
    """Measure quality and speed, then memory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--datatrove", help="a Python that has datatrove")
    parser.add_argument("--compared", type=int, default=20_000, help="rows that datatrove is given, the first ones")
    parser.add_argument("--memory", type=int, nargs=2, default=[100_000, 1_000_000], help="rows to compare memory at")
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        dedup(given.run, "unique")
        print(peak_gb())
        return 0
    print(describe("rensa", "numpy", "pyarrow"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "runs", given.rows)
        began, wall = time.process_time(), time.monotonic()
        dedup(folder, "unique")
        seconds, wall = time.process_time() - began, time.monotonic() - wall
        met = [quality(Table.open(folder / "unique"), given.rows)]
        print(f"  dedup: {given.rows / seconds:,.0f} rows per processor second ({seconds:.1f} s, wall {wall:.1f} s)")
        if given.datatrove:
            compared = min(given.rows, given.compared)
            write_texts(folder, compared)
            for kind, target in (("spacy", SPEED_TARGET), ("spaces", 0.0)):
                ratio = given.rows / seconds / datatrove(given.datatrove, folder, kind, compared)
                met.append(ratio >= target)
                wanted = f" (target {target:g})" if target else ""
                print(f"  dedup against datatrove ({kind}) on {compared:,} of the rows: {ratio:.1f} times{wanted}")
        few, many = given.memory
        low, high = peak(few, folder), peak(many, folder)
        each = (high - low) * 1e9 / (many - few)
        print(f"  memory: {low:.2f} GB at {few:,} rows, {high:.2f} GB at {many:,}: {each:,.0f} bytes per trajectory")
    return 0 if all(met) else 1


if __name__ == "__main__":
    from bench_dedup import main as importable

    sys.exit(importable())
