"""Records as Arrow arrays, a whole column at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import astuple

from schemas.layout import Leaf, Listing, Node, Structure

BLOCK = 256
"""Records that are turned into columns at a time: they stay in the processor's cache."""


class InexactError(ValueError):
    """A column whose values would not come back as they are."""


def encode(structure: Structure, records: Sequence[Any]) -> list[pa.Array]:
    """One array per field of ``structure``.

    Raises what Arrow raises for values of another type than declared, and ``InexactError`` for infinities and for
    open-ended values that JSON cannot hold.
    """
    columns = _fields(records)
    return [_column(node, columns.get(name, ())) for name, node in structure.fields.items()]


def _fields(structs: Sequence[Any]) -> dict[str, list[Any]]:
    """The values of every field of structs of one type; nothing if there are none."""
    if not structs:
        return {}
    columns: dict[str, list[Any]] = {name: [] for name in structs[0].__struct_fields__}
    for start in range(0, len(structs), BLOCK):
        rows = map(astuple, structs[start : start + BLOCK])
        for column, values in zip(columns.values(), zip(*rows, strict=True), strict=True):
            column.extend(values)
    return columns


def _column(node: Node, values: Sequence[Any]) -> pa.Array:
    if values.count(None) == len(values) and not (isinstance(node, Leaf) and node.null_text):
        return pa.nulls(len(values), node.arrow)
    if isinstance(node, Leaf):
        return _texts(node, values) if node.json else _finite(pa.array(values, node.arrow))
    if isinstance(node, Listing):
        return _list(node, values)
    return _struct(node, values)


def _texts(node: Leaf, values: Sequence[Any]) -> pa.Array:
    """Open-ended values as JSON text."""
    texts = [None if value is None and not node.null_text else _text(value) for value in values]
    return pa.array(texts, node.arrow)


def _text(value: Any) -> bytes:
    text = msgspec.json.encode(value)
    if not _is_json(value) and msgspec.json.decode(text) != value:
        raise InexactError("a value that is no JSON")
    return text


def _is_json(value: Any, levels: int = 20) -> bool:
    """Whether ``value`` is made of nothing but what JSON has, so that it comes back without being tried.

    Not said of what is nested deeper than ``levels``.
    """
    kind = type(value)
    if kind is dict:
        return levels > 0 and all(type(name) is str and _is_json(each, levels - 1) for name, each in value.items())
    if kind is list:
        return levels > 0 and all(_is_json(each, levels - 1) for each in value)
    return kind is str or value is None or kind is bool or (kind is int and -(2**63) <= value < 2**63)


def _finite(array: pa.Array) -> pa.Array:
    if pa.types.is_floating(array.type) and not pc.all(pc.is_finite(array), min_count=0).as_py():
        raise InexactError("a number that is infinite, or none")
    return array


def _list(node: Listing, values: Sequence[Any]) -> pa.Array:
    if isinstance(node.item, Leaf) and not node.item.json:
        array = pa.array(values, node.arrow)
        _finite(array.values)
        return array
    present = [value or () for value in values]
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, present), np.int32, len(values)), out=offsets[1:])
    items = _column(node.item, list(chain.from_iterable(present)))
    return pa.ListArray.from_arrays(pa.array(offsets), items, type=node.arrow, mask=_mask(values))


def _struct(node: Structure, values: Sequence[Any]) -> pa.Array:
    types = list(map(type, values))
    present = list(dict.fromkeys(types))
    arrays = []
    if node.tag_field:
        tags = {member.type: member.tag for member in node.members}
        arrays.append(pa.array([tags.get(one) for one in types], pa.large_string()))
    groups = [[value for value, other in zip(values, types, strict=True) if other is one] for one in present]
    columns = [{} if group[0] is None else _fields(group) for group in groups]
    merge = _merger(types, present)
    for name, child in node.fields.items():
        parts = [held.get(name) or [None] * len(group) for held, group in zip(columns, groups, strict=True)]
        arrays.append(_column(child, merge(parts)))
    return pa.StructArray.from_arrays(arrays, fields=node.arrow_fields, mask=_mask(values))


def _merger(types: list[type], present: list[type]) -> Callable[[list[list[Any]]], Sequence[Any]]:
    """What puts values that lie by type back into the order of ``types``."""
    if len(present) == 1:
        return itemgetter(0)
    codes = np.fromiter(map({one: code for code, one in enumerate(present)}.__getitem__, types), np.int32, len(types))
    places = np.argsort(np.argsort(codes, kind="stable"), kind="stable")
    pick = itemgetter(*places.tolist())
    return lambda parts: pick(list(chain.from_iterable(parts)))


def _mask(values: Sequence[Any]) -> pa.Array | None:
    return pa.array([value is None for value in values]) if None in values else None
