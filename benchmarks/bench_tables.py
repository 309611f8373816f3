"""Writing a table through the pipeline against pyarrow alone on the same rows.

The pipeline side is a whole stage that gives out rows made before: one result per input, Arrow, checks that every row
can be read back exactly, Parquet with checksums, fsync and rename, manifest. pyarrow's side makes a table of plain
dictionaries with the same schema and writes it with the same compression. Processor seconds, the best of several
rounds, taken in turns.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from bench_beam import best
from bench_records import trajectories
from machine import describe

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.engine.operation import Result, RowOperation, Unit
from agentmill.pipelines.engine.provenance import provenance
from agentmill.pipelines.engine.run import run_stage
from agentmill.pipelines.engine.runner import RunnerConfig, quiet_beam
from agentmill.pipelines.engine.stage_run import StageRun
from agentmill.schemas.arrow.convert import arrow_schema, to_arrow
from agentmill.schemas.records.task import Inspiration
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.tables import Table

TARGET = 0.4
PER_INPUT = 50
MADE: list[Trajectory] = []
"""The rows, made before; the embedded runner works in this process."""


class GiveOut(RowOperation):
    """``PER_INPUT`` of the rows for each input."""

    def __init__(self) -> None:
        super().__init__("give_out", Inspiration, Trajectory)

    def process(self, record: Any, unit: Unit) -> Iterable[Result]:
        """The rows that an input stands for."""
        start = int(record.text) * PER_INPUT
        return [Result(input_id=unit[0], outputs=MADE[start : start + PER_INPUT])]


def stage(table: Table, folder: Path) -> None:
    """The table, written by the engine."""
    shutil.rmtree(folder, ignore_errors=True)
    run_stage(
        StageRun(
            name="written",
            operation=GiveOut(),
            primary=[table],
            provenance=provenance("give_out", {}, {"of": [table]}),
            folder=folder,
            runner=RunnerConfig(),
        )
    )


def measure(count: int, turns: int, words: int, folder: Path) -> float:
    """Print rows/s of both sides; the ratio."""
    MADE[:] = trajectories(count, turns, words)
    inputs = [Inspiration(inspiration_id=f"{index:04d}", text=str(index)) for index in range(count // PER_INPUT)]
    table = seed_table(folder / "inputs", inputs)
    schema, rows = arrow_schema(Trajectory), to_arrow(MADE, Trajectory).to_pylist()
    alone = folder / "alone.parquet"
    (ours, ours_wall), (theirs, theirs_wall) = best(
        lambda: stage(table, folder / "written"),
        lambda: pq.write_table(pa.Table.from_pylist(rows, schema), alone, compression="zstd"),
    )
    assert sum(file.rows for file in Table.open(folder / "written").manifest.files) == count
    megabytes = Table.open(folder / "written").manifest.files[0].bytes / 1e6
    print(
        f"  {count} trajectories of {turns} turns ({megabytes:.1f} MB): pipeline {count / ours:.0f} rows/s"
        f" (wall {ours_wall:.2f} s), pyarrow alone {count / theirs:.0f} rows/s (wall {theirs_wall:.2f} s):"
        f" ratio {theirs / ours:.2f} (target {TARGET:g})"
    )
    return theirs / ours


def main() -> int:
    """Measure short, middle and long trajectories."""
    print(describe("apache-beam", "pyarrow"))
    with quiet_beam():
        import agentmill.pipelines.engine.transform  # noqa: F401 - so that the import is not measured
    with tempfile.TemporaryDirectory() as folder:
        sizes = ((10_000, 4, 12), (1_000, 20, 150), (500, 50, 350))
        ratios = [measure(*size, Path(folder) / str(size[0])) for size in sizes]
    return 0 if min(ratios) >= TARGET else 1


if __name__ == "__main__":
    from bench_tables import main as importable

    sys.exit(importable())
