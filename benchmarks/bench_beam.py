"""What the engine costs: one stage over 100,000 light rows against the bare loop that makes the same table.

Both read the same shards, judge every row, sort by id and write the same shards. The stage also checks that every input
has one result, records chunks so that it can go on after a kill, counts, and writes a manifest. Processor seconds, the
best of several rounds, taken in turns.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

from machine import describe

from agentmill.pipelines.engine.chunks import plan, seed_table
from agentmill.pipelines.engine.operation import Result, RowOperation, Unit, identity
from agentmill.pipelines.engine.provenance import provenance
from agentmill.pipelines.engine.run import run_stage
from agentmill.pipelines.engine.runner import RunnerConfig, quiet_beam
from agentmill.pipelines.engine.stage_run import StageRun
from agentmill.schemas.ids import digest
from agentmill.schemas.records.verdict import Selection, Verdict
from agentmill.schemas.tables import Table, read_shard, write_shard

ROWS = 100_000
ROUNDS = 3


class Choose(RowOperation):
    """A selection for each verdict."""

    chunk_rows: ClassVar[int] = 20_000

    def __init__(self) -> None:
        super().__init__("choose", Verdict, Selection)

    def process(self, record: Any, unit: Unit) -> Iterable[Result]:
        """Kept if it passed."""
        return [Result(input_id=unit[0], outputs=[choose(record)])]


def choose(verdict: Verdict) -> Selection:
    """What both sides do with a row."""
    return Selection(trajectory_id=verdict.trajectory_id, name="choose", kept=bool(verdict.passed), score=verdict.score)


def verdicts() -> list[Verdict]:
    """Light rows: seven short fields."""
    return [
        Verdict(
            trajectory_id=digest(index),
            name="check_outcome",
            status="scored",
            judge="environment",
            score=index % 7 / 7,
            passed=index % 7 > 3,
        )
        for index in range(ROWS)
    ]


def stage(table: Table, folder: Path) -> None:
    """The table, made by the engine."""
    shutil.rmtree(folder, ignore_errors=True)
    run_stage(
        StageRun(
            name="chosen",
            operation=Choose(),
            primary=[table],
            provenance=provenance("choose", {}, {"of": [table]}),
            folder=folder,
            runner=RunnerConfig(),
        )
    )


def loop(table: Table, folder: Path) -> None:
    """The table, made by a loop over the same chunks."""
    shutil.rmtree(folder, ignore_errors=True)
    (path,) = table.shards()
    rows = read_shard(path, Verdict)
    for chunk in plan([table], Choose.chunk_rows):
        chosen = [choose(row) for row in rows[chunk.start : chunk.stop]]
        write_shard(folder / "data" / chunk.name, sorted(chosen, key=identity), Selection)


def best(*jobs: Callable[[], None]) -> list[tuple[float, float]]:
    """(processor, wall) seconds of the best round of each job."""
    times: list[list[tuple[float, float]]] = [[] for _ in jobs]
    for _ in range(ROUNDS):
        for job, taken in zip(jobs, times, strict=True):
            start, wall = time.process_time(), time.monotonic()
            job()
            taken.append((time.process_time() - start, time.monotonic() - wall))
    return [min(taken) for taken in times]


def main() -> int:
    """Print both sides and what the engine adds per row."""
    print(describe("apache-beam", "pyarrow"))
    with quiet_beam():
        import agentmill.pipelines.engine.transform  # noqa: F401 - so that the import is not measured
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = seed_table(folder / "verdicts", verdicts())
        (engine, engine_wall), (bare, bare_wall) = best(
            lambda: stage(table, folder / "engine"), lambda: loop(table, folder / "bare")
        )
        same = [(folder / side / "data" / "part-00002.parquet").read_bytes() for side in ("engine", "bare")]
        assert same[0] == same[1]
    added = (engine - bare) / ROWS * 1e6
    print(
        f"  stage over {ROWS} rows {engine:.2f} s (wall {engine_wall:.2f}),"
        f" bare loop {bare:.2f} s (wall {bare_wall:.2f}):"
        f" ratio {engine / bare:.2f}, {added:.1f} µs per row added"
    )
    return 0


if __name__ == "__main__":
    from bench_beam import main as importable

    sys.exit(importable())
