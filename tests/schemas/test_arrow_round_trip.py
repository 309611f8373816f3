"""Record -> Arrow -> Parquet -> record is exact for every record type and everything its types allow."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentmill.schemas.arrow.convert import arrow_schema, from_arrow, to_arrow
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.trajectory import ApiAction, TextObservation, Trajectory, WebObservation
from agentmill.schemas.tables import RECORDS, read_shard, write_shard
from tests.builders import tool_trajectory, trajectory
from tests.schemas.records import json_objects, records, texts

record_types = pytest.mark.parametrize("record_type", RECORDS.values(), ids=RECORDS)


def exact(records: list[Record]) -> bytes:
    """The records as JSON: tells ``1`` from ``1.0`` and ``0.0`` from ``-0.0``, which equality does not."""
    return msgspec.json.encode(records)


@record_types
@settings(max_examples=40)
@given(data=st.data())
def test_every_record_survives_parquet(record_type: type[Record], data: st.DataObject, tmp_path: Path) -> None:
    given_records = data.draw(st.lists(records(record_type), max_size=4))
    write_shard(tmp_path / "table/data/part-00000.parquet", given_records, record_type)
    read = read_shard(tmp_path / "table/data/part-00000.parquet", record_type)
    assert read == given_records
    assert exact(read) == exact(given_records)


@given(kwargs=json_objects, text=texts)
@example(kwargs={"a": 1.0, "b": 1, "c": True, "d": "01", "e": [], "f": {}, "g": None, "h": 2**80}, text="\r\n\x00")
def test_arguments_keep_key_sets_types_and_text(kwargs: dict[str, Any], text: str) -> None:
    item = ApiAction(function="f", kwargs=kwargs, description=text)
    table = to_arrow([Trajectory(trajectory_id="t", content=[item])], Trajectory)
    (back,) = from_arrow(table, Trajectory)
    assert exact(back.content) == exact([item])
    assert list(back.content[0].kwargs) == list(kwargs)


def test_nulls_and_empties_stay_apart() -> None:
    given_records = [
        Trajectory(trajectory_id="none", content=[]),
        Trajectory(
            trajectory_id="empty",
            content=[WebObservation(), WebObservation(html=""), TextObservation(content="", source="user", name="")],
            system_prompt="",
            split="",
        ),
    ]
    assert from_arrow(to_arrow(given_records, Trajectory), Trajectory) == given_records


@record_types
def test_no_records_make_an_empty_table_of_the_same_schema(record_type: type[Record]) -> None:
    table = to_arrow([], record_type)
    assert table.schema.equals(arrow_schema(record_type), check_metadata=True)
    assert from_arrow(table, record_type) == []


def test_the_file_holds_the_schema_that_arrow_schema_says(tmp_path: Path) -> None:
    write_shard(tmp_path / "table/data/part-00000.parquet", [trajectory()], Trajectory)
    schema = pq.read_schema(tmp_path / "table/data/part-00000.parquet")
    assert schema.equals(arrow_schema(Trajectory), check_metadata=True)


def test_slices_and_many_chunks_read_alike() -> None:
    given_records = [trajectory(f"t{index}") for index in range(5)] + [tool_trajectory("u")]
    table = to_arrow(given_records, Trajectory)
    chunked = pa.concat_tables([table.slice(0, 2), table.slice(2, 1), table.slice(3)])
    assert from_arrow(chunked, Trajectory) == given_records
    assert from_arrow(table.slice(4), Trajectory) == given_records[4:]


def test_a_table_that_polars_wrote_again_reads_alike() -> None:
    given_records = [trajectory(), tool_trajectory()]
    file = io.BytesIO()
    polars.from_arrow(to_arrow(given_records, Trajectory)).write_parquet(file)
    assert from_arrow(pq.read_table(file), Trajectory) == given_records
