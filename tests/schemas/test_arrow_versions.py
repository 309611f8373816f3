"""Every older minor version of our major is read, a newer one is refused with the way out, and layouts never drift."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentmill.schemas.arrow.convert import arrow_schema, from_arrow, to_arrow
from agentmill.schemas.arrow.layout import RECORD_KEY, VERSION_COLUMN, VERSION_KEY
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import SCHEMA_VERSION
from agentmill.schemas.records.trajectory import Outcome, Trajectory
from agentmill.schemas.tables import RECORDS, Table, read_shard, write_manifest, write_shard
from tests.builders import trajectory
from tests.errors import user_error
from tests.schemas.examples import example
from tests.schemas.test_tables import manifest

GOLDEN = Path(__file__).parent / "golden"


def as_version(table: pa.Table, version: str, metadata: bool = True) -> pa.Table:
    index = table.schema.get_field_index(VERSION_COLUMN)
    stamped = table.set_column(index, VERSION_COLUMN, pa.array([version] * len(table), pa.large_string()))
    held = {VERSION_KEY: version.encode(), RECORD_KEY: b"Trajectory"} if metadata else None
    return stamped.replace_schema_metadata(held)


def arrow_schemas() -> str:
    """The text that ``golden/arrow_schemas.txt`` holds."""
    lines = []
    for name, record_type in sorted(RECORDS.items()):
        schema = arrow_schema(record_type)
        lines.append(f"{name}  {dict(schema.metadata)}")
        for field in schema:
            lines += _lines(field, 1)
    return "\n".join(lines) + "\n"


def _lines(field: pa.Field, depth: int) -> list[str]:
    kind, children = str(field.type), []
    if pa.types.is_struct(field.type):
        kind, children = "struct", list(field.type)
    elif pa.types.is_list(field.type):
        kind, children = "list", [field.type.value_field]
    line = f"{'  ' * depth}{field.name}: {kind}{'' if field.nullable else ' not null'}"
    return [line, *(nested for child in children for nested in _lines(child, depth + 1))]


def test_the_arrow_schemas_are_as_released() -> None:
    """A change here is a new schema version: raise ``SCHEMA_VERSION``, keep the old files, write the text anew."""
    assert arrow_schemas() == (GOLDEN / "arrow_schemas.txt").read_text()


@pytest.mark.parametrize("name", RECORDS)
def test_files_of_release_1_0_are_read_exactly(name: str) -> None:
    (record,) = read_shard(GOLDEN / "release-1.0" / f"{name}.parquet", RECORDS[name])
    written = msgspec.json.decode((GOLDEN / "release-1.0" / f"{name}.json").read_bytes(), type=RECORDS[name])
    assert record == written
    assert msgspec.json.encode(record) == msgspec.json.encode(written)


def test_an_older_minor_version_is_read_with_defaults_for_what_it_lacks() -> None:
    record = example(Trajectory)
    table = as_version(to_arrow([record], Trajectory), "1.0").drop_columns(
        ["usage", "extra", "attempt", "tools", "split"]
    )
    outcome = pa.array([{"status": "failure", "reward": 0.5}])
    table = table.set_column(table.schema.get_field_index("outcome"), "outcome", outcome)
    (read,) = from_arrow(table, Trajectory)
    assert (read.extra, read.attempt, read.tools, read.split) == ({}, 0, [], None)
    assert read.outcome == Outcome(status="failure", reward=0.5)
    assert read.content == record.content


def test_nulls_where_a_default_stands_are_the_default() -> None:
    table = to_arrow([trajectory(attempt=3)], Trajectory)
    index = table.schema.get_field_index("attempt")
    (read,) = from_arrow(table.set_column(index, "attempt", pa.nulls(1, pa.int64())), Trajectory)
    assert read.attempt == 0


def test_an_absent_required_column_is_named() -> None:
    table = to_arrow([trajectory()], Trajectory).drop_columns(["content"])
    with user_error("schema-broken", "Trajectory", "content"):
        from_arrow(table, Trajectory)


@pytest.mark.parametrize("metadata", [True, False])
@pytest.mark.parametrize("version", ["1.99", "2.0", "10.0"])
def test_a_newer_version_is_refused_with_the_way_out(version: str, metadata: bool, tmp_path: Path) -> None:
    path = tmp_path / "future.parquet"
    table = as_version(to_arrow([trajectory()], Trajectory), version, metadata)
    pq.write_table(table.append_column("new_in_the_future", pa.array([1])), path)
    with pytest.raises(UserError) as caught:
        read_shard(path, Trajectory)
    assert str(caught.value) == (
        f"{path}: table written by schema {version}, this agentmill reads up to {SCHEMA_VERSION}:"
        " upgrade agentmill (pip install -U agentmill)"
    )


def test_an_older_major_version_is_refused() -> None:
    with user_error("schema-too-old", "0.9", "1.x"):
        from_arrow(as_version(to_arrow([trajectory()], Trajectory), "0.9"), Trajectory)


@pytest.mark.parametrize("version", ["", "new", "1", "1.x"])
def test_an_unreadable_version_is_refused(version: str) -> None:
    with user_error("schema-broken"):
        from_arrow(as_version(to_arrow([trajectory()], Trajectory), version), Trajectory)


def test_a_foreign_table_is_refused() -> None:
    with user_error("not-a-table"):
        from_arrow(pa.table({"trajectory_id": ["a"], "content": ["b"]}), Trajectory)


def test_a_manifest_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    file = write_shard(tmp_path / "t/data/part-00000.parquet", [trajectory()], Trajectory)
    write_manifest(tmp_path / "t", manifest([file], schema_version="1.99"))
    with user_error("schema-too-new", "manifest.json", "1.99"):
        Table.open(tmp_path / "t")


def test_a_manifest_of_an_unknown_record_is_refused_by_name(tmp_path: Path) -> None:
    file = write_shard(tmp_path / "t/data/part-00000.parquet", [trajectory()], Trajectory)
    write_manifest(tmp_path / "t", manifest([file], record="Trajectories"))
    with user_error("unknown-name", "Trajectories", "Trajectory"):
        list(Table.open(tmp_path / "t").rows())
