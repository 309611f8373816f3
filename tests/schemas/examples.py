"""One full record of every type: no field is left at its default, unions hold every member."""

from __future__ import annotations

from typing import Any

from msgspec import inspect

from agentmill.schemas.records.record import Record

LEAVES: dict[type[inspect.Type], Any] = {
    inspect.StrType: "日本 \r\n 01",
    inspect.IntType: 3,
    inspect.FloatType: 0.25,
    inspect.BoolType: True,
    inspect.BytesType: b"\x00\xff",
    inspect.AnyType: {"any": [1, 1.0, None]},
    inspect.DictType: {"a": 1.0, "b": {"c": [None, "01", {}]}},
}


def example(record_type: type[Record]) -> Any:
    """The same record at every call."""
    (value,) = _values(inspect.type_info(record_type))
    return value


def _values(info: inspect.Type) -> list[Any]:
    """One value of the type; for a union of records one of each."""
    if type(info) in LEAVES:
        return [LEAVES[type(info)]]
    if isinstance(info, inspect.LiteralType):
        return [info.values[0]]
    if isinstance(info, inspect.ListType):
        return [_values(info.item_type)]
    if isinstance(info, inspect.TupleType):
        return [tuple(_values(item)[0] for item in info.item_types)]
    if isinstance(info, inspect.UnionType):
        return [value for item in info.types if not isinstance(item, inspect.NoneType) for value in _values(item)]
    assert isinstance(info, inspect.StructType)
    return [info.cls(**{field.name: _values(field.type)[0] for field in info.fields})]
