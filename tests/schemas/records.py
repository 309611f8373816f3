"""Hypothesis strategies for records, derived from their types: every value that a type allows and a table can hold."""

from __future__ import annotations

import functools
from typing import Any

from hypothesis import strategies as st
from msgspec import inspect

from agentmill.schemas.records.record import Record

AWKWARD = [
    "",
    "01",
    "1.0",
    "null",
    "NaN",
    "\r\n",
    "\x00\x07\x1b[0m",
    "日本語",
    "👩‍👩‍👧",
    "\u2028",
    " a ",
    "ﷺ\u202e",
    "\ufeff",
]

texts = st.one_of(st.sampled_from(AWKWARD), st.text(st.characters(exclude_categories=["Cs"]), max_size=12))
floats = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.sampled_from([2**70, -(2**70), 1, 1.0, -0.0]), floats, texts),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
json_objects = st.dictionaries(texts, json_values, max_size=3)

LEAVES: dict[type[inspect.Type], st.SearchStrategy[Any]] = {
    inspect.StrType: texts,
    inspect.IntType: st.integers(-(2**63), 2**63 - 1),
    inspect.FloatType: floats,
    inspect.BoolType: st.booleans(),
    inspect.BytesType: st.binary(max_size=20),
    inspect.NoneType: st.none(),
    inspect.AnyType: json_values,
    inspect.DictType: json_objects,
}


@functools.cache
def records(record_type: type[Record]) -> st.SearchStrategy[Any]:
    return _strategy(inspect.type_info(record_type))


def _strategy(info: inspect.Type) -> st.SearchStrategy[Any]:
    if type(info) in LEAVES:
        return LEAVES[type(info)]
    if isinstance(info, inspect.LiteralType):
        return st.sampled_from(info.values)
    if isinstance(info, inspect.ListType):
        return st.lists(_strategy(info.item_type), max_size=3)
    if isinstance(info, inspect.TupleType):
        return st.tuples(*map(_strategy, info.item_types))
    if isinstance(info, inspect.UnionType):
        return st.one_of(*map(_strategy, info.types))
    assert isinstance(info, inspect.StructType)
    return st.builds(info.cls, **{field.name: _strategy(field.type) for field in info.fields})
