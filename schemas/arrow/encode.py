"""Records as Arrow arrays, a whole column at a time: their types are looked at on the way.

A column that is not what its layout says is refused, so that whatever is written comes back as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from operator import itemgetter
from types import NoneType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import astuple

from agentmill.schemas.arrow.check import MOST_LEVELS, is_too_deep
from agentmill.schemas.arrow.layout import Leaf, Listing, Node, Structure

BLOCK = 256
"""Records that are turned into columns at a time: they stay in the processor's cache."""

SHORT_TEXT = 2 * MOST_LEVELS
"""Bytes of JSON that cannot be nested too deeply, as each level takes two, and are decoded sooner than looked at."""

_NULL = {NoneType}
_ENCODER = msgspec.json.Encoder()


class InexactError(ValueError):
    """A column whose values would not come back as they are."""


def encode(structure: Structure, records: Sequence[Any]) -> list[pa.Array]:
    """One array per field of ``structure``.

    Raises ``InexactError`` for values of another type than declared, for infinities, and for open-ended values that
    JSON cannot hold or that are nested too deeply; and what Arrow and msgspec raise for integers beyond 64 bits and
    for lone surrogates.
    """
    _check(structure, records, _kinds(records))
    return _children(structure, _by_type(records))


def _check(node: Node, values: Sequence[Any], kinds: set[type]) -> bool:
    """Whether ``values``, of the types ``kinds``, are null throughout.

    Raises ``InexactError`` unless they are what ``node`` says.
    """
    if not kinds <= node.kinds and not _fit(node, kinds):
        raise InexactError("a value of another type")
    if isinstance(node, Leaf) and node.choices and not node.choices.issuperset(values):
        raise InexactError("a text that is none of the choices")
    if isinstance(node, Listing) and node.length and not set(map(len, filter(None, values))) <= {node.length}:
        raise InexactError("a tuple of another length")
    return kinds <= _NULL and not (isinstance(node, Leaf) and node.null_text)


def _kinds(values: Sequence[Any]) -> set[type]:
    """The types of ``values``."""
    return set(map(type, values))


def _fit(node: Node, kinds: set[type]) -> bool:
    """Whether ``kinds`` come back as equal values though they are others than declared: lists and dicts of their own.

    What is inside open-ended values is looked at when they are written.
    """
    own = tuple(node.kinds) if isinstance(node, Listing) or (isinstance(node, Leaf) and node.json) else ()
    # No such exception for scalars: a bool is an int in Python, and would come back as another value.
    return all(issubclass(kind, own) for kind in kinds)


class _Typed(NamedTuple):
    """Structs, or ``None``, by their type; ``codes`` are the places of their types in ``present``, in order."""

    present: list[type]
    groups: list[Sequence[Any]]
    codes: npt.NDArray[np.int32]
    merge: Callable[[list[list[Any]]], Sequence[Any]]
    """What puts values that lie by type back into their order."""


def _by_type(values: Sequence[Any]) -> _Typed:
    types = list(map(type, values))
    present = list(dict.fromkeys(types))
    # One type is the common case. Below, itemgetter gives a tuple only for two values or more.
    if len(present) < 2:
        return _Typed(present, [values] if present else [], np.zeros(len(values), np.int32), itemgetter(0))
    codes = np.fromiter(map({one: code for code, one in enumerate(present)}.__getitem__, types), np.int32, len(types))
    # Stable, so that values of one type keep their order within their group.
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes)).tolist()
    ordered = itemgetter(*order.tolist())(values)
    groups = [ordered[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    pick = itemgetter(*np.argsort(order, kind="stable").tolist())
    return _Typed(present, groups, codes, lambda parts: pick(list(chain.from_iterable(parts))))


def _fields(node: Structure, structs: Sequence[Any]) -> dict[str, list[Any]]:
    """The values of every field of structs of one type; nothing of those that are null throughout.

    Most fields of most items are null. Their values are not copied, nor are their types taken: of short records, that
    was a quarter of what it takes to make the table.
    """
    if not structs or structs[0] is None:
        return {}
    names = structs[0].__struct_fields__
    columns: list[list[Any]] = [[] for _ in names]
    kinds: list[set[type]] = [set() for _ in names]
    for start in range(0, len(structs), BLOCK):
        rows = map(astuple, structs[start : start + BLOCK])
        for place, values in enumerate(zip(*rows, strict=True)):
            if _are_null(values):
                continue
            column = columns[place]
            if len(column) < start:
                _pad(column, kinds[place], start)
            column += values
            kinds[place].update(map(type, values))
    found = {}
    for name, column, present in zip(names, columns, kinds, strict=True):
        if len(column) < len(structs):
            _pad(column, present, len(structs))
        if not _check(node.fields[name], column, present):
            found[name] = column
    return found


def _are_null(values: Sequence[Any]) -> bool:
    """Whether all are ``None``. Told by identity: foreign types equal whatever they like, or cannot be compared."""
    return values[0] is None and not [value for value in values if value is not None]


def _pad(column: list[Any], kinds: set[type], length: int) -> None:
    """Put in the nulls that were left out, up to ``length`` values."""
    column += [None] * (length - len(column))
    kinds.add(NoneType)


def _children(node: Structure, values: _Typed) -> list[pa.Array]:
    """One array per field of ``values``, which are structs of the members of ``node``, or ``None``."""
    columns = [_fields(node, group) for group in values.groups]
    arrays = []
    for name, child in node.fields.items():
        parts = [held.get(name) for held in columns]
        if any(parts):
            filled = [part or [None] * len(group) for part, group in zip(parts, values.groups, strict=True)]
            arrays.append(_array(child, values.merge(filled)))
        else:
            arrays.append(pa.nulls(len(values.codes), child.arrow))
    return arrays


def _array(node: Node, values: Sequence[Any]) -> pa.Array:
    """The array of values that have been checked."""
    if isinstance(node, Leaf):
        return _texts(node, values) if node.json else _finite(pa.array(values, node.arrow))
    return _list(node, values) if isinstance(node, Listing) else _struct(node, values)


def _texts(node: Leaf, values: Sequence[Any]) -> pa.Array:
    """Open-ended values as JSON text."""
    return pa.array([None if value is None and not node.null_text else _text(value) for value in values], node.arrow)


def _text(value: Any) -> bytes:
    text = _ENCODER.encode(value)
    if len(text) <= SHORT_TEXT:
        exact = msgspec.json.decode(text) == value
    else:
        exact = _is_json(value) or (not is_too_deep(value) and msgspec.json.decode(text) == value)
    if not exact:
        raise InexactError("a value that is no JSON, or nested too deeply")
    return text


def _is_json(value: Any, levels: int = 20) -> bool:
    """Whether ``value`` is made of nothing but what JSON has, so that it comes back without being tried.

    Not said of what is nested deeper than ``levels``, nor of floats.
    """
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return True
    if kind is int:
        return bool(-(2**63) <= value < 2**63)
    if levels == 0:
        return False
    if kind is dict:
        for name, each in value.items():
            # Most values are texts, and a call of a function for each costs as much as all the rest of it.
            if type(name) is not str or not (type(each) is str or _is_json(each, levels - 1)):
                return False
    elif kind is list:
        for each in value:
            if not (type(each) is str or _is_json(each, levels - 1)):
                return False
    else:
        return False
    return True


def _finite(array: pa.Array) -> pa.Array:
    if pa.types.is_floating(array.type) and not pc.all(pc.is_finite(array), min_count=0).as_py():
        raise InexactError("a number that is infinite, or none")
    return array


def _list(node: Listing, values: Sequence[Any]) -> pa.Array:
    # A null list has no members, like an empty one; the mask tells them apart.
    present = [value or () for value in values]
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, present), np.int32, len(values)), out=offsets[1:])
    members = list(chain.from_iterable(present))
    null = _check(node.item, members, _kinds(members))
    items = pa.nulls(len(members), node.item.arrow) if null else _array(node.item, members)
    return pa.ListArray.from_arrays(pa.array(offsets), items, type=node.arrow, mask=_mask(values))


def _struct(node: Structure, values: Sequence[Any]) -> pa.Array:
    typed = _by_type(values)
    arrays = _children(node, typed)
    if node.tag_field:
        tags = {member.type: member.tag for member in node.members}
        present = pa.array([tags.get(each) for each in typed.present], pa.large_string())
        arrays.insert(0, present.take(pa.array(typed.codes)))
    mask = _mask(values) if NoneType in typed.present else None
    return pa.StructArray.from_arrays(arrays, fields=node.arrow_fields, mask=mask)


def _mask(values: Sequence[Any]) -> pa.Array | None:
    return pa.array([value is None for value in values]) if None in values else None
