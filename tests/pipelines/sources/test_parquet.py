"""Rows of Parquet as JSON: every type without pandas, and only the row that cannot be read is given up."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentmill.pipelines.sources.reading import RawRow, rows_of

NS = pa.timestamp("ns")


def rows(folder: Path, **columns: pa.Array) -> list[RawRow]:
    """What is read of a file with these columns."""
    path = folder / "rows.parquet"
    pq.write_table(pa.table(columns), path)
    return list(rows_of(str(path), "parquet"))


def not_utf8() -> pa.Array:
    """Two texts, of which the first is not UTF-8."""
    offsets = b"".join(place.to_bytes(4, "little") for place in (0, 2, 4))
    return pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(offsets), pa.py_buffer(b"\xff\xfeab")])


@pytest.mark.parametrize(
    ("values", "kind", "read"),
    [
        ([1], NS, "1970-01-01T00:00:00.000000001"),
        ([-1], NS, "1969-12-31T23:59:59.999999999"),
        ([1_000], NS, "1970-01-01T00:00:00.000001"),
        ([1], pa.timestamp("ns", "Europe/Berlin"), "1970-01-01T00:00:00.000000001Z"),
        ([0], pa.timestamp("us", "Mars/Olympus"), "1970-01-01T00:00:00Z"),
        ([0], pa.timestamp("us", "Europe/Berlin"), "1970-01-01T01:00:00+01:00"),
        ([1], pa.time64("ns"), "00:00:00.000000001"),
        ([1_000], pa.time64("ns"), "00:00:00.000001"),
        ([1_500_000_001], pa.duration("ns"), "PT1.500000001S"),
        ([-1], pa.duration("ns"), "-PT0.000000001S"),
        ([timedelta(seconds=1)], pa.duration("ns"), "PT1S"),
        ([[1, None]], pa.list_(NS), ["1970-01-01T00:00:00.000000001", None]),
        ([{"t": 1}], pa.struct([("t", NS)]), {"t": "1970-01-01T00:00:00.000000001"}),
        ([[("a", 1)]], pa.map_(pa.string(), NS), [["a", "1970-01-01T00:00:00.000000001"]]),
        ([1, 1], pa.uint64(), 1),
    ],
)
def test_times_are_read_exactly_and_without_pandas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: list[Any], kind: pa.DataType, read: Any
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    found = rows(tmp_path, value=pa.array([*values, None], kind))
    assert json.loads(found[0].data) == {"value": read}
    assert json.loads(found[-1].data) == {"value": None}
    assert {row.fault for row in found} == {""}


@pytest.mark.parametrize(
    "column",
    [
        pa.array([2**62, 0], pa.timestamp("us")),
        pa.array([2**60, 0], pa.timestamp("ms")),
        pa.array([2**30, 0], pa.date32()),
        pa.array([2**62, 0], pa.duration("s")),
        not_utf8(),
    ],
    ids=["timestamp_us", "timestamp_ms", "date", "duration", "text"],
)
def test_a_value_that_cannot_be_read_is_a_fault_of_its_row_alone(tmp_path: Path, column: pa.Array) -> None:
    bad, good = rows(tmp_path, value=column, k=pa.array([1, 2]))
    assert json.loads(bad.data) == {"k": 1}
    assert bad.fault.startswith("column 'value' cannot be read (")
    assert (json.loads(good.data)["k"], "value" in json.loads(good.data), good.fault) == (2, True, "")


def test_two_fields_of_one_name_are_a_fault(tmp_path: Path) -> None:
    pair = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    (row,) = rows(tmp_path, value=pair)
    assert (row.data, "field" in row.fault) == (b"{}", True)


def test_not_finite_numbers_are_null_and_counted(tmp_path: Path) -> None:
    numbers = pa.array([[1.5, float("nan")], [float("inf"), -float("inf")], [2.5, None]])
    found = rows(tmp_path, value=numbers)
    assert [(row.data, row.not_finite) for row in found] == [
        (b'{"value":[1.5,null]}', 1),
        (b'{"value":[null,null]}', 2),
        (b'{"value":[2.5,null]}', 0),
    ]
