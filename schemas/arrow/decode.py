"""Arrow arrays as builtins, ready to become records: dicts for structs, decoded JSON, ``None`` for null.

Dicts come lazily, one row at a time, so that a batch is never there twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa

from agentmill.schemas.arrow.layout import Leaf, Listing, Member, Node, Structure

_TAG = Leaf(pa.large_string(), frozenset({str}))


class ColumnError(Exception):
    """A column that is not what its layout says."""

    def __init__(self, path: str, detail: object) -> None:
        super().__init__(f"column {path!r}: {detail}")


def decode(structure: Structure, table: pa.Table) -> Iterator[dict[str, Any]]:
    """One dict per row; absent columns are left out. Raises ``ColumnError``."""
    columns = {name: _flat(table[name]) for name in table.column_names}
    return _dicts(structure, columns, len(table), "")


def _flat(column: pa.ChunkedArray) -> pa.Array:
    # combine_chunks copies, which one chunk does not need.
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _values(node: Node, array: pa.Array, path: str) -> Iterable[Any]:
    if isinstance(node, Leaf):
        return _leaves(node, array, path)
    if isinstance(node, Listing):
        return _lists(node, array, path)
    return _structs(node, array, path)


def _leaves(node: Leaf, array: pa.Array, path: str) -> Iterable[Any]:
    try:
        values = (array if array.type == node.arrow else _cast(array, node.arrow)).to_pylist()
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise ColumnError(path, error) from error
    return _parsed(values, path) if node.json else values


def _parsed(texts: list[str | None], path: str) -> Iterator[Any]:
    parse = msgspec.json.decode
    for text in texts:
        try:
            yield None if text is None else parse(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ColumnError(path, error) from error


def _lists(node: Listing, array: pa.Array, path: str) -> Iterator[list[Any] | None]:
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        raise ColumnError(path, f"expected a list, got {array.type}")
    lengths = array.value_lengths().to_pylist()
    # flatten leaves out what is behind null lists and outside of a slice, as `values` does not.
    items = iter(_values(node.item, array.flatten(), path))
    return (None if length is None else list(islice(items, length)) for length in lengths)


def _structs(node: Structure, array: pa.Array, path: str) -> Iterator[dict[str, Any] | None]:
    if not pa.types.is_struct(array.type):
        raise ColumnError(path, f"expected a struct, got {array.type}")
    columns = {field.name: array.field(index) for index, field in enumerate(array.type)}
    unknown = set(columns) - {*node.fields, node.tag_field}
    if unknown:
        raise ColumnError(path, f"unknown fields {sorted(unknown)}")
    dicts = _dicts(node, columns, len(array), f"{path}.")
    # The fields of a struct do not know that the struct itself is null.
    if not array.null_count:
        return dicts
    return (row if valid else None for row, valid in zip(dicts, array.is_valid().to_pylist(), strict=True))


def _dicts(node: Structure, columns: dict[str, pa.Array], length: int, prefix: str) -> Iterator[dict[str, Any]]:
    names = [name for name in node.fields if name in columns]
    read = [_values(node.fields[name], columns[name], prefix + name) for name in names]
    # A zip of no columns has no rows.
    rows = zip(*read, strict=True) if read else [()] * length
    if node.tag_field is None:
        return _plain(node.members[0], names, rows)
    if node.tag_field not in columns:
        raise ColumnError(prefix + node.tag_field, "it is missing")
    return _tagged(node, names, rows, _leaves(_TAG, columns[node.tag_field], prefix + node.tag_field))


def _plain(member: Member, names: list[str], rows: Iterable[tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    filled = member.filled.intersection(names)
    for values in rows:
        row = dict(zip(names, values, strict=True))
        # msgspec refuses a null here, and fills in the default where the key is absent.
        for name in filled:
            if row[name] is None:
                del row[name]
        yield row


def _tagged(
    node: Structure, names: list[str], rows: Iterable[tuple[Any, ...]], tags: Iterable[str | None]
) -> Iterator[dict[str, Any]]:
    """Each row has the fields of its own member; the others are null in it."""
    members: dict[str | None, tuple[list[tuple[str, int]], frozenset[str]]] = {}
    for member in node.members:
        own = [(name, place) for place, name in enumerate(names) if name in member.names]
        members[member.tag] = (own, member.filled.intersection(names))
    for tag, values in zip(tags, rows, strict=True):
        own, filled = members.get(tag, ([], frozenset()))
        row = {name: values[place] for name, place in own}
        for name in filled:
            if row[name] is None:
                del row[name]
        row[str(node.tag_field)] = tag
        yield row


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
