"""Interpreter environments without a model: tables that are read page by page, in a Python session.

An inspiration text chooses what the tables are about; the seed decides their fields, ranges and pages.
"""

from __future__ import annotations

import random
import re
from functools import cache
from typing import Any

import msgspec

from agentmill.schemas.ids import derive_seed, digest
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.task import EnvironmentSpec, Inspiration
from agentmill.synthesis.generators.data_files import fill, read_named, read_template
from agentmill.synthesis.generators.procedural import BACKEND, proposal

PACKAGE = __package__
Row = dict[str, Any]


class Other(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The second table: its rows are named by the field ``link`` and have an ``attribute`` with ``values``."""

    table: str
    link: str
    attribute: str
    values: tuple[str, ...]


class Theme(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the table ``name`` is about; ``words`` in an inspiration text speak for it."""

    name: str
    words: str
    row: str
    options: dict[str, tuple[str, ...]]
    ranges: dict[str, tuple[int, int]]
    other: Other


@cache
def themes() -> tuple[Theme, ...]:
    """What tables can be about."""
    return read_named(PACKAGE, "themes.yaml", Theme)


class Scheme(Record):
    """A table of rows with a ``key`` that is unique, fields with options, and fields of whole numbers in ranges.

    ``link`` is the field that names a row of the table ``other``, which has the field ``attribute`` with options.
    """

    table: str
    row: str
    key: str
    options: dict[str, list[str]]
    ranges: dict[str, tuple[int, int]]
    other: str
    link: str
    attribute: str
    attribute_options: list[str]
    page_size: int

    def structure(self) -> str:
        """Equal for schemes of one table with the same fields.

        Other bounds of a range, another order of fields or size of a page make no other environment: questions about
        one are those about the other.
        """
        return digest("interpreter", self.table, sorted(self.options), sorted(self.ranges))

    def draw(self, n_rows: int, chance: random.Random) -> dict[str, list[Row]]:
        """Both tables."""
        linked = [f"{self.link}-{letter}" for letter in "ABCDE"[: chance.randint(3, 5)]]
        other = [{self.link: name, self.attribute: chance.choice(self.attribute_options)} for name in linked]
        numbers = chance.sample(range(100, 1000), n_rows)
        return {self.table: [self._row(number, linked, chance) for number in numbers], self.other: other}

    def _row(self, number: int, linked: list[str], chance: random.Random) -> Row:
        row: Row = {self.key: f"{self.row[0].upper()}{number}"}
        row.update({field: chance.choice(options) for field, options in self.options.items()})
        row.update({field: chance.randint(*bounds) for field, bounds in self.ranges.items()})
        return {**row, self.link: chance.choice(linked)}


def scheme_of(spec: EnvironmentSpec) -> Scheme:
    """The scheme of an environment. Raises ``ValueError`` for an environment that has none."""
    try:
        return msgspec.convert(spec.parameters.get("scheme"), Scheme)
    except msgspec.ValidationError as error:
        raise ValueError(f"environment {spec.environment_id} has no scheme of tables: {error}") from None


class TablesTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The source of an environment of tables, and its rules."""

    rules: str
    source: str


class InterpreterGenerator:
    """Proposes tables by chance; no model is asked."""

    async def propose(self, inspiration: Inspiration, seed: int) -> EnvironmentSpec:
        """An environment; same inspiration and seed, same environment."""
        return propose(inspiration, seed)


def propose(inspiration: Inspiration, seed: int) -> EnvironmentSpec:
    """The environment of ``inspiration`` and ``seed``."""
    chance = random.Random(derive_seed("interpreter", BACKEND, inspiration.inspiration_id, seed))
    scheme = _scheme(_theme(inspiration.text, chance), chance)
    words = msgspec.json.decode(msgspec.json.encode(scheme))  # a range as a list, which tables can hold
    template = read_template(PACKAGE, "tables").as_type(TablesTemplate)
    placeholders = {name.upper(): words[name] for name in ("table", "other", "link", "page_size")}
    return proposal(
        "interpreter",
        inspiration,
        seed,
        {"theme": scheme.table},
        name=f"{scheme.table}-{scheme.other}",
        source=fill(template.source, placeholders),
        parameters={"rules": fill(template.rules, placeholders), "scheme": words},
        structure_digest=scheme.structure(),
    )


def _theme(text: str, chance: random.Random) -> Theme:
    """The theme that most words of the text speak for; by chance among equals."""
    words = re.findall(r"[a-z]+", text.lower())
    votes = [sum(word.startswith(known) for known in theme.words.split() for word in words) for theme in themes()]
    return chance.choice([theme for theme, count in zip(themes(), votes, strict=True) if count == max(votes)])


def _scheme(theme: Theme, chance: random.Random) -> Scheme:
    options = chance.sample(list(theme.options), chance.randint(2, len(theme.options)))
    ranges = chance.sample(list(theme.ranges), chance.randint(2, len(theme.ranges)))
    return Scheme(
        table=theme.name,
        row=theme.row,
        key="id",
        options={field: list(theme.options[field]) for field in options},
        ranges={field: (theme.ranges[field][0], theme.ranges[field][1] + chance.randint(0, 9)) for field in ranges},
        other=theme.other.table,
        link=theme.other.link,
        attribute=theme.other.attribute,
        attribute_options=list(theme.other.values),
        page_size=chance.randint(4, 8),
    )
