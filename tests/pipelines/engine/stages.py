"""Builders of stages and their inputs for tests of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentmill.pipelines.engine import attempts
from agentmill.pipelines.engine.journal import ended
from agentmill.pipelines.engine.operation import Operation
from agentmill.pipelines.engine.provenance import provenance
from agentmill.pipelines.engine.runner import RunnerConfig
from agentmill.pipelines.engine.stage_run import StageRun
from agentmill.schemas.config import config_digest
from agentmill.schemas.records.record import SCHEMA_VERSION, Record
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.verdict import Dropped
from agentmill.schemas.tables import Counts, Manifest, Table, read_shard, write_manifest, write_shard


def task(index: int, fault: str = "", **fields: Any) -> Task:
    """The ``index``-th task; ``fault`` tells the operations of the tests how to fail."""
    values = {"instruction": f"do thing {index}", "skills": [fault] if fault else [], "split": "train", **fields}
    return Task(task_id=f"task-{index:04d}", environment_id=f"world-{index % 3}", **values)


def write_table(folder: Path, shards: Sequence[Sequence[Record]], record_type: type[Record] = Task) -> Table:
    """A finished table with these shards."""
    files = [
        write_shard(folder / "data" / f"part-{index:05d}.parquet", rows, record_type)
        for index, rows in enumerate(shards)
    ]
    rows = sum(file.rows for file in files)
    manifest = Manifest(
        table=folder.name,
        record=record_type.__name__,
        schema_version=SCHEMA_VERSION,
        operator="test",
        config={},
        config_digest=config_digest({}),
        inputs={},
        counts=Counts(read=rows, used=rows, dropped=0, written=rows),
        reasons={},
        files=files,
        dropped_files=[],
        seconds=0.0,
        created="2026-01-01T00:00:00+00:00",
        versions={},
    )
    write_manifest(folder, manifest)
    return Table.open(folder)


def order(operation: Operation, table: Table, folder: Path, **fields: Any) -> StageRun:
    """The order of a stage over ``table``; ``config`` and ``runner`` may be given."""
    config = fields.pop("config", {})
    return StageRun(
        name=folder.name,
        operation=operation,
        primary=[table],
        provenance=provenance(operation.name, config, {"of": [table]}),
        folder=folder,
        runner=RunnerConfig.model_validate(fields.pop("runner", {})),
        **fields,
    )


def rows_of(folder: Path) -> list[Any]:
    """All records of a finished table."""
    return list(Table.open(folder).rows())


def dropped_of(folder: Path) -> list[Dropped]:
    """All dead letters of a finished table."""
    return [letter for path in Table.open(folder).dropped_shards() for letter in read_shard(path, Dropped)]


def bytes_of(folder: Path) -> dict[str, bytes]:
    """All files of a table, and of those beside it, but their manifests; and that nothing else lies there."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    files.pop("manifest.json")
    return {name: content for name, content in files.items() if not name.endswith("/manifest.json")}


def ended_in(folder: Path) -> int:
    """How many inputs have ended in the unfinished table ``folder``."""
    workspace = attempts.current(folder)
    return 0 if workspace is None else ended(workspace.journal)
