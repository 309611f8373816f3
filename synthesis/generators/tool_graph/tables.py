"""Tables of resources: their columns, from results and from what tools write, and seeded rows.

Whole numbers are all that a toolbox has: other numbers become whole, and keys are numbers whatever their type is.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from agentmill.schemas.ids import derive_seed
from agentmill.synthesis.environments.toolbox.toolbox import Column, Rows, Table, Value
from agentmill.synthesis.generators.tool_graph.naming import is_person, plural, safe, snake, words
from agentmill.synthesis.generators.tool_graph.resources import Part, Understood
from agentmill.synthesis.generators.toolbox_procedural.vocabulary import names

MOST_COLUMNS = 16
"""Columns of a table, its key not counted; more fields are left out."""

EXAMPLES = 12
ENOUGH_EXAMPLES = 4
"""So many examples in a specification are all the texts that a column holds; fewer are some of them."""

WITH_CHILDREN = 0.7
"""The share of the rows of a table that rows of other tables refer to, so that others can be removed."""

FLAGS = ("true", "false")
DATES = tuple(f"2026-{month:02}-{day:02}" for month in (3, 4, 5) for day in (2, 7, 11, 16, 20, 25))
_RANGES = {"year": (1990, 2026), "age": (18, 90), "rating": (1, 5), "stars": (1, 5), "": (1, 60)}
"""What numbers are drawn from where nothing bounds them, by the last word of their name."""

_SUMS = ("price", "amount", "total", "cost", "fee")
_MOST_SUM = 300
_PEOPLE = ("name", "full_name", "contact_name")


def key_of(noun: str) -> str:
    """The key of the table of a resource."""
    return safe(f"{noun}_id")


def table_name(noun: str) -> str:
    """The name of the table of a resource."""
    return safe(plural(noun))


def column_name(part: Part) -> str:
    """The column of a table that holds a field."""
    return key_of(part.identifies) if part.identifies else safe(part.field.name)


def referred(identifies: str, resources: Collection[str]) -> str:
    """The resource that a field identifies: ``guest`` also for ``paying_guest``; empty if it is none of them."""
    if identifies in resources:
        return identifies
    fitting = [noun for noun in resources if identifies.endswith(f"_{noun}")]
    return max(fitting, key=len, default="")


class Sheet(msgspec.Struct):
    """A table, the ``parts`` that its columns are made of, ``left_out`` fields, and columns ``changed`` in type."""

    table: Table
    parts: dict[str, Part]
    left_out: list[str]
    changed: list[str]

    def find(self, part: Part) -> Column | None:
        """The column for a field, if there is one."""
        name = column_name(part)
        return next((column for column in self.table.columns if column.name == name), None)


def sheet_of(noun: str, tools: Sequence[Understood], resources: Collection[str]) -> Sheet:
    """The table of a resource, from its tools; references lead to one of ``resources``."""
    found: dict[str, Part] = {}
    left_out: dict[str, str] = {}
    texts: set[str] = set()
    for part in _parts(noun, tools):
        name = column_name(part)
        texts |= {name} if part.identifies and part.field.kind == "string" else set()
        if name == key_of(noun):
            continue
        if not part.is_value or (name not in found and len(found) == MOST_COLUMNS):
            left_out[name] = part.field.name
            continue
        found[name] = _richer(found.get(name), part)
    given = [{column_name(part) for part in tool.kept} for tool in tools if tool.effect == "create"]
    columns = [_column(name, part, resources, all(name in each for each in given)) for name, part in found.items()]
    key = Column(name=key_of(noun), type="integer", label=f"{noun.replace('_', ' ')} number")
    table = Table(name=table_name(noun), noun=noun.replace("_", " "), columns=(key, *columns))
    others = [name for name, part in found.items() if part.field.kind in ("number", "boolean") or _is_choice(part)]
    missing = [given for name, given in left_out.items() if name not in found]
    return Sheet(table, found, missing, [*sorted(texts), *others])


def _is_choice(part: Part) -> bool:
    """Whether it has whole numbers to choose from, which become texts."""
    return part.field.kind == "integer" and bool(part.field.values)


def _parts(noun: str, tools: Sequence[Understood]) -> Iterator[Part]:
    """The fields of the rows of a resource: what results show, what is written, and what rows are listed by."""
    for tool in tools:
        yield from tool.result or ()
    for tool in tools:
        by = snake(tool.tool.name).partition("_by_")[2]
        for part in tool.arguments:
            listed = part.identifies not in (None, noun) or snake(part.field.name) == by
            if tool.effect in ("create", "change", "step") or (tool.effect == "read" and listed):
                yield part


def _richer(known: Part | None, part: Part) -> Part:
    """The one that tells more: a type, or the values to choose from."""
    if known is None or (known.field.kind == "unknown" and part.field.kind != "unknown"):
        return part
    return part if part.field.values and not known.field.values else known


def _column(name: str, part: Part, resources: Collection[str], given: bool) -> Column:
    """``given`` says that every new row has a value."""
    field = part.field
    label = (name.removesuffix("_id") if part.identifies else name).strip("_").replace("_", " ")
    if part.identifies:
        noun = referred(part.identifies, resources)
        references = table_name(noun) if noun else ""
        label = label if references else f"{label} number"
        return Column(name=name, type="integer", label=label, references=references, optional=not given)
    if field.kind in ("integer", "number") and not field.values:
        low, high = _usual(name)
        most = field.most if field.most is not None else max(high, (field.least or 0) + 1)
        # Rows begin with the usual least number, which may be more than any that is allowed.
        least = most - (high - low) if field.least is None and most < low else field.least
        return Column(name=name, type="integer", label=label, least=least, most=most, optional=not given)
    values = FLAGS if field.kind == "boolean" else field.values
    if values:
        return Column(name=name, type="text", label=label, values=values)
    return Column(name=name, type="text", label=label, optional=not given)


def _usual(name: str) -> tuple[int, int]:
    word = name.strip("_").rpartition("_")[2]
    return (1, _MOST_SUM) if word in _SUMS else _RANGES.get(word, _RANGES[""])


def with_rows(
    tables: Sequence[Table], forms: Mapping[str, str], examples: Mapping[str, tuple[str, ...]], n: int, seed: int
) -> tuple[tuple[Table, ...], Rows]:
    """The tables with examples of their texts, and ``n`` rows of each; values to choose from take turns.

    ``forms`` and ``examples`` are what specifications tell of texts, by ``"table.column"``.
    """
    filled, rows = [], Rows()
    for table in tables:
        chance = random.Random(derive_seed("tool_graph", seed, table.name))
        columns = [table.columns[0]]
        values: list[list[Value]] = [list(range(1, n + 1))]
        for column in table.columns[1:]:
            path = f"{table.name}.{column.name}"
            pool = _pool(table, column, forms.get(path, ""), examples.get(path, ()), chance)
            named = dict(zip((each.name for each in columns), values, strict=True))
            values.append(_drawn(column, pool, named, n, chance))
            columns.append(msgspec.structs.replace(column, examples=tuple(pool[-EXAMPLES:])) if pool else column)
        filled.append(msgspec.structs.replace(table, columns=tuple(columns)))
        rows[table.name] = list(zip(*values, strict=True))
    return tuple(filled), rows


def _pool(table: Table, column: Column, form: str, examples: tuple[str, ...], chance: random.Random) -> list[str]:
    """Texts that a column may hold, in random order; none for numbers, and where rows choose or make their own."""
    if column.type == "integer" or column.values:
        return []
    name = column.name.strip("_")
    last = name.rpartition("_")[2]
    if form == "email" or last in ("email", "mail", "phone", "tel"):
        return []
    if form in ("date", "date-time") or last in ("date", "day") or name.endswith("_at"):
        pool = [f"{date}T09:00" for date in DATES] if form == "date-time" or name.endswith("_at") else list(DATES)
    elif len(examples) >= ENOUGH_EXAMPLES:
        pool = list(examples)
    elif last in ("city", "town", "destination"):
        pool = list(names().cities)
    elif (name in _PEOPLE and is_person(table.noun.replace(" ", "_"))) or is_person(last):
        pool = [f"{one} {other}" for one in names().first_names for other in names().last_names]
    elif last in ("name", "title", "label", "subject"):
        pool = [f"{one.capitalize()} {other.capitalize()}" for one in words().names for other in words().things]
    elif last in ("note", "notes", "comment", "description", "remark", "text", "message", "reason", "body"):
        pool = list(names().remarks)
    else:
        pool = [f"{column.words} {letter}" for letter in "ABCDEFGHJKLM"]
    pool = list(dict.fromkeys([*examples, *pool]))
    chance.shuffle(pool)
    return pool


def _drawn(
    column: Column, pool: list[str], named: Mapping[str, list[Value]], n: int, chance: random.Random
) -> list[Value]:
    """The values of a column in ``n`` rows."""
    if column.references:
        return [chance.randint(1, max(1, int(n * WITH_CHILDREN))) for _ in range(n)]
    if column.values:
        listed: list[Value] = [column.values[number % len(column.values)] for number in range(n)]
        chance.shuffle(listed)
        return listed
    if column.type == "integer":
        least = column.least if column.least is not None else _usual(column.name)[0]
        return [chance.randint(least, max(least, column.most or 0)) for _ in range(n)]
    if pool:
        # Without repetition as long as it lasts; the end is left for values that rows may get.
        return [
            pool[number % max(1, len(pool) - EXAMPLES if len(pool) >= n + EXAMPLES else len(pool))]
            for number in range(n)
        ]
    if column.name.rpartition("_")[2] in ("phone", "tel"):
        return [f"555-{chance.randint(100, 999)}-{number:03}" for number in range(1, n + 1)]
    called = named.get("name") or named.get("full_name") or [f"{column.words} {number}" for number in range(1, n + 1)]
    return [f"{str(each).lower().replace(' ', '.')}@example.org" for each in called]
