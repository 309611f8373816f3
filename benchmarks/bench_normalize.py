"""``normalize`` on generated records in real formats and sizes: records/s and MB/s a core, and what holds it back.

Two data sets: OpenAI chat messages with calls as ``<function=…>`` text, about 100 kB a record, as of SWE-smith; and
ShareGPT turns in ReAct, about 5 kB a record, as of AgentInstruct. The whole stage is measured: finding the records,
cutting, reading, the dialect, checking that Arrow can hold each row, Parquet, manifest, and the tenth of a second that
Beam takes to start. Beside it, in the same rounds, decoding, hashing, Arrow and Parquet alone on the first of the same
records: what no reader could do without. Then, over ``--gb`` gigabytes of the first kind, two workers against one, by
the wall and their start-up included; two processes that share nothing and read half of it each, which is what the
machine has to give; and the most memory that a process of these took.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import random
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from bench_beam import best
from machine import describe

from agentmill.pipelines.engine.runner import RunnerConfig
from agentmill.pipelines.operators.normalize import Normalize
from agentmill.pipelines.operators.operator import StepContext
from agentmill.pipelines.sources.planning import plan_parts
from agentmill.schemas.config import validate
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.tables import Table, write_shard
from tests.pipelines.operators.steps import StepRun

TARGETS = {"swe": 1_000, "react": 8_000}
SCALING_TARGET = 1.6
MEMORY_TARGET_GB = 1.5
PART_MB: float = Normalize.model_fields["part_mb"].default
SCALINGS = 2
"""How often one worker, two, and two processes are timed, in turns; the best of each counts."""
COMPARED = 4
"""Of how many records one is read without a reader, too."""
WORDS = tuple(sorted(sys.stdlib_module_names))
FORMATS: dict[str, dict[str, Any]] = {
    "swe": {"format": "openai", "options": {"dialect": "function_xml"}, "outcome": {"field": "resolved"}},
    "react": {"format": "sharegpt", "options": {"dialect": "react"}},
}


def prose(chance: random.Random, words: int) -> str:
    """Text of words and line breaks."""
    return " ".join(chance.choice(WORDS) + ("\n" if chance.random() < 0.1 else "") for _ in range(words))


SYSTEM = prose(random.Random(1), 400)
INSTRUCTION = prose(random.Random(2), 170)


def swe(chance: random.Random, number: int) -> dict[str, Any]:
    """A run of 20 calls that look at six files, over and over, and edit them."""
    files = [[f"    {prose(chance, 6)}" for _ in range(120)] for _ in range(6)]
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prose(chance, 500)}]
    for _ in range(20):
        file, first = chance.choice(files), chance.randrange(76)
        seen = "\n".join(f"{first + place:6}\t{line}" for place, line in enumerate(file[first : first + 44]))
        old = "\n".join(file[first : first + 9])
        call = (
            f"<function=edit>\n<parameter=path>/testbed/{chance.choice(WORDS)}.py</parameter>\n<parameter=old>\n{old}\n"
        )
        call += f"</parameter>\n<parameter=new>\n{old}\n    {prose(chance, 20)}\n</parameter>\n</function>"
        messages.append({"role": "assistant", "content": f"{prose(chance, 40)}\n{call}"})
        messages.append({"role": "user", "content": f"OBSERVATION:\n{seen}"})
    return {
        "messages": messages,
        "instance_id": f"task-{number}",
        "resolved": number % 3 == 0,
        "patch": prose(chance, 200),
    }


def react(chance: random.Random, number: int) -> dict[str, Any]:
    """A run of five searches, after an instruction that all runs share."""
    turns = [{"from": "human", "value": f"{INSTRUCTION}\n{prose(chance, 20)}", "loss": None}]
    for _ in range(5):
        said = f"Thought: {prose(chance, 30)}\nAction: search[{prose(chance, 4)}]"
        turns += [
            {"from": "gpt", "value": said, "loss": True},
            {"from": "human", "value": prose(chance, 32), "loss": None},
        ]
    return {"id": f"run_{number}", "conversations": turns}


def write(path: Path, kind: str, megabytes: float, first: int = 0) -> int:
    """Write records, no two alike, numbered from ``first``, up to a size; returns how many."""
    chance, make = random.Random(7), {"swe": swe, "react": react}[kind]
    pool = [make(chance, number) for number in range(200)]
    written = count = 0
    with path.open("wb") as file:
        while written < megabytes * 1e6:
            record = pool[count % len(pool)] | {"number": first + count}
            written += file.write(msgspec.json.encode(record) + b"\n")
            count += 1
    return count


def job(data: Sequence[Path], folder: Path, kind: str, workers: int = 1) -> StepRun:
    """The stage over ``data``, whose records it finds by itself, whatever an earlier run found."""
    plan_parts.cache_clear()
    given = {"data": [str(file) for file in data], "dataset": kind, **FORMATS[kind]}
    stage: Normalize = validate(Normalize, given, "bench")
    runner = RunnerConfig(name="multi_processing", workers=workers) if workers > 1 else RunnerConfig()
    context = StepContext(operator="normalize", name=folder.name, folder=folder)
    return StepRun(parameters=stage, inputs={}, context=context, runner=runner)


def floor(lines: Sequence[bytes], runs: Sequence[Trajectory], path: Path) -> None:
    """What cannot be avoided: decode, hash, make Arrow and Parquet of trajectories that are there already."""
    size = max(1, len(lines) * int(PART_MB * 1e6) // sum(map(len, lines)))
    for start in range(0, len(lines), size):
        for line in lines[start : start + size]:
            msgspec.json.decode(line)
            hashlib.sha256(line).hexdigest()
        write_shard(path, runs[start : start + size], Trajectory)


def measure(kind: str, megabytes: float, folder: Path) -> bool:
    """Print records/s of the stage and of its floor; whether the target is met."""
    data = folder / f"{kind}.jsonl"
    count = write(data, kind, megabytes)
    size = data.stat().st_size / 1e6
    job([data], folder / f"{kind}-kept", kind).run()
    table = Table.open(folder / f"{kind}-kept")
    assert table.manifest.counts.used == count
    few = max(1, count // COMPARED)
    with data.open("rb") as file:
        runs, lines = list(islice(table.rows(), few)), list(islice(file, few))
    gc.freeze()  # what only the comparison holds is nothing for the collector to look at
    made = iter(range(10**6))
    (ours, wall), (least, _) = best(
        lambda: job([data], folder / f"{kind}-{next(made)}", kind).run(),
        lambda: floor(lines, runs, folder / "floor" / "data" / "part-00000.parquet"),
    )
    met = count / ours >= TARGETS[kind]
    told = f"{count} records of {size / count * 1e3:.1f} kB"
    print(
        f"  {kind}: {told}: {count / ours:,.0f} records/s, {size / ours:.0f} MB/s a core (wall {wall:.2f} s; target"
        f" {TARGETS[kind]:,}{'' if met else ', MISSED'}); decode, hash, Arrow and zstd alone {few / least:,.0f}"
        f" records/s, {size / count * few / least:.0f} MB/s: ratio {least / few / (ours / count):.2f}"
    )
    return met


def scale(gigabytes: float, folder: Path) -> bool:
    """Print two workers and two processes that share nothing against one, and memory; whether the targets are met."""
    halves = [folder / "first.jsonl", folder / "second.jsonl"]
    count = write(halves[0], "swe", gigabytes * 500)
    write(halves[1], "swe", gigabytes * 500, first=count)
    sides = {"one": ([halves], 1), "two": ([halves], 2), "apart": ([[half] for half in halves], 1)}
    walls: dict[str, list[float]] = {name: [] for name in sides}
    peaks = []
    for _ in range(SCALINGS):
        for name, (inputs, workers) in sides.items():
            wall, peak = run_apart(inputs, folder, workers)
            walls[name].append(wall)
            peaks.append(peak)
    one, two, apart = (min(each) for each in walls.values())
    told = f"{one:.1f} s -> {two:.1f} s, ratio {one / two:.2f} (target {SCALING_TARGET})"
    print(f"  two workers over {gigabytes:g} GB: {told}; two processes that share nothing: ratio {one / apart:.2f}")
    print(f"  peak memory over {gigabytes:g} GB: {max(peaks):.2f} GB (target {MEMORY_TARGET_GB} over 10 GB)")
    return one / two >= SCALING_TARGET and max(peaks) <= MEMORY_TARGET_GB


def run_apart(inputs: Sequence[Sequence[Path]], folder: Path, workers: int) -> tuple[float, float]:
    """Wall seconds of a run for each of ``inputs``, all at once; GB of memory that the largest process of them had.

    Each has loaded what it needs before that, but for the workers it starts. Raises ``SystemExit`` if one fails.
    """
    with contextlib.ExitStack() as stack:
        children = []
        for files in inputs:
            out = stack.enter_context(tempfile.TemporaryDirectory(dir=folder))
            command = [sys.executable, __file__, "--run", str(workers), out, *map(str, files)]
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            children.append(stack.enter_context(child))
            if child.stdout.readline() != "ready\n":
                raise SystemExit(f"a run has failed before its start: {shlex.join(command)}")
        began = time.monotonic()
        for child in children:
            child.stdin.write("go\n")
            child.stdin.close()
        peaks = [child.stdout.readline() for child in children]
        wall = time.monotonic() - began
        if any(child.wait() for child in children):
            raise SystemExit(f"a run has failed: {shlex.join(command)}")
        return wall, max(map(float, peaks))


def run_here(workers: int, folder: Path, data: Sequence[Path]) -> None:
    """Load what a run needs, say so, and run when told to; then print the peak memory in GB."""
    few = folder / "few.jsonl"
    write(few, "swe", 0.1)
    job([few], folder / "few", "swe").run()
    print("ready", flush=True)
    if sys.stdin.readline() == "go\n":
        job(data, folder / "all", "swe", workers).run()
        print(peak_gb(), flush=True)


def peak_gb() -> float:
    """The most memory that this process had, or a worker of it that has ended, in GB.

    ``getrusage`` would tell that of the parent of this process, if that is more.
    """
    own_kb = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    return max(own_kb, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) * 1024 / 1e9


def main() -> int:
    """Measure both data sets, then two workers and memory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mb", type=float, default=960.0, help="raw input of each data set, in MB")
    parser.add_argument(
        "--gb", type=float, default=10.0, help="raw input of one worker against two, in GB; put into TMPDIR"
    )
    parser.add_argument("--run", nargs="+", metavar="WORKERS FOLDER DATA", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        workers, out, *data = given.run
        run_here(int(workers), Path(out), [Path(file) for file in data])
        return 0
    print(describe("apache-beam", "msgspec", "pyarrow"))
    with tempfile.TemporaryDirectory() as folder:
        met = [measure(kind, given.mb, Path(folder)) for kind in TARGETS]
        met.append(scale(given.gb, Path(folder)))
    return 0 if all(met) else 1


if __name__ == "__main__":
    from bench_normalize import main as importable

    sys.exit(importable())
