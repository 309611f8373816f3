"""The tables of an interpreter world: what fields rows have, and rows drawn by chance."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from agentmill.schemas.ids import digest
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.task import EnvironmentSpec

Row = dict[str, Any]


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
        """Equal for schemes that differ in names only."""
        counts = [len(options) for options in self.options.values()]
        return digest("interpreter", self.page_size, counts, list(self.ranges.values()), len(self.attribute_options))

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
    """The scheme of a world. Raises ``ValueError`` for a world that has none."""
    try:
        return msgspec.convert(spec.parameters.get("scheme"), Scheme)
    except msgspec.ValidationError as error:
        raise ValueError(f"environment {spec.environment_id} has no scheme of tables: {error}") from None
