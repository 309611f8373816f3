"""A toolbox in the making: entities with columns of known kinds, the tools built on them so far, and how templates of
tools and conditions are filled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from string import Template

from agentmill.synthesis.environments.toolbox.toolbox import Column, Parameter, Requirement, Table, Tool
from agentmill.synthesis.generators.pddl_procedural.themes import plural
from agentmill.synthesis.generators.toolbox_procedural.vocabulary import Theme, effects, requirements, tools

Words = dict[str, object]


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


def value_parameter(entity: Entity, column: Column) -> Parameter:
    """A parameter that takes a new value of a column."""
    return Parameter(name=column.name, column=entity.path(column.name), least=column.least)


def words_of(entity: Entity, column: Column | None = None, parent: Entity | None = None, **more: object) -> Words:
    """The words that templates use: those of an entity, of one of its columns and of the parent that it refers to."""
    words: Words = {
        "noun": entity.noun,
        "nouns": plural(entity.noun),
        "word": entity.word,
        "table": entity.table,
        "rows": entity.table.replace("_", " "),
        "key": entity.key,
    }
    if column is not None:
        words |= {"column": column.name, "label": column.words}
    if parent is not None:
        words |= {
            "parent": parent.noun,
            "parent_word": parent.word,
            "parent_table": parent.table,
            "parent_key": parent.key,
        }
    return words | more


def requires(name: str, words: Words) -> Requirement:
    """The requirement of a template."""
    template = requirements()[name]
    query = template.query or f"SELECT {template.condition} FROM ${{table}} WHERE ${{key}} = :${{key}}"
    return Requirement(*(Template(text).substitute(words) for text in (query, template.message, template.hint)))


def exists(entity: Entity, parameter: str | None = None) -> Requirement:
    """That the key in a parameter is one of an entity."""
    return requires("exists", words_of(entity, parameter=parameter or entity.key))


def usable(parent: Entity, flag: Column, parameter: str) -> Requirement:
    """That the row that a parameter names has the first value of its flag."""
    return requires("usable", words_of(parent, flag, parameter=parameter, value=flag.values[0]))


def effect(name: str, words: Words) -> str:
    """The statement of a template that changes another table."""
    return Template(effects()[name]).substitute(words)


def fields(entity: Entity) -> dict[str, str]:
    """All columns as fields of an answer."""
    return {name: entity.path(name) for name in (entity.key, *(column.name for column in entity.columns))}


def tool_of(
    name: str,
    entity: Entity,
    words: Words,
    parameters: Iterable[Parameter] = (),
    needs: Iterable[Requirement] = (),
    also: Iterable[str] = (),
    columns: dict[str, str] | None = None,
) -> Tool:
    """The tool of a template. One that changes a row takes its key first. ``also`` are more statements; ``columns`` are
    the fields of its answer, all of the entity by default."""
    template = tools()[name]
    columns = fields(entity) if columns is None else columns

    def filled_in(text: str) -> str:
        return Template(text).substitute(words)

    writes = [*map(filled_in, template.writes), *also]
    if template.change:
        writes.append(filled_in("UPDATE ${table} SET " + template.change + " WHERE ${key} = :${key}"))
        # First of all the row must exist, as the other requirements ask about it.
        parameters, needs = (key_parameter(entity), *parameters), (exists(entity), *needs)
    shown = f"SELECT {', '.join(columns)} FROM ${{table}} WHERE {template.where} ORDER BY ${{key}}"
    return Tool(
        name=filled_in(template.name),
        description=filled_in(template.description),
        returns=filled_in(template.returns or shown),
        columns=columns,
        parameters=tuple(parameters),
        requires=tuple(needs),
        writes=tuple(writes),
        request=filled_in(template.request),
    )
