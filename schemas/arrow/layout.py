"""How a record type is in Arrow: derived from its annotations by fixed rules, in this one place.

================================  =====================================================================
annotation                        Arrow
================================  =====================================================================
``str``, ``Literal`` of texts     ``large_string``
``int``, ``float``, ``bool``      ``int64``, ``double``, ``bool``
``bytes``                         ``large_binary``
``Any``, ``dict[str, Any]``       ``large_string`` holding JSON text
``list[x]``, ``tuple[x, …]``      ``list<x>``
a record                          a struct of its fields
a union of tagged records         a struct of the tag (``class_``) and the union of their fields
``x | None``                      as ``x``; every Arrow field is nullable
================================  =====================================================================
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import NoneType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
import pyarrow as pa
from msgspec import inspect

from agentmill.schemas.errors import near_match
from agentmill.schemas.records.record import SCHEMA_VERSION, Record

VERSION_COLUMN = "schema_version"
VERSION_KEY = b"agentmill.schema_version"
RECORD_KEY = b"agentmill.record"


@dataclass(frozen=True)
class Leaf:
    """One value per row, of one of the types ``kinds`` and, where there are any, one of ``choices``.

    ``json``: it is JSON text; ``null_text``: ``None`` is itself a value, written ``null``.
    """

    arrow: pa.DataType
    kinds: frozenset[type]
    choices: frozenset[str | None] = frozenset()
    json: bool = False
    null_text: bool = False


@dataclass(frozen=True)
class Listing:
    """A list of values of one layout, or a tuple, which has ``length`` of them."""

    item: Node
    kinds: frozenset[type]
    length: int | None = None

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow list type."""
        return pa.list_(pa.field("element", self.item.arrow))  # the name that Parquet prescribes


@dataclass(frozen=True)
class Member:
    """One struct type of a ``Structure``; ``filled`` are its fields that have a default and must not be null."""

    type: type[msgspec.Struct]
    tag: str | None
    names: tuple[str, ...]
    filled: frozenset[str]


@dataclass(frozen=True)
class Structure:
    """A record (one member) or a tagged union of records (several); ``fields`` are those of all members."""

    members: tuple[Member, ...]
    tag_field: str | None
    fields: dict[str, Node]
    kinds: frozenset[type]

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow struct type, the tag first."""
        return pa.struct(self.arrow_fields)

    @property
    def arrow_fields(self) -> list[pa.Field]:
        """The Arrow fields, the tag first."""
        tag = [pa.field(self.tag_field, pa.large_string())] if self.tag_field else []
        return tag + [pa.field(name, node.arrow) for name, node in self.fields.items()]


Node = Leaf | Listing | Structure

_TEXT = pa.large_string()
_LEAVES: dict[type[inspect.Type], Leaf] = {
    inspect.StrType: Leaf(_TEXT, frozenset({str})),
    inspect.IntType: Leaf(pa.int64(), frozenset({int})),
    inspect.FloatType: Leaf(pa.float64(), frozenset({float, int})),
    inspect.BoolType: Leaf(pa.bool_(), frozenset({bool})),
    inspect.BytesType: Leaf(pa.large_binary(), frozenset({bytes})),
    inspect.AnyType: Leaf(_TEXT, frozenset({object}), json=True, null_text=True),
}


@functools.cache
def layout(record_type: type[Record]) -> Structure:
    """The layout of a record type. Raises ``TypeError`` for an annotation that no rule covers."""
    node = _node(inspect.type_info(record_type))
    assert isinstance(node, Structure)
    return node


@functools.cache
def arrow_schema(record_type: type[Record]) -> pa.Schema:
    """The Arrow schema of a record type: its fields, then ``schema_version``; version and record name as metadata."""
    fields = [*layout(record_type).arrow_fields, pa.field(VERSION_COLUMN, pa.large_string())]
    return pa.schema(fields, {VERSION_KEY: SCHEMA_VERSION.encode(), RECORD_KEY: record_type.__name__.encode()})


def _node(info: inspect.Type) -> Node:
    if type(info) in _LEAVES:
        return _LEAVES[type(info)]
    if isinstance(info, inspect.LiteralType):
        return Leaf(_TEXT, frozenset({str}), choices=frozenset(map(str, info.values)))
    if isinstance(info, inspect.DictType) and isinstance(info.value_type, inspect.AnyType):
        return Leaf(_TEXT, frozenset({dict}), json=True)
    if isinstance(info, inspect.ListType):
        return Listing(_node(info.item_type), frozenset({list}))
    if isinstance(info, inspect.TupleType):
        nodes = [_node(item) for item in info.item_types]
        # A list of Arrow has one type for all of its members.
        if all(node == nodes[0] for node in nodes):
            return Listing(nodes[0], frozenset({tuple}), len(nodes))
    if isinstance(info, inspect.StructType):
        return _structure([info])
    if isinstance(info, inspect.UnionType):
        return _union(info)
    raise TypeError(f"no Arrow layout for {info}")


def _union(info: inspect.UnionType) -> Node:
    present = [item for item in info.types if not isinstance(item, inspect.NoneType)]
    structs = [item for item in present if isinstance(item, inspect.StructType)]
    if len(present) > 1 and len(structs) < len(present):
        raise TypeError(f"no Arrow layout for {info}")
    node = _structure(structs) if structs else _node(present[0])
    return _or_none(node) if len(present) < len(info.types) else node


def _or_none(node: Node) -> Node:
    kinds = node.kinds | {NoneType}
    if isinstance(node, Leaf) and node.choices:
        return replace(node, kinds=kinds, choices=node.choices | {None})
    return replace(node, kinds=kinds)


def _structure(structs: list[inspect.StructType]) -> Structure:
    fields: dict[str, Node] = {}
    for struct in structs:
        for field in struct.fields:
            node = _node(field.type)
            # The members of a union share columns by name, and a column has one type.
            if fields.setdefault(field.name, node) != node:
                raise TypeError(f"field {field.name!r} has two layouts in one union")
    kinds = frozenset(struct.cls for struct in structs)
    return Structure(tuple(_member(struct) for struct in structs), structs[0].tag_field, fields, kinds)


def _member(struct: inspect.StructType) -> Member:
    filled = frozenset(field.name for field in struct.fields if not field.required and not _optional(field.type))
    tag = str(struct.tag) if struct.tag_field else None
    return Member(struct.cls, tag, tuple(field.name for field in struct.fields), filled)


def _optional(info: inspect.Type) -> bool:
    if isinstance(info, inspect.UnionType):
        return any(isinstance(item, inspect.NoneType) for item in info.types)
    return isinstance(info, inspect.AnyType | inspect.NoneType)


Kind = Literal["text", "number", "true or false"]


class FieldType(msgspec.Struct, frozen=True):
    """What a field holds. No ``kinds``: anything; ``choices``: the only texts; ``nullable``: it may be null."""

    kinds: frozenset[Kind]
    choices: tuple[str, ...] = ()
    nullable: bool = True


def kind_of(value: Any) -> Kind | None:
    """The kind of a value of YAML; ``None`` for null, lists and mappings."""
    # Before numbers: a bool is an int in Python.
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else None


def field_type(record_type: type[Record], path: str, key: str = "field") -> FieldType:
    """What the field at ``path`` holds; below a field that is an open mapping, such as ``extra``, anything.

    Raises ``ValueError`` where a record has no such field, and where it is not a single value; ``key`` is what the path
    was given as.
    """
    found: list[Any] = [record_type]
    parts = path.split(".")
    for depth, part in enumerate(parts):
        if any(each is Any or get_origin(each) is dict or each is dict for each in found):
            return FieldType(frozenset())
        known = {field.name: field.type for each in _structs(found) for field in msgspec.structs.fields(each)}
        if part not in known:
            place = ".".join(parts[:depth])
            if not known:
                raise ValueError(f"`{key}: {path}`: {place} is {_described(found)}, it has no fields")
            owner = f"{place} of a {record_type.__name__}" if place else f"a {record_type.__name__}"
            fields = ", ".join(known)
            raise ValueError(
                f"`{key}: {path}`: {owner} has no field {part!r}; it has: {fields}.{near_match(part, known)}"
            )
        found = list(_members(known[part]))
    return _leaf(key, path, found)


def _leaf(key: str, path: str, members: list[Any]) -> FieldType:
    inner = [field.name for each in _structs(members) for field in msgspec.structs.fields(each)]
    if inner:
        raise ValueError(f"`{key}: {path}` has fields of its own; name one of them, for example {path}.{inner[0]}")
    if any(get_origin(each) in (list, tuple) for each in members):
        raise ValueError(f"`{key}: {path}` is a list; a condition compares single values")
    if any(each is Any or get_origin(each) is dict or each is dict for each in members):
        return FieldType(frozenset())
    choices = tuple(choice for each in members if get_origin(each) is Literal for choice in get_args(each))
    kinds = frozenset(_KINDS[each] for each in members if each in _KINDS)
    return FieldType(
        kinds | ({"text"} if choices else frozenset()), choices, any(each is type(None) for each in members)
    )


_KINDS: dict[Any, Kind] = {str: "text", int: "number", float: "number", bool: "true or false"}


def _members(given: Any) -> Iterator[Any]:
    """The types of a union, without their annotations."""
    if get_origin(given) is Annotated:
        yield from _members(get_args(given)[0])
    elif get_origin(given) in (Union, types.UnionType):
        for each in get_args(given):
            yield from _members(each)
    else:
        yield given


def _structs(members: list[Any]) -> list[type[msgspec.Struct]]:
    return [each for each in members if isinstance(each, type) and issubclass(each, msgspec.Struct)]


def _described(members: list[Any]) -> str:
    if any(get_origin(each) in (list, tuple) for each in members):
        return "a list"
    return " or ".join(sorted({_KINDS[each] for each in members if each in _KINDS} or {"text"}))
