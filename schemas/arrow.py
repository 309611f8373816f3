"""Records to Arrow and back, exactly.

Whole columns at a time: a record type is walked once, its fields become Arrow arrays. What cannot be represented
without loss (NaN, lone surrogates, integers beyond 64 bits, values of another type than declared) is refused with the
field's name. ``schemas.layout`` holds the rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from schemas.errors import UserError, near_match
from schemas.layout import (
    RECORD_KEY,
    VERSION_COLUMN,
    VERSION_KEY,
    Leaf,
    Listing,
    Node,
    Structure,
    arrow_schema,
    layout,
)
from schemas.record import SCHEMA_VERSION, Record
from schemas.representable import RecordError, check, first_fault

__all__ = ["RecordError", "arrow_schema", "from_arrow", "to_arrow"]

R = TypeVar("R", bound=Record)


def to_arrow(records: Sequence[R], record_type: type[R]) -> pa.Table:
    """The table of ``records``, in order. Raises ``RecordError`` for the first that cannot be represented exactly."""
    check(records, record_type)
    rows = list(records)
    structure = layout(record_type)
    try:
        arrays = [_build(node, list(map(attrgetter(name), rows))) for name, node in structure.fields.items()]
    except (pa.ArrowException, OverflowError) as error:
        raise first_fault(rows, record_type) from error
    arrays.append(pa.repeat(pa.scalar(SCHEMA_VERSION, pa.large_string()), len(rows)))
    return pa.Table.from_arrays(arrays, schema=arrow_schema(record_type))


def from_arrow(table: pa.Table, record_type: type[R]) -> list[R]:
    """The records of a table of this version or an older minor one, whose absent columns hold their defaults.

    Column types may be those of another writer (``string`` for ``large_string``, ``large_list`` for ``list`` …).
    Raises ``UserError`` if the table is of a newer version, of another record, or breaks the schema.
    """
    check_schema(table, record_type)
    struct = table.drop_columns([VERSION_COLUMN]) if VERSION_COLUMN in table.column_names else table
    try:
        rows = _rows(layout(record_type), {name: _flat(struct[name]) for name in struct.column_names}, len(table))
        return msgspec.convert(rows, list[record_type])  # type: ignore[valid-type]
    except (msgspec.MsgspecError, pa.ArrowException, UnicodeDecodeError, TypeError) as error:
        raise UserError(f"rows break the {record_type.__name__} schema: {error}") from error


def check_schema(table: pa.Table, record_type: type[Record]) -> None:
    """Raises ``UserError`` unless ``table`` holds ``record_type`` in a version that we read."""
    name = record_type.__name__
    metadata = table.schema.metadata or {}
    held = metadata.get(RECORD_KEY, name.encode()).decode(errors="replace")
    if held != name:
        raise UserError(f"the table holds {held} records, expected {name}")
    for version in _versions(table, metadata):
        check_version(version, "table")
    known = {*layout(record_type).fields, VERSION_COLUMN}
    for column in table.column_names:
        if column not in known:
            raise UserError(f"{name} has no column {column!r}.{near_match(column, known)}")


def check_version(version: str, what: str) -> None:
    """Raises ``UserError`` unless ``version`` is of our major version and not newer than ours."""
    ours = tuple(map(int, SCHEMA_VERSION.split(".")))
    try:
        major, minor = map(int, version.split("."))
    except ValueError:
        raise UserError(
            f"{what} has no readable schema version ({version!r}); expected one like {SCHEMA_VERSION}"
        ) from None
    if major < ours[0]:
        raise UserError(f"{what} written by schema {version}, this agentmill reads {ours[0]}.x: agentmill migrate it")
    if (major, minor) > ours:
        raise UserError(
            f"{what} written by schema {version}, this agentmill reads up to {SCHEMA_VERSION}:"
            " upgrade agentmill (pip install -U agentmill)"
        )


def _versions(table: pa.Table, metadata: dict[bytes, bytes]) -> list[str]:
    """The versions a table states: in the metadata, and in the column, since metadata does not survive a re-encode."""
    stated = [metadata[VERSION_KEY].decode(errors="replace")] if VERSION_KEY in metadata else []
    if VERSION_COLUMN in table.column_names:
        stated += [str(value) for value in table[VERSION_COLUMN].unique().to_pylist()]
    if not stated and len(table):
        raise UserError(f"not a table of agentmill: no {VERSION_COLUMN!r} column and no such metadata")
    return stated


def _build(node: Node, values: list[Any]) -> pa.Array:
    if values.count(None) == len(values) and not (isinstance(node, Leaf) and node.null_text):
        return pa.nulls(len(values), node.arrow)
    if isinstance(node, Leaf):
        if node.json:
            encode = msgspec.json.encode
            values = [None if value is None and not node.null_text else encode(value) for value in values]
        return pa.array(values, node.arrow)
    if isinstance(node, Listing):
        return _build_list(node, values)
    return _build_struct(node, values)


def _build_list(node: Listing, values: list[Any]) -> pa.Array:
    if isinstance(node.item, Leaf) and not node.item.json:
        return pa.array(values, node.arrow)
    present = [value or () for value in values]
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, present), np.int32, len(values)), out=offsets[1:])
    items = _build(node.item, list(chain.from_iterable(present)))
    return pa.ListArray.from_arrays(pa.array(offsets), items, type=node.arrow, mask=_mask(values))


def _build_struct(node: Structure, values: list[Any]) -> pa.Array:
    types = list(map(type, values))
    arrays = []
    if node.tag_field:
        tags = {member.type: member.tag for member in node.members}
        arrays.append(pa.array([tags.get(one) for one in types], pa.large_string()))
    present = set(types)
    places = {one: [index for index, other in enumerate(types) if other is one] for one in present}
    for name, child in node.fields.items():
        holders = {member.type for member in node.members if name in member.names}
        if present <= holders:
            column = list(map(attrgetter(name), values))
        else:
            column = [None] * len(values)
            for holder in holders & present:
                for index in places[holder]:
                    column[index] = getattr(values[index], name)
        arrays.append(_build(child, column))
    return pa.StructArray.from_arrays(arrays, fields=node.arrow_fields, mask=_mask(values))


def _mask(values: list[Any]) -> pa.Array | None:
    return pa.array([value is None for value in values]) if None in values else None


def _flat(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _read(node: Node, array: pa.Array) -> list[Any]:
    """The values of an array as builtins: dicts for structs, decoded JSON, ``None`` for null."""
    if isinstance(node, Leaf):
        return _read_leaf(node, array)
    if isinstance(node, Listing):
        if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
            raise TypeError(f"expected a list, got {array.type}")
        lengths = array.value_lengths().to_pylist()
        items = iter(_read(node.item, array.flatten()))
        return [None if length is None else [next(items) for _ in range(length)] for length in lengths]
    if not pa.types.is_struct(array.type):
        raise TypeError(f"expected a struct, got {array.type}")
    columns = {field.name: array.field(index) for index, field in enumerate(array.type)}
    unknown = set(columns) - {*node.fields, node.tag_field}
    if unknown:
        raise TypeError(f"unknown fields {sorted(unknown)}")
    rows = _rows(node, columns, len(array))
    if not array.null_count:
        return rows
    return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]


def _read_leaf(node: Leaf, array: pa.Array) -> list[Any]:
    if array.type != node.arrow:
        array = _cast(array, node.arrow)
    if not node.json:
        return array.to_pylist()  # type: ignore[no-any-return]
    decode = msgspec.json.decode
    return [None if text is None else decode(text) for text in array.to_pylist()]


def _cast(array: pa.Array, expected: pa.DataType) -> pa.Array:
    """The array in the type we expect, from one that says the same: another width, dictionary-encoded, all null."""
    given = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    families = (
        {pa.string(), pa.large_string(), pa.string_view()},
        {pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()},
        {pa.float32(), pa.float64()},
        {pa.binary(), pa.large_binary(), pa.binary_view()},
    )
    if pa.types.is_null(given) or any({given, expected} <= family for family in families):
        return array.cast(expected)
    raise TypeError(f"expected {expected}, got {given}")


def _read_field(name: str, node: Node, array: pa.Array) -> list[Any]:
    try:
        return _read(node, array)
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise TypeError(f"column {name!r}: {error}") from error


def _rows(node: Structure, columns: dict[str, pa.Array], length: int) -> list[Any]:
    """One dict per row, of the fields of its member; a null that must not be null is left out."""
    read = {name: _read_field(name, child, columns[name]) for name, child in node.fields.items() if name in columns}
    tags = columns[node.tag_field].to_pylist() if node.tag_field else [None] * length
    rows: list[Any] = [None] * length
    for member in node.members:
        names = [name for name in member.names if name in read]
        chosen = [index for index, tag in enumerate(tags) if tag == member.tag]
        for index, row in zip(chosen, _dicts(names, [read[name] for name in names], chosen, length), strict=True):
            rows[index] = row
            if node.tag_field:
                row[node.tag_field] = member.tag
        for name in set(names) & set(member.defaults):
            for index in chosen:
                if rows[index][name] is None:
                    del rows[index][name]
    return rows


def _dicts(names: list[str], columns: list[list[Any]], chosen: list[int], length: int) -> list[dict[str, Any]]:
    if len(chosen) < length:
        columns = [[column[index] for index in chosen] for column in columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
