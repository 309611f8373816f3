"""The steps that questions about tables are made of: in words, in Python for the gold solution, and carried out here.

What a step means is written down twice on purpose: the expected answer comes from ``apply``, which runs on the host,
and admission runs the Python in the sandbox, so a mistake in either is a rejected task.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from agentmill.schemas.records.record import Record
from agentmill.synthesis.generators.data_files import convert, fill, read_table
from agentmill.synthesis.generators.interpreter_procedural.generator import Row, Scheme


class Unclear(Exception):
    """The rows give no clear answer: none is left, nothing was left out, or two are first."""


class Wording(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """In words, and in Python."""

    words: str
    code: str


class Wordings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What tasks are made of, by name."""

    steps: dict[str, Wording]
    questions: dict[str, Wording]
    tasks: dict[str, Wording]


@cache
def wordings() -> Wordings:
    """The words and the Python of steps, questions and tasks."""
    return convert(read_table(__package__, "wordings.yaml"), Wordings, f"{__package__}/data/wordings.yaml")


class Step(Record, tag_field="step"):
    """Makes rows of rows."""

    def words(self, scheme: Scheme) -> str:
        """As a sentence."""
        return fill(self._wording().words, self._names(scheme))

    def code(self, scheme: Scheme) -> str:
        """As statements that change ``rows``."""
        return fill(self._wording().code, {name: repr(value) for name, value in self._names(scheme).items()})

    def apply(self, rows: list[Row], tables: dict[str, list[Row]], scheme: Scheme) -> list[Row]:
        """The new rows. Raises ``Unclear``."""
        raise NotImplementedError

    def _wording(self) -> Wording:
        return wordings().steps[str(self.__struct_config__.tag)]

    def _names(self, scheme: Scheme) -> dict[str, object]:
        fields = {name.upper(): value for name, value in msgspec.structs.asdict(self).items()}
        others = {"OTHER_TABLE": scheme.other, "LINK": scheme.link, "ATTRIBUTE": scheme.attribute}
        return {"ROW": scheme.row, **others, **fields}


class Keep(Step, tag="keep"):
    """Rows with an option."""

    field: str
    option: str

    def apply(self, rows: list[Row], tables: dict[str, list[Row]], scheme: Scheme) -> list[Row]:
        """As ``Step.apply``."""
        del tables, scheme
        return _some([row for row in rows if row[self.field] == self.option], rows)


class AtLeast(Step, tag="at_least"):
    """Rows with a number that is large enough."""

    field: str
    bound: int

    def apply(self, rows: list[Row], tables: dict[str, list[Row]], scheme: Scheme) -> list[Row]:
        """As ``Step.apply``."""
        del tables, scheme
        return _some([row for row in rows if row[self.field] >= self.bound], rows)


class Linked(Step, tag="linked"):
    """Rows whose row in the other table has an option."""

    option: str

    def apply(self, rows: list[Row], tables: dict[str, list[Row]], scheme: Scheme) -> list[Row]:
        """As ``Step.apply``."""
        attribute = {each[scheme.link]: each[scheme.attribute] for each in tables[scheme.other]}
        return _some([row for row in rows if attribute[row[scheme.link]] == self.option], rows)


class Product(Step, tag="product"):
    """Rows with a new field."""

    field: str
    one: str
    other: str

    def apply(self, rows: list[Row], tables: dict[str, list[Row]], scheme: Scheme) -> list[Row]:
        """As ``Step.apply``."""
        del tables, scheme
        return [{**row, self.field: row[self.one] * row[self.other]} for row in rows]


AnyStep = Keep | AtLeast | Linked | Product


class Question(Record):
    """What is asked about the rows in the end. ``kind`` is one of the questions of ``wordings``; ``by`` is a field with
    options, ``of`` one of numbers, each where the kind has one."""

    kind: str
    by: str = ""
    of: str = ""

    def words(self, scheme: Scheme) -> str:
        """As a noun phrase."""
        names = {"ROW": scheme.row, "KEY": scheme.key, "BY": self.by, "OF": self.of}
        return fill(wordings().questions[self.kind].words, names)

    def code(self, scheme: Scheme) -> str:
        """As an expression over ``rows``."""
        names = {"KEY": repr(scheme.key), "BY": repr(self.by), "OF": repr(self.of)}
        return fill(wordings().questions[self.kind].code, names)

    def answer(self, rows: list[Row], scheme: Scheme) -> Any:
        """The answer. Raises ``Unclear``."""
        if self.kind == "count":
            return len(rows)
        groups: dict[str, list[Row]] = {}
        for row in rows:
            groups.setdefault(row[self.by] if self.by else row[scheme.key], []).append(row)
        if self.kind == "kinds":
            return sorted(groups)
        if self.kind == "tally":
            return {name: len(members) for name, members in groups.items()}
        sums = {name: sum(row[self.of] for row in members) for name, members in groups.items()}
        if self.kind == "total":
            return sum(sums.values())
        return round(sum(sums.values()) / len(rows), 2) if self.kind == "mean" else _only(sums)


def _some(kept: list[Row], rows: list[Row]) -> list[Row]:
    # A step that keeps everything could be left out, and the answer would still be right.
    if len(kept) < 2 or len(kept) == len(rows):
        raise Unclear
    return kept


def _only(values: dict[str, int]) -> str:
    """The name with the highest value."""
    best = [name for name, value in values.items() if value == max(values.values())]
    if len(best) > 1 or len(values) == 1:
        raise Unclear
    return best[0]
