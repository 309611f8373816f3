"""A toolbox in the making: entities with columns of known kinds, and the tools built on them so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentmill.synthesis.environments.toolbox.toolbox import Column, Parameter, Requirement, Table, Tool
from agentmill.synthesis.generators.pddl_procedural.theme import plural
from agentmill.synthesis.generators.toolbox_procedural.vocabulary import Theme


@dataclass
class Entity:
    """A table under construction. ``kinds`` says what a column is for (``name``, ``status``, ``counter`` …)."""

    role: str
    noun: str
    size: int
    columns: list[Column] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=dict)

    @property
    def word(self) -> str:
        """The noun as a part of names."""
        return self.noun.replace(" ", "_")

    @property
    def table(self) -> str:
        """The name of its table."""
        return plural(self.word)

    @property
    def key(self) -> str:
        """The name of its key."""
        return f"{self.word}_id"

    def add(self, kind: str, column: Column) -> None:
        """A column, known by its kind."""
        self.columns.append(column)
        self.kinds[kind] = column.name

    def of(self, kind: str) -> Column | None:
        """The column of a kind, if there is one."""
        return next((column for column in self.columns if column.name == self.kinds.get(kind)), None)

    def parents(self) -> list[Column]:
        """The columns that refer to other tables."""
        return [column for column in self.columns if column.references]

    def path(self, column: str) -> str:
        """``"table.column"``."""
        return f"{self.table}.{column}"


@dataclass
class Draft:
    """A toolbox under construction."""

    theme: Theme
    entities: dict[str, Entity] = field(default_factory=dict)
    tools: dict[str, Tool] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)

    def entity(self, table: str) -> Entity:
        """The entity of a table."""
        return next(entity for entity in self.entities.values() if entity.table == table)

    def children(self, entity: Entity) -> list[tuple[Entity, Column]]:
        """Who refers to an entity, and by which column."""
        return [
            (child, column)
            for child in self.entities.values()
            for column in child.parents()
            if column.references == entity.table
        ]

    def add(self, tool: Tool, part: str) -> None:
        """A tool, unless there is one of that name."""
        if tool.name not in self.tools:
            self.tools[tool.name] = tool
            self.parts.append(part)

    def tables(self) -> tuple[Table, ...]:
        """The tables, parents before children."""
        return tuple(
            Table(
                name=entity.table,
                noun=entity.noun,
                columns=(Column(name=entity.key, type="integer", label=f"{entity.noun} number"), *entity.columns),
            )
            for entity in self.entities.values()
        )


def key_parameter(entity: Entity, name: str | None = None) -> Parameter:
    """A parameter that takes the key of an entity."""
    return Parameter(
        name=name or entity.key, column=entity.path(entity.key), description=f"number of the {entity.noun}"
    )


def exists(entity: Entity, name: str | None = None) -> Requirement:
    """That the key in a parameter is one of an entity."""
    parameter = name or entity.key
    return Requirement(
        query=f"SELECT 1 FROM {entity.table} WHERE {entity.key} = :{parameter}",
        message=f"there is no {entity.noun} number {{{parameter}}}",
        hint=f"look the {entity.noun} up with one of the tools that find or list {plural(entity.noun)}",
    )


def fields(entity: Entity) -> dict[str, str]:
    """All columns as fields of an answer."""
    return {name: entity.path(name) for name in (entity.key, *(column.name for column in entity.columns))}


def select(entity: Entity, where: str, shown: dict[str, str] | None = None) -> str:
    """A query for rows of an entity, in the order of their keys."""
    names = ", ".join(shown or fields(entity))
    return f"SELECT {names} FROM {entity.table} WHERE {where} ORDER BY {entity.key}"


def of_row(entity: Entity, condition: str, message: str, hint: str) -> Requirement:
    """A condition on the row that a call is about."""
    query = f"SELECT {condition} FROM {entity.table} WHERE {entity.key} = :{entity.key}"
    return Requirement(query=query, message=message, hint=hint)


def usable(parent: Entity, flag: Column, parameter: str) -> Requirement:
    """That the row that a parameter names has the first value of its flag."""
    return Requirement(
        query=f"SELECT {flag.name} = '{flag.values[0]}' FROM {parent.table} WHERE {parent.key} = :{parameter}",
        message=f"{parent.noun} {{{parameter}}} is not {flag.values[0]}",
        hint=f"choose a {parent.noun} that is {flag.values[0]}",
    )


def updating(
    draft: Draft,
    entity: Entity,
    name: str,
    description: str,
    change: str,
    request: str,
    *,
    parameters: tuple[Parameter, ...] = (),
    requires: tuple[Requirement, ...] = (),
    also: tuple[str, ...] = (),
    part: str,
) -> None:
    """A tool that changes one row by ``SET change``; ``also`` are statements before that."""
    draft.add(
        Tool(
            name=name,
            description=description,
            parameters=(key_parameter(entity), *parameters),
            requires=(exists(entity), *requires),
            writes=(*also, f"UPDATE {entity.table} SET {change} WHERE {entity.key} = :{entity.key}"),
            returns=select(entity, f"{entity.key} = :{entity.key}"),
            columns=fields(entity),
            request=request,
        ),
        part,
    )
