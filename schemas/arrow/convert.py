"""Records to Arrow and back, exactly.

What cannot be represented without loss (NaN, lone surrogates, integers beyond 64 bits, values of another type than
declared) is refused with the field's name. ``agentmill.schemas.arrow.layout`` holds the rules of how records are in
Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
import pyarrow as pa

from agentmill.schemas.arrow.check import RecordError, first_fault
from agentmill.schemas.arrow.decode import ColumnError, decode
from agentmill.schemas.arrow.encode import InexactError, encode
from agentmill.schemas.arrow.layout import RECORD_KEY, VERSION_COLUMN, VERSION_KEY, arrow_schema, layout
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.records.record import SCHEMA_VERSION, Record, check_version

__all__ = ["RecordError", "arrow_schema", "from_arrow", "to_arrow"]

R = TypeVar("R", bound=Record)


def to_arrow(records: Sequence[R], record_type: type[R]) -> pa.Table:
    """The table of ``records``, in order. Raises ``RecordError`` for the first that cannot be represented exactly."""
    rows = list(records)
    try:
        arrays = encode(layout(record_type), rows)
    # Columns are encoded whole, so none of these names the record.
    except (pa.ArrowException, OverflowError, RecursionError, TypeError, UnicodeEncodeError, InexactError) as error:
        raise first_fault(rows, record_type) from error
    arrays.append(pa.repeat(pa.scalar(SCHEMA_VERSION, pa.large_string()), len(rows)))
    return pa.Table.from_arrays(arrays, schema=arrow_schema(record_type))


def from_arrow(table: pa.Table, record_type: type[R]) -> list[R]:
    """The records of a table of this version or an older minor one, whose absent columns hold their defaults.

    Column types may be those of another writer (``string`` for ``large_string``, ``large_list`` for ``list`` …).
    Raises ``UserError`` if the table is of a newer version, of another record, or breaks the schema.
    """
    check_schema(table, record_type)
    columns = [name for name in table.column_names if name != VERSION_COLUMN]
    try:
        return [msgspec.convert(row, record_type) for row in decode(layout(record_type), table.select(columns))]
    except (msgspec.ValidationError, ColumnError) as error:
        raise UserError(f"rows break the {record_type.__name__} schema: {error}", ErrorCode.SCHEMA_BROKEN) from error


def check_schema(table: pa.Table, record_type: type[Record]) -> None:
    """Raises ``UserError`` unless ``table`` holds ``record_type`` in a version that we read."""
    name = record_type.__name__
    metadata = table.schema.metadata or {}
    # A table that another program wrote again may have no metadata; its columns are then compared below.
    held = metadata.get(RECORD_KEY, name.encode()).decode(errors="replace")
    if held != name:
        raise UserError(f"the table holds {held} records, expected {name}", ErrorCode.WRONG_RECORD_TYPE)
    for version in _versions(table, metadata):
        check_version(version, "table")
    known = {*layout(record_type).fields, VERSION_COLUMN}
    for column in table.column_names:
        if column not in known:
            raise UserError(f"{name} has no column {column!r}.{near_match(column, known)}", ErrorCode.COLUMN_MISSING)


def _versions(table: pa.Table, metadata: dict[bytes, bytes]) -> list[str]:
    """The versions a table states: in the metadata, and in the column, since metadata does not survive a re-encode."""
    stated = [metadata[VERSION_KEY].decode(errors="replace")] if VERSION_KEY in metadata else []
    if VERSION_COLUMN in table.column_names:
        stated += [str(value) for value in table[VERSION_COLUMN].unique().to_pylist()]
    if not stated and len(table):
        raise UserError(
            f"not a table of agentmill: no {VERSION_COLUMN!r} column and no such metadata", ErrorCode.NOT_A_TABLE
        )
    return stated
