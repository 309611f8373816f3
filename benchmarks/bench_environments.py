"""Environments and tasks without a model, through the real stages: how many of how many are admitted, and how fast.

Environments of families ``pddl``, ``toolbox`` and ``codegym`` are proposed and admitted (a near-duplicate of another is
dropped), given tasks, and these are admitted likewise; two workers. The bar: 500 environments and 10,000 tasks in 15
minutes, each with a solution that is accepted and none that doing nothing solves, no two of the same structure.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from machine import describe

from agentmill.pipelines.engine.runner import RunnerConfig
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.tables import Manifest, Table
from tests.pipelines.operators.steps import job

PROPOSED = {"pddl": 200, "toolbox": 185, "codegym": 230}
"""Environments per family: what is dropped is allowed for."""
PLAN_LENGTHS = {"pddl": [1, 12], "toolbox": [2, 8], "codegym": [3, 40]}
TASKS_EACH = 22
ENVIRONMENTS_TARGET = 500
TASKS_TARGET = 10_000
SECONDS_TARGET = 900.0


def stage(folder: Path, workers: int, operator: str, name: str, **parameters: Any) -> Manifest:
    """Run a step and print what came of it."""
    runner = RunnerConfig(name="multi_processing", workers=workers) if workers > 1 else RunnerConfig()
    began = time.monotonic()
    manifest = msgspec.structs.replace(job(folder, operator, name, **parameters), runner=runner).run()
    counts, seconds = manifest.counts, time.monotonic() - began
    print(
        f"  {name}: {counts.read} read, {counts.written} written, {dict(manifest.reasons)}: {seconds:.1f} s", flush=True
    )
    return manifest


def make(folder: Path, workers: int, share: float) -> float:
    """Environments and tasks of all families; returns seconds."""
    began = time.monotonic()
    for family, n in PROPOSED.items():
        run = partial(stage, folder, workers)
        run("spec_env", f"{family}_proposed", family=family, n=max(1, round(share * n)))
        run("admit", f"{family}_environments", of=f"{family}_proposed")
        wanted = {"n": TASKS_EACH, "plan_length": PLAN_LENGTHS[family]}
        run("propose", f"{family}_proposed_tasks", of=f"{family}_environments", **wanted)
        run("admit", f"{family}_tasks", of=f"{family}_proposed_tasks", environments=f"{family}_environments")
    return time.monotonic() - began


def rows_of(folder: Path, name: str) -> list[Any]:
    """The rows of a table of every family."""
    return [row for family in PROPOSED for row in Table.open(folder / f"{family}_{name}").rows()]


def passed(record: EnvironmentSpec | Task, check: str) -> bool:
    """Whether a check was made of a record, and passed."""
    assert record.admission is not None
    return any(each.name == check and each.passed for each in record.admission.checks)


def report(folder: Path, seconds: float, share: float) -> bool:
    """Print what was made; whether it meets the bar, or ``share`` of it."""
    environments: list[EnvironmentSpec] = rows_of(folder, "environments")
    tasks: list[Task] = rows_of(folder, "tasks")
    families = {spec.environment_id: spec.family for spec in environments}
    levels = Counter(int(10 * task.difficulty.level) for task in tasks if task.difficulty)
    print(f"environments: {dict(Counter(families.values()))}")
    print(f"tasks: {dict(Counter(families[task.environment_id] for task in tasks))}")
    print(f"levels: { ({f'{level / 10:.1f}': count for level, count in sorted(levels.items())}) }")
    accepted = sum(bool(task.gold) and passed(task, "gold_rejected") for task in tasks)
    refused = sum(passed(task, "null_accepted") for task in tasks)
    alike = sum(
        len(rows) - len({row.structure_digest for row in rows})
        for rows in ([row for row in table if row.structure_digest] for table in (environments, tasks))
    )
    print(
        f"{len(environments)} environments and {len(tasks)} tasks in {seconds:.0f} s; gold accepted {accepted}, doing"
        f" nothing refused {refused}, near-duplicates {alike}"
    )
    enough = len(environments) >= share * ENVIRONMENTS_TARGET and len(tasks) >= share * TASKS_TARGET
    sound = accepted == refused == len(tasks) and alike == 0
    return enough and sound and seconds <= SECONDS_TARGET


def main() -> int:
    """Make them, and say whether the bar was met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--share", type=float, default=1.0, help="of the environments, for a short run")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    print(describe("apache-beam", "msgspec"))
    with tempfile.TemporaryDirectory() as folder:
        met = report(Path(folder), make(Path(folder), given.workers, given.share), given.share)
    print("the bar is met" if met else "the bar is NOT met")
    return 0 if met else 1


if __name__ == "__main__":
    from bench_environments import main as importable

    sys.exit(importable())
