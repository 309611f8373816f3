"""The steps that questions about tables are made of: in words, in Python for the gold solution, and carried out here.

What a step means is written down twice on purpose: the expected answer comes from ``apply``, which runs on the host,
and admission runs the Python in the sandbox, so a mistake in either is a rejected task.
"""

from __future__ import annotations

from typing import Any

from agentmill.schemas.records.record import Record
from agentmill.synthesis.generators.interpreter_procedural.scheme import Row, Scheme


class Unclear(Exception):
    """The rows give no clear answer: none is left, nothing was left out, or two are first."""


class Step(Record, tag_field="step"):
    """Makes rows of rows."""

    def words(self, scheme: Scheme) -> str:
        """As a sentence."""
        raise NotImplementedError

    def code(self, scheme: Scheme) -> str:
        """As statements that change ``rows``."""
        raise NotImplementedError

    def apply(self, rows: list[Row], tables: dict[str, list[Row]], scheme: Scheme) -> list[Row]:
        """The new rows. Raises ``Unclear``."""
        raise NotImplementedError


class Keep(Step, tag="keep"):
    """Rows with an option."""

    field: str
    option: str

    def words(self, scheme: Scheme) -> str:
        """As ``Step.words``."""
        return f"Keep only each {scheme.row} whose {self.field} is {self.option}."

    def code(self, scheme: Scheme) -> str:
        """As ``Step.code``."""
        del scheme
        return f"rows = [row for row in rows if row[{self.field!r}] == {self.option!r}]"

    def apply(self, rows: list[Row], tables: dict[str, list[Row]], scheme: Scheme) -> list[Row]:
        """As ``Step.apply``."""
        del tables, scheme
        return _some([row for row in rows if row[self.field] == self.option], rows)


class AtLeast(Step, tag="at_least"):
    """Rows with a number that is large enough."""

    field: str
    bound: int

    def words(self, scheme: Scheme) -> str:
        """As ``Step.words``."""
        return f"Keep only each {scheme.row} whose {self.field} is at least {self.bound}."

    def code(self, scheme: Scheme) -> str:
        """As ``Step.code``."""
        del scheme
        return f"rows = [row for row in rows if row[{self.field!r}] >= {self.bound}]"

    def apply(self, rows: list[Row], tables: dict[str, list[Row]], scheme: Scheme) -> list[Row]:
        """As ``Step.apply``."""
        del tables, scheme
        return _some([row for row in rows if row[self.field] >= self.bound], rows)


class Linked(Step, tag="linked"):
    """Rows whose row in the other table has an option."""

    option: str

    def words(self, scheme: Scheme) -> str:
        """As ``Step.words``."""
        return (
            f"Keep only each {scheme.row} whose {scheme.link} has the {scheme.attribute} {self.option} "
            f"in table {scheme.other}."
        )

    def code(self, scheme: Scheme) -> str:
        """As ``Step.code``."""
        return (
            f"others, number = [], 0\nwhile page({scheme.other!r}, number):\n"
            f"    others += page({scheme.other!r}, number)\n    number += 1\n"
            f"wanted = {{each[{scheme.link!r}] for each in others if each[{scheme.attribute!r}] == {self.option!r}}}\n"
            f"rows = [row for row in rows if row[{scheme.link!r}] in wanted]"
        )

    def apply(self, rows: list[Row], tables: dict[str, list[Row]], scheme: Scheme) -> list[Row]:
        """As ``Step.apply``."""
        attribute = {each[scheme.link]: each[scheme.attribute] for each in tables[scheme.other]}
        return _some([row for row in rows if attribute[row[scheme.link]] == self.option], rows)


class Product(Step, tag="product"):
    """Rows with a new field."""

    field: str
    one: str
    other: str

    def words(self, scheme: Scheme) -> str:
        """As ``Step.words``."""
        return f"The {self.field} of a {scheme.row} is its {self.one} times its {self.other}."

    def code(self, scheme: Scheme) -> str:
        """As ``Step.code``."""
        del scheme
        return f"rows = [{{**row, {self.field!r}: row[{self.one!r}] * row[{self.other!r}]}} for row in rows]"

    def apply(self, rows: list[Row], tables: dict[str, list[Row]], scheme: Scheme) -> list[Row]:
        """As ``Step.apply``."""
        del tables, scheme
        return [{**row, self.field: row[self.one] * row[self.other]} for row in rows]


AnyStep = Keep | AtLeast | Linked | Product


class Question(Record):
    """What is asked about the rows in the end. ``kind`` is one of ``KINDS``; ``by`` is a field with options, ``of`` one
    of numbers, each where the kind has one."""

    kind: str
    by: str = ""
    of: str = ""

    def words(self, scheme: Scheme) -> str:
        """As a noun phrase."""
        text, _ = KINDS[self.kind]
        return text.format(row=scheme.row, key=scheme.key, by=self.by, of=self.of)

    def code(self, scheme: Scheme) -> str:
        """As an expression over ``rows``."""
        _, code = KINDS[self.kind]
        return code.format(key=repr(scheme.key), by=repr(self.by), of=repr(self.of))

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


KINDS = {
    "count": ("the number of rows that are left", "len(rows)"),
    "total": ("the sum of {of} over the rows that are left", "sum(row[{of}] for row in rows)"),
    "mean": (
        "the mean {of} of the rows that are left, rounded to two decimals",
        "round(sum(row[{of}] for row in rows) / len(rows), 2)",
    ),
    "first": ("the {key} of the {row} with the highest {of}", "max(rows, key=lambda row: row[{of}])[{key}]"),
    "kinds": ("the sorted list of every {by} that is left", "sorted({{row[{by}] for row in rows}})"),
    "tally": (
        "a dict of how many rows are left of each {by} that is left",
        "{{name: sum(row[{by}] == name for row in rows) for name in {{row[{by}] for row in rows}}}}",
    ),
    "leader": (
        "the {by} with the highest sum of {of}",
        "max({{row[{by}] for row in rows}}, key=lambda name: sum(row[{of}] for row in rows if row[{by}] == name))",
    ),
}
"""In words, and in Python."""


def _some(kept: list[Row], rows: list[Row]) -> list[Row]:
    if len(kept) < 2 or len(kept) == len(rows):
        raise Unclear
    return kept


def _only(values: dict[str, int]) -> str:
    """The name with the highest value."""
    best = [name for name, value in values.items() if value == max(values.values())]
    if len(best) > 1 or len(values) == 1:
        raise Unclear
    return best[0]
