"""One thing that a user asks for: a change by one of the writing tools, or a question; with all calls that it takes."""

from __future__ import annotations

import random
import re

import msgspec

from agentmill.synthesis.environments.toolbox.calls import allowed
from agentmill.synthesis.environments.toolbox.goal import Answer
from agentmill.synthesis.environments.toolbox.toolbox import Column, Parameter, Table, Tool, Value
from agentmill.synthesis.generators.toolbox_tasks.description import (
    Describer,
    Description,
    Phrase,
    belonging,
    joined,
    known,
    phrase_of,
    plainly,
)
from agentmill.synthesis.generators.toolbox_tasks.live_toolbox import Call, LiveToolbox

DRAWS = 16
"""How often a call is drawn anew before its tool is given up."""

LOOK_UP = "look up"
TOOLS_TRIED = 6
MAX_RIVALS = 30
MADE_ROW = 0.6
"""How often a row that was just made is what comes next is about."""


class Operation(msgspec.Struct, frozen=True):
    """What is asked in words, the calls in order, and the answer expected; ``made`` is a new row, by its table."""

    phrase: Phrase
    calls: tuple[Call, ...]
    answer: Answer | None = None
    label: str = ""
    made: tuple[str, int] | None = None
    hops: int = 0
    choices: int = 0
    skill: str = ""


class OperationSampler:
    """Draws operations in an environment and executes those it returns. ``made`` are rows that the task made."""

    def __init__(self, live: LiveToolbox, chance: random.Random, made: dict[str, int], *, by_key: bool = False) -> None:
        self._live = live
        self._chance = chance
        self._made = made
        self._describer = Describer(live, chance, by_key=by_key)

    def change(self) -> Operation | None:
        """A call that changes something; ``None`` if none was found."""
        tools = self._chance.sample(self._live.writes, min(TOOLS_TRIED, len(self._live.writes)))
        for tool in tools:
            for _ in range(DRAWS):
                arguments = {parameter.name: self.value(parameter) for parameter in tool.parameters}
                if self._live.allows(tool, arguments):
                    operation = self._changing(tool, arguments)
                    if operation is not None:
                        return operation
                    break
        return None

    def question(self) -> Operation | None:
        """A question whose answer some call shows; ``None`` if none was found."""
        for _ in range(DRAWS):
            kind = self._counted if self._chance.random() < 0.35 else self._looked_up
            operation = kind()
            if operation is not None:
                return operation
        return None

    def _changing(self, tool: Tool, arguments: dict[str, Value]) -> Operation | None:
        """The calls that find the keys among ``arguments``, the call itself, and the words for all of it."""
        found: list[Description] = []
        phrases: dict[str, Phrase] = {}
        for parameter in tool.parameters:
            value = arguments[parameter.name]
            table = self._live.toolbox.keyed(parameter.column)
            if table is None:
                _, column = self._live.toolbox.column(parameter.column)
                closed = bool(allowed(parameter, column))
                phrases[parameter.name] = phrase_of("", _label(parameter, column), value, self._name(), closed=closed)
                continue
            description = self._row(table, int(value or 0))
            if description is None:
                return None
            found.append(description)
            phrases[parameter.name] = description.phrase
        lookups = tuple(call for description in found for call in description.calls)
        # An agent may look everything up first, and must then find the same.
        if not all(known(lookups, self._live)):
            return None
        call = self._live.call(tool, arguments)
        if call is None:
            return None
        return Operation(
            phrase=_filled(tool.request, phrases),
            calls=(*lookups, call),
            made=self._new_row(call),
            hops=sum(description.hops for description in found),
            choices=sum(description.choices for description in found),
            skill=tool.name.partition("_")[0],
        )

    def _row(self, table: Table, key: int) -> Description | None:
        if self._made.get(table.name) == key:
            return Description(plainly(f"the new {table.noun}"))
        return self._describer.describe(table, key)

    def _looked_up(self) -> Operation | None:
        """A field of a row that is described by something else."""
        table = self._chance.choice(self._live.toolbox.tables)
        keys = self._live.keys(table)
        found = self._describer.describe(table, self._chance.choice(keys)) if keys else None
        if found is None or not found.calls or not all(known(found.calls, self._live)):
            return None
        tool = found.calls[-1].tool
        by_key = {slot.text for slot in found.phrase.slots.values()}
        fields = [
            (name, path)
            for name, path in tool.columns.items()
            if path.startswith(f"{table.name}.") and self._live.toolbox.keyed(path) is None
            # What the question itself says is no question.
            if found.row[name] is not None and str(found.row[name]) not in by_key
            if self._live.toolbox.column(path)[1].words not in found.phrase.shape
        ]
        if not fields:
            return None
        name, path = self._chance.choice(fields)
        return self._asking(found, path, found.row[name])

    def _asking(self, found: Description, path: str, value: Value) -> Operation | None:
        table, column = self._live.toolbox.column(path)
        words = column.words.removeprefix(f"{table.noun} ")
        # An empty column has no answer, and zero is what one guesses first.
        if value is None or value == 0:
            return None
        return Operation(
            phrase=joined([plainly(f"tell me the {words} of "), found.phrase]),
            calls=found.calls,
            answer=Answer(value, rivals_of(self._live, path, value)),
            label=words,
            hops=found.hops,
            choices=found.choices,
            skill=LOOK_UP,
        )

    def _counted(self) -> Operation | None:
        """A number that a tool computes, or how many rows it lists, for a row that is described."""
        if not self._live.reads:
            return None
        tool = self._chance.choice(self._live.reads)
        if len(tool.parameters) != 1:
            return None
        parameter = tool.parameters[0]
        owner = self._live.toolbox.keyed(parameter.column)
        keys = self._live.keys(owner) if owner else []
        if owner is None or not keys:
            return None
        key = self._chance.choice(keys)
        found = self._describer.describe(owner, key)
        call = self._live.call(tool, {parameter.name: key}) if found is not None else None
        if found is None or call is None or not all(known((*found.calls, call), self._live)):
            return None
        counted = self._number(call, owner, key)
        if counted is None or counted[1] == 0:  # nothing is what one guesses first
            return None
        label, value, of = counted
        return Operation(
            phrase=joined([plainly(f"tell me the {label}{of}"), found.phrase]),
            calls=(*found.calls, call),
            answer=Answer(value),
            label=label,
            hops=found.hops + 1,
            choices=found.choices + len(call.rows) - 1,
            skill="count",
        )

    def _number(self, call: Call, owner: Table, key: int) -> tuple[str, int, str] | None:
        """What is counted in words, how much it is, and what stands before the words for the row that it is of.

        A list counts only if it holds every row that refers to that one: a user would mean all of them.
        """
        computed = [name for name, path in call.tool.columns.items() if not path]
        if computed:
            name = self._chance.choice(computed)
            value = call.rows[0][name] if len(call.rows) == 1 else None
            return (name.replace("_", " "), value, " of ") if isinstance(value, int) else None
        for table in self._live.toolbox.tables:
            shown = call.shown(f"{table.name}.{table.key}")
            for column in table.columns if 2 <= len(call.rows) == len(shown) else ():
                if column.references == owner.name and shown == self._live.having(table, {column.name: key}):
                    words = f"number of {table.name.replace('_', ' ')}"
                    return words, len(shown), belonging(table, column)
        return None

    def _key_path(self, path: str) -> str:
        table, _ = self._live.toolbox.column(path)
        return f"{table.name}.{table.key}"

    def _new_row(self, call: Call) -> tuple[str, int] | None:
        """The row that a call made and showed."""
        before = self._live.began_with()
        for name, path in call.tool.columns.items():
            table = path.partition(".")[0]
            if path and path == self._key_path(path) and call.rows:
                key = call.rows[0][name]
                if isinstance(key, int) and key not in before[table] and self._made.get(table) != key:
                    return table, key
        return None

    def value(self, parameter: Parameter) -> Value:
        """A value that a user might give."""
        table, column = self._live.toolbox.column(parameter.column)
        owner = self._live.toolbox.keyed(parameter.column)
        if owner is not None:
            made = self._made.get(owner.name)
            if made is not None and self._chance.random() < MADE_ROW:
                return made
            return self._chance.choice(self._live.keys(owner) or [0])
        if column.type == "integer":
            least = parameter.least if parameter.least is not None else column.least or 0
            most = parameter.most if parameter.most is not None else column.most
            return self._chance.randint(least, max(least, most if most is not None else least + 9))
        values = allowed(parameter, column) or column.examples
        if values:
            return self._chance.choice(values)
        place = table.columns.index(column)
        held = [row[place] for row in self._live.contents()[table.name].values()]
        return _varied(str(self._chance.choice(held)), self._chance) if held else column.words

    def _name(self) -> str:
        return f"{self._chance.getrandbits(32):08x}"


def rivals_of(live: LiveToolbox, path: str, value: Value) -> tuple[str, ...]:
    """Some of the other values that a column holds now, as texts."""
    table, column = live.toolbox.column(path)
    place = table.columns.index(column)
    return tuple(sorted({str(row[place]) for row in live.contents()[table.name].values()} - {str(value)})[:MAX_RIVALS])


def _varied(text: str, chance: random.Random) -> str:
    """Another text of the same form: a name of two words gets a third, an address another beginning."""
    number = chance.randint(2, 99)
    return f"{text.partition('@')[0]}{number}@{text.partition('@')[2]}" if "@" in text else f"{text} {number}"


def _label(parameter: Parameter, column: Column) -> str:
    """What a value is called by who asks for it; an argument may have another name than its column."""
    return column.words if parameter.name == column.name else parameter.name.replace("_", " ")


def _filled(request: str, phrases: dict[str, Phrase]) -> Phrase:
    """The request of a tool with its arguments in words."""
    parts = []
    for text in re.split(r"({\w+})", request):
        name = text[1:-1]
        parts.append(phrases[name] if text.startswith("{") and name in phrases else plainly(text))
    return joined(parts)
