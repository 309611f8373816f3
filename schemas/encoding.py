"""Records as Arrow arrays, a whole column at a time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from schemas.layout import Leaf, Listing, Node, Structure


def encode(structure: Structure, records: Sequence[Any]) -> list[pa.Array]:
    """One array per field of ``structure``. Raises what Arrow raises for values of another type than declared."""
    return [_column(node, list(map(attrgetter(name), records))) for name, node in structure.fields.items()]


def _column(node: Node, values: list[Any]) -> pa.Array:
    if values.count(None) == len(values) and not (isinstance(node, Leaf) and node.null_text):
        return pa.nulls(len(values), node.arrow)
    if isinstance(node, Leaf):
        if node.json:
            to_text = msgspec.json.encode
            values = [None if value is None and not node.null_text else to_text(value) for value in values]
        return pa.array(values, node.arrow)
    if isinstance(node, Listing):
        return _list(node, values)
    return _struct(node, values)


def _list(node: Listing, values: list[Any]) -> pa.Array:
    if isinstance(node.item, Leaf) and not node.item.json:
        return pa.array(values, node.arrow)
    present = [value or () for value in values]
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, present), np.int32, len(values)), out=offsets[1:])
    items = _column(node.item, list(chain.from_iterable(present)))
    return pa.ListArray.from_arrays(pa.array(offsets), items, type=node.arrow, mask=_mask(values))


def _struct(node: Structure, values: list[Any]) -> pa.Array:
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
        arrays.append(_column(child, column))
    return pa.StructArray.from_arrays(arrays, fields=node.arrow_fields, mask=_mask(values))


def _mask(values: list[Any]) -> pa.Array | None:
    return pa.array([value is None for value in values]) if None in values else None
