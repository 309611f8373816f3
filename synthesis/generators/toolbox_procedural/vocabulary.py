"""The data of invented databases: themes, names, tables with their columns, and templates of tools and conditions."""

from __future__ import annotations

from functools import cache
from typing import Literal

import msgspec

from agentmill.synthesis.generators.data_files import convert, read_named, read_table

PACKAGE = __package__


class Theme(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A vocabulary. ``life`` are the states of a record in order, the last one its cancelled state; ``verbs`` lead
    from each to the next, the last one from the first to the cancelled one."""

    name: str
    keywords: str
    about: str
    party: str
    thing: str
    place: str
    staff: str
    record: str
    life: tuple[str, ...]
    verbs: tuple[str, ...]
    kind: str
    kinds: tuple[str, ...]
    tiers: tuple[str, ...]
    amount: str
    stock: str
    note: str
    things: tuple[str, ...]
    places: tuple[str, ...]


class Names(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of people and places, and what notes say."""

    first_names: tuple[str, ...]
    last_names: tuple[str, ...]
    cities: tuple[str, ...]
    regions: tuple[str, ...]
    remarks: tuple[str, ...]


class ColumnEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column that a table can have; lists are given or named, see ``tables.yaml``."""

    name: str
    type: Literal["integer", "text"]
    likely: float | None = None
    label: str = ""
    values: tuple[str, ...] | str = ()
    examples: tuple[str, ...] | str = ()
    least: int | None = None
    most: int | None = None
    unique: bool = False


class TableEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table that a database can have; ``columns`` by kind, ``name`` the column by which rows are called."""

    noun: str
    size: tuple[int, int]
    likely: float | None = None
    name: str = ""
    columns: dict[str, ColumnEntry] = {}


class RequirementTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What must hold: a ``condition`` on the row that a call is about, or a whole ``query``."""

    message: str
    hint: str
    condition: str = ""
    query: str = ""


class ToolTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool. ``change`` is what it sets in its row, behind the statements ``writes``; what it answers is the query
    ``returns``, or the rows ``where`` something holds, or its row."""

    name: str
    description: str
    request: str = ""
    writes: tuple[str, ...] = ()
    change: str = ""
    returns: str = ""
    where: str = "${key} = :${key}"


@cache
def themes() -> tuple[Theme, ...]:
    """What parties, things, places and records are called, and how a record's life goes."""
    return read_named(PACKAGE, "themes.yaml", Theme)


@cache
def names() -> Names:
    """Names and remarks for rows."""
    return convert(read_table(PACKAGE, "names.yaml"), Names, f"{PACKAGE}/data/names.yaml")


@cache
def tables() -> dict[str, TableEntry]:
    """The tables that a database can have, by role."""
    return convert(read_table(PACKAGE, "tables.yaml"), dict[str, TableEntry], f"{PACKAGE}/data/tables.yaml")


@cache
def requirements() -> dict[str, RequirementTemplate]:
    """Templates of what must hold before a tool writes."""
    origin = f"{PACKAGE}/data/requirements.yaml"
    return convert(read_table(PACKAGE, "requirements.yaml"), dict[str, RequirementTemplate], origin)


@cache
def tools() -> dict[str, ToolTemplate]:
    """Templates of tools."""
    return convert(read_table(PACKAGE, "tools.yaml"), dict[str, ToolTemplate], f"{PACKAGE}/data/tools.yaml")


@cache
def effects() -> dict[str, str]:
    """Templates of statements that change another table."""
    return convert(read_table(PACKAGE, "effects.yaml"), dict[str, str], f"{PACKAGE}/data/effects.yaml")
