"""How a user speaks of a row without its key, and the calls that find the key from what is said.

Call-first, as in GOAT: the calls are carried out, and what they show makes the words. A row is known
by a name, as one of the rows of another one ("the order of the customer named Ada Berg with the highest total"), or as
what another row belongs to ("the clerk of that order").
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

import msgspec

from agentmill.synthesis.environments.toolbox.toolbox import Column, Parameter, Table, Tool
from agentmill.synthesis.environments.toolbox.user import Slot
from agentmill.synthesis.generators.toolbox_tasks.live_toolbox import Call, LiveToolbox, Row

TOLD_KEY = 0.12
"""How often a user simply says the number of a row."""

AS_OWNER = 0.25
"""How often a row is first sought as what another one belongs to."""

MAX_HOPS = 3
MAX_ROWS = 25
"""In how many rows an agent has to look for one."""


class Phrase(msgspec.Struct, frozen=True):
    """Words for something: a template with slots, and its shape, which leaves names and numbers out."""

    template: str
    slots: dict[str, Slot] = {}
    shape: str = ""


class Description(msgspec.Struct, frozen=True):
    """Words for a row and the calls that find it; the last call shows it as ``row``.

    ``hops`` is how many rows the way leads over, ``choices`` among how many rows one had to be chosen, summed.
    """

    phrase: Phrase
    calls: tuple[Call, ...] = ()
    row: Row = {}
    hops: int = 0
    choices: int = 0


class Describer:
    """Finds descriptions in an environment; draws by ``chance``. ``by_key`` makes it say keys and nothing else."""

    def __init__(self, live: LiveToolbox, chance: random.Random, *, by_key: bool = False) -> None:
        self._live = live
        self._chance = chance
        self._only_keys = by_key

    def describe(self, table: Table, key: int, above: tuple[str, ...] = ()) -> Description | None:
        """Words for a row, by a way that leads over ``MAX_HOPS`` tables at most and over none twice; ``above`` are
        those that it leads to. ``None`` where none was found."""
        if self._only_keys or self._chance.random() < TOLD_KEY:
            return self._by_key(table, key)
        above = (*above, table.name)
        ways = [tool for tool in self._live.reads if self._field(tool, table) and not self._takes(tool, above)]
        self._chance.shuffle(ways)
        if len(above) < MAX_HOPS and self._chance.random() < AS_OWNER:
            found = self._as_owner(table, key, above)
            if found is not None:
                return found
        for tool in ways:
            found = self._by_tool(tool, table, key, above)
            if found is not None:
                return found
        return None

    def _by_key(self, table: Table, key: int) -> Description:
        label = f"{table.noun} number"
        phrase = self._phrase(f"{table.noun} number ", label, key)
        return Description(phrase)

    def _by_tool(self, tool: Tool, table: Table, key: int, above: tuple[str, ...]) -> Description | None:
        """By a call that shows the row, and a feature of it among the rows shown where there are more than one."""
        row = self._live.row(table, key)
        for columns in product(*(self._columns_for(parameter, table, row) for parameter in tool.parameters)):
            call = self._live.call(
                tool, {each.name: row[column.name] for each, column in zip(tool.parameters, columns, strict=True)}
            )
            if call is None or len(call.rows) > MAX_ROWS:
                continue
            path = f"{table.name}.{table.key}"
            # A tool may leave rows out. Then what the user says would fit rows that no call shows.
            if self._live.having(table, {column.name: row[column.name] for column in columns}) <= call.shown(path):
                return self._by_call(call, table, key, columns, above)
        return None

    def _by_call(
        self, call: Call, table: Table, key: int, columns: tuple[Column, ...], above: tuple[str, ...]
    ) -> Description | None:
        """``columns`` are what the arguments of the call say of the row."""
        field = self._field(call.tool, table)
        shown = [each for each in call.rows if field is not None and each[field] == key]
        # A join may show a row several times, with different values.
        if len(shown) != 1:
            return None
        phrases, before = [], []
        for column in columns:
            value = self._live.row(table, key)[column.name]
            if not column.references:
                phrases.append(self._feature(f"{table.name}.{column.name}", value))
                continue
            owner = self._live.toolbox.table(column.references)
            parent = self.describe(owner, int(value or 0), above) if len(above) < MAX_HOPS else None
            if parent is None:
                return None
            before.append(parent)
            phrases.append(joined([plainly(belonging(table, column)), parent.phrase]))
        more = self._distinction(call, shown[0], bool(before)) if len(call.rows) > 1 else Phrase("")
        if more is None:
            return None
        return Description(
            joined([plainly(f"the {table.noun}"), *phrases, more]),
            (*(each for parent in before for each in parent.calls), call),
            shown[0],
            1 + sum(parent.hops for parent in before),
            len(call.rows) - 1 + sum(parent.choices for parent in before),
        )

    def _as_owner(self, table: Table, key: int, above: tuple[str, ...]) -> Description | None:
        """As what another row, found before, refers to."""
        links = [
            (child, place)
            for child in self._live.toolbox.tables
            for place, column in enumerate(child.columns)
            if column.references == table.name and child.name not in above
        ]
        self._chance.shuffle(links)
        for child, place in links:
            mine = [row[0] for row in self._live.contents()[child.name].values() if row[place] == key]
            found = self.describe(child, int(self._chance.choice(mine) or 0), above) if mine else None
            if found is None or not found.calls:
                continue
            path = f"{child.name}.{child.columns[place].name}"
            fields = [name for name, shown in found.calls[-1].tool.columns.items() if shown == path]
            if fields and found.row.get(fields[0]) == key:
                one_of = len(_references(child, table)) > 1
                words = plainly(f"the {_role(child.columns[place]) if one_of else table.noun} of ")
                return msgspec.structs.replace(found, phrase=joined([words, found.phrase]), hops=found.hops + 1)
        return None

    def _distinction(self, call: Call, row: Row, nested: bool) -> Phrase | None:
        """What only this one of the rows has: a value, or the highest or lowest number. ``nested`` is what is said
        behind the words for another row, which it could be taken for a part of."""
        options = []
        for name, path in call.tool.columns.items():
            if not path or self._live.toolbox.keyed(path) is not None or row[name] is None:
                continue
            values = [other[name] for other in call.rows]
            _, column = self._live.toolbox.column(path)
            if values.count(row[name]) == 1:
                options.append(self._feature(path, row[name]))
                numbers = [value for value in values if isinstance(value, int)]
                if (
                    column.type == "integer"
                    and len(numbers) == len(values)
                    and row[name] in (max(numbers), min(numbers))
                ):
                    side = "highest" if row[name] == max(numbers) else "lowest"
                    options.append(plainly(f" with the {side} {column.words}"))
        if not options:
            return None
        option = self._chance.choice(options)
        # In brackets: "the order of the customer with the highest total" could mean the customer with it.
        return joined([Phrase(" (the one"), option, Phrase(")")]) if nested else option

    def _feature(self, path: str, value: object) -> Phrase:
        table, column = self._live.toolbox.column(path)
        words = column.words.removeprefix(f"{table.noun} ")
        before = {"name": " named ", "title": " titled "}.get(words, f" with {words} ")
        return self._phrase(before, column.words, value, closed=bool(column.values))

    def _phrase(self, before: str, label: str, value: object, *, closed: bool = False) -> Phrase:
        return phrase_of(before, label, value, f"{self._chance.getrandbits(32):08x}", closed=closed)

    def _columns_for(self, parameter: Parameter, table: Table, row: Row) -> list[Column]:
        """The columns of the row of which a tool may ask for the value by a parameter."""
        owner = self._live.toolbox.keyed(parameter.column)
        if owner is None:
            place, column = self._live.toolbox.column(parameter.column)
            return [column] if place.name == table.name else []
        return [column for column in _references(table, owner) if row[column.name] is not None]

    def _field(self, tool: Tool, table: Table) -> str | None:
        path = f"{table.name}.{table.key}"
        return next((name for name, shown in tool.columns.items() if shown == path), None)

    def _takes(self, tool: Tool, above: tuple[str, ...]) -> bool:
        """Whether a tool asks for a row of one of the tables that it is to lead to."""
        owners = [self._live.toolbox.keyed(parameter.column) for parameter in tool.parameters]
        return any(owner is not None and owner.name in above for owner in owners)


def phrase_of(before: str, label: str, value: object, name: str, *, closed: bool = False) -> Phrase:
    """``before`` and a value in a slot; values of a closed list count for the shape."""
    slot = f"s{name}"
    return Phrase(
        f"{before}{{{slot}}}", {slot: Slot(label, str(value))}, f"{before}{value if closed else f'<{label}>'}"
    )


def plainly(text: str) -> Phrase:
    """Words without slots."""
    return Phrase(text, shape=text)


def belonging(table: Table, column: Column) -> str:
    """What stands between a row of ``table`` and the one that ``column`` refers to; names the relation if the row may
    have more than one to rows of that kind."""
    alone = sum(other.references == column.references for other in table.columns) == 1
    return " of " if alone else f" whose {_role(column)} is "


def _references(table: Table, owner: Table) -> list[Column]:
    return [column for column in table.columns if column.references == owner.name]


def _role(column: Column) -> str:
    return column.words.removesuffix(" id")


def joined(parts: list[Phrase]) -> Phrase:
    """Phrases one behind the other."""
    slots = {name: slot for part in parts for name, slot in part.slots.items()}
    template = "".join(part.template for part in parts)
    return Phrase(template, slots, "".join(part.shape or part.template for part in parts))


def known(calls: tuple[Call, ...], live: LiveToolbox) -> Iterator[bool]:
    """Whether each call would have answered the same at the start, so that it does not matter when it is made."""
    for call in calls:
        then = live.call(call.tool, call.arguments, at_start=True)
        yield then is not None and then.rows == call.rows
