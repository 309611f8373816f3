"""``datasets`` and Polars read every table that we write, without options."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import polars
import pytest

from agentmill.schemas.records.record import SCHEMA_VERSION, Record
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.tables import RECORDS, write_shard
from tests.builders import tool_trajectory, trajectory
from tests.schemas.examples import example

record_types = pytest.mark.parametrize("record_type", RECORDS.values(), ids=RECORDS)


def write(folder: Path, records: list[Record], record_type: type[Record]) -> str:
    write_shard(folder / "table/data/part-00000.parquet", records, record_type)
    write_shard(folder / "table/data/part-00001.parquet", records[:0], record_type)
    return str(folder / "table/data/*.parquet")


def load(files: str, cache: Path) -> list[dict[str, Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import datasets
    datasets.disable_progress_bars()
    dataset = datasets.load_dataset("parquet", data_files=files, cache_dir=str(cache), split="train")
    return list(dataset)


@record_types
def test_polars_scans_it(record_type: type[Record], tmp_path: Path) -> None:
    record = example(record_type)
    frame = polars.scan_parquet(write(tmp_path, [record, record], record_type)).collect()
    assert frame.height == 2
    assert frame["schema_version"].to_list() == [SCHEMA_VERSION] * 2
    name = record.__struct_fields__[0]
    assert frame[name].to_list() == [getattr(record, name)] * 2


@record_types
def test_datasets_loads_it(record_type: type[Record], tmp_path: Path) -> None:
    record = example(record_type)
    rows = load(write(tmp_path, [record, record], record_type), tmp_path / "cache")
    assert len(rows) == 2
    name = record.__struct_fields__[0]
    assert [row[name] for row in rows] == [getattr(record, name)] * 2
    assert set(rows[0]) == {*record.__struct_fields__, "schema_version"}


@record_types
def test_polars_scans_a_table_without_rows(record_type: type[Record], tmp_path: Path) -> None:
    """``datasets`` reads no data set without rows, of whatever origin; an empty shard beside others it does read."""
    frame = polars.scan_parquet(write(tmp_path, [], record_type)).collect()
    assert (frame.height, frame.columns) == (0, [*record_type.__struct_fields__, "schema_version"])


def test_what_datasets_sees_of_a_trajectory(tmp_path: Path) -> None:
    records: list[Record] = [trajectory(), tool_trajectory()]
    first, second = load(write(tmp_path, records, Trajectory), tmp_path / "cache")
    assert [item["class_"] for item in first["content"][:3]] == [
        "text_observation",
        "text_observation",
        "message_action",
    ]
    assert first["content"][2]["tokens"]["sampled_ids"] == [5, 6]
    assert second["content"][1]["kwargs"] == '{"where":"box"}'
    assert second["generation"] is None
