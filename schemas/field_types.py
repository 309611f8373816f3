"""The types of the fields of a record, found by a path with dots: what a value of a field can be compared with."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from schemas.errors import near_match
from schemas.record import Record

Kind = Literal["text", "number", "true or false"]


class FieldType(msgspec.Struct, frozen=True):
    """What a field holds. No ``kinds``: anything; ``choices``: the only texts; ``nullable``: it may be null."""

    kinds: frozenset[Kind]
    choices: tuple[str, ...] = ()
    nullable: bool = True


def kind_of(value: Any) -> Kind | None:
    """The kind of a value of YAML; ``None`` for null, lists and mappings."""
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else None


def field_type(record_type: type[Record], path: str) -> FieldType:
    """What the field at ``path`` holds; below a field that is an open mapping, such as ``extra``, anything.

    Raises ``ValueError`` where a record has no such field, and where it is not a single value.
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
                raise ValueError(f"`field: {path}`: {place} is {_described(found)}, it has no fields")
            owner = f"{place} of a {record_type.__name__}" if place else f"a {record_type.__name__}"
            fields = ", ".join(known)
            raise ValueError(
                f"`field: {path}`: {owner} has no field {part!r}; it has: {fields}.{near_match(part, known)}"
            )
        found = list(_members(known[part]))
    return _leaf(path, found)


def _leaf(path: str, members: list[Any]) -> FieldType:
    inner = [field.name for each in _structs(members) for field in msgspec.structs.fields(each)]
    if inner:
        raise ValueError(f"`field: {path}` has fields of its own; name one of them, for example {path}.{inner[0]}")
    if any(get_origin(each) in (list, tuple) for each in members):
        raise ValueError(f"`field: {path}` is a list; a condition compares single values")
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
