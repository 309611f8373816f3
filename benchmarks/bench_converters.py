"""``normalize`` against the reference converters of the Agent Data Protocol: processor time on the same rows.

``--adp`` is a checkout of https://github.com/neulab/agent-data-protocol; its converters are run as its README runs
them, ``raw_to_standardized.py < rows``, and write JSON lines without provenance, outcome or checks. Ours is the whole
step: finding the records, reading, the dialect, checks, Parquet with zstd, manifest. Two data sets that both can read:
SWE-smith (about 100 kB a row) and the operating-system part of AgentInstruct (about 4 kB).

Each side runs as a process of its own, in turns, over few rows and over many. The difference of the user and system
time is what the rows cost, so start-up (imports, Beam) does not count; it is printed too. Of several rounds the least
counts. Exit status 1 if a ratio is under its target.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from bench_normalize import prose, swe
from machine import describe

from agentmill.pipelines.operators.make_table import make_table
from agentmill.pipelines.operators.normalize import Normalize
from agentmill.pipelines.operators.operator import StepContext
from agentmill.schemas.config import validate
from agentmill.schemas.records.record import JsonObject

ROUNDS = 5
FEW = 10
"""Rows of the short run, which is nearly all start-up."""

SUBMIT = {"role": "assistant", "content": "Done.\n\n<function=submit>\n</function>"}
"""The reference drops every run that does not end so."""

OS_PROMPT = (
    "You are an assistant that will act like a person, I will play the role of linux(ubuntu) operating system. "
    f"{prose(random.Random(3), 170)}\n\nNow, my problem is:\n\n"
)


class Kind(NamedTuple):
    """A data set: its folder in the reference, how a row is made, and how ours reads it."""

    reference: str
    row: Callable[[random.Random, int], JsonObject]
    profile: JsonObject
    target: float


def swe_smith(chance: random.Random, number: int) -> JsonObject:
    """A run of SWE-smith, submitted."""
    row = swe(chance, number)
    return {**row, "messages": [*row["messages"], SUBMIT], "id": f"run-{number}"}


def agentinstruct_os(chance: random.Random, number: int) -> JsonObject:
    """Five commands in a shell and an answer."""
    turns = [{"role": "user", "content": OS_PROMPT + prose(chance, 20)}]
    for _ in range(5):
        act = f"Think: {prose(chance, 16)}\n\nAct: bash\n\n```bash\nls /{prose(chance, 4)}\n```"
        turns += [
            {"role": "assistant", "content": act},
            {"role": "user", "content": f"The output of the OS:\n{prose(chance, 16)}"},
        ]
    turns.append({"role": "assistant", "content": f"Think: {prose(chance, 16)}\n\nAct: answer({number})"})
    return {"id": f"os_{number}", "conversations": turns}


KINDS = {
    "100 kB": Kind(
        "swe-smith",
        swe_smith,
        {
            "format": "openai",
            "options": {"dialect": "function_xml"},
            "task_id": "instance_id",
            "outcome": {"field": "resolved"},
        },
        2.0,
    ),
    "4 kB": Kind(
        "agenttuning_os",
        agentinstruct_os,
        {
            "format": "sharegpt",
            "options": {"dialect": "react", "dialect_options": {"commands": ["finish"]}},
            "task_id": "id",
        },
        1.0,
    ),
}


def write_rows(path: Path, kind: Kind, count: int) -> None:
    """Write ``count`` rows, no two alike."""
    chance = random.Random(7)
    pool = [kind.row(chance, number) for number in range(min(count, 200))]
    with path.open("wb") as file:
        for number in range(count):
            file.write(msgspec.json.encode({**pool[number % len(pool)], "id": f"run-{number}"}) + b"\n")


def cpu_seconds(command: Sequence[str], rows: Path, env: Mapping[str, str] | None = None) -> float:
    """User and system time of a process that gets ``rows`` as its input. Raises ``SystemExit`` if it fails."""
    with rows.open("rb") as given, tempfile.TemporaryFile() as out:
        child = subprocess.Popen(command, stdin=given, stdout=out, stderr=subprocess.PIPE, env=env)
        _, errors = child.stderr, child.stderr.read() if child.stderr else b""
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{command} failed:\n{errors.decode(errors='replace')}")
    return usage.ru_utime + usage.ru_stime


def reference_seconds(kind: Kind, checkout: Path, rows: Path) -> float:
    """Processor time of the reference converter."""
    here = checkout / "datasets" / kind.reference
    env = {**os.environ, "PYTHONPATH": f"{checkout}{os.pathsep}{here}"}
    return cpu_seconds([sys.executable, str(here / "raw_to_standardized.py")], rows, env)


def our_seconds(name: str, rows: Path) -> float:
    """Processor time of our step."""
    with tempfile.TemporaryDirectory(dir=rows.parent) as folder:
        return cpu_seconds([sys.executable, __file__, "--normalize", name, str(rows), f"{folder}/table"], rows)


def normalize(name: str, rows: Path, folder: Path) -> None:
    """Run our step in this process."""
    parameters: Normalize = validate(
        Normalize, {"data": [str(rows)], "dataset": "bench", **KINDS[name].profile}, "bench"
    )
    make_table(parameters, {}, StepContext(operator="normalize", name=folder.name, folder=folder))


def compare(name: str, megabytes: float, checkout: Path, folder: Path) -> bool:
    """Print both sides and their ratio; whether the target is met."""
    kind = KINDS[name]
    few, many = folder / "few.jsonl", folder / "many.jsonl"
    write_rows(few, kind, FEW)
    count = max(10 * FEW, int(megabytes * 1e6 / (few.stat().st_size / FEW)))
    write_rows(many, kind, count)
    sides: dict[str, Callable[[Path], float]] = {
        "reference": lambda rows: reference_seconds(kind, checkout, rows),
        "ours": lambda rows: our_seconds(name, rows),
    }
    starts = {side: float("inf") for side in sides}
    totals = dict(starts)
    for _ in range(ROUNDS):
        for side, seconds in sides.items():
            starts[side] = min(starts[side], seconds(few))
            totals[side] = min(totals[side], seconds(many))
    each = {side: (totals[side] - starts[side]) / (count - FEW) for side in sides}
    ratio = each["reference"] / each["ours"]
    shown = ", ".join(f"{side} {1e6 * each[side]:,.0f} us a row (start-up {starts[side]:.2f} s)" for side in sides)
    print(
        f"  {name} ({kind.reference}, {count} rows of {many.stat().st_size / count / 1e3:.1f} kB): {shown};"
        f" ours is {ratio:.2f} times as fast (target {kind.target:g}{'' if ratio >= kind.target else ', MISSED'})",
        flush=True,
    )
    return ratio >= kind.target


def main() -> int:
    """Compare both data sets."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--adp", type=Path, metavar="FOLDER", help="a checkout of agent-data-protocol")
    parser.add_argument("--mb", type=float, default=100.0, help="raw input of each data set, in MB")
    parser.add_argument("--normalize", nargs=3, metavar=("KIND", "ROWS", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.normalize:
        name, rows, folder = given.normalize
        normalize(name, Path(rows), Path(folder))
        return 0
    if given.adp is None:
        parser.error("--adp FOLDER: a checkout of https://github.com/neulab/agent-data-protocol")
    print(describe("pydantic", "apache-beam", "msgspec", "pyarrow"))
    with tempfile.TemporaryDirectory() as folder:
        met = [compare(name, given.mb, given.adp.resolve(), Path(folder)) for name in KINDS]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
