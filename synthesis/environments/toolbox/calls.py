"""Arguments of calls: what a tool's schema says of them, and whether a call has them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import AnyAction, ApiAction, CodeAction, MessageAction
from agentmill.schemas.records.trajectory import Tool as Schema
from agentmill.synthesis.environments.environment import unwrapped
from agentmill.synthesis.environments.toolbox.database import Contents
from agentmill.synthesis.environments.toolbox.toolbox import Column, Parameter, Tool, Toolbox, Value

MAX_TEXT = 2_000
"""Characters that a text argument may have."""

LARGEST = 2**53
"""The largest number that an argument may be: beyond it JSON's numbers are not exact everywhere."""

_VALUES_SHOWN = 3
_JSON_TYPES = {"integer": "integer", "text": "string"}


class Unfit(Exception):
    """A call without the arguments that its tool takes; the message says so to the agent."""


def schema_of(toolbox: Toolbox, tool: Tool) -> Schema:
    """The tool as agents see it: every argument is required."""
    properties = {parameter.name: _property(toolbox, parameter) for parameter in tool.parameters}
    return function(tool.name, tool.description, properties)


def function(name: str, description: str, properties: JsonObject) -> Schema:
    """A function all of whose arguments are required."""
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return Schema(name=name, description=description, parameters=parameters)


def bind(toolbox: Toolbox, tool: Tool, given: Mapping[str, Any]) -> dict[str, Value]:
    """The values of a call. Raises ``Unfit`` for missing, unknown and unfit arguments."""
    names = [parameter.name for parameter in tool.parameters]
    unknown = [name for name in given if name not in names]
    missing = [name for name in names if name not in given]
    if unknown or missing:
        wrong = [f"there is no argument {unknown[0]!r}"] if unknown else []
        wrong += [f"the argument {missing[0]!r} is missing"] if missing else []
        raise Unfit(f"{tool.name}: {' and '.join(wrong)}; it takes {', '.join(names) or 'no arguments'}.")
    return {parameter.name: _value(toolbox, tool, parameter, given[parameter.name]) for parameter in tool.parameters}


def allowed(parameter: Parameter, column: Column) -> tuple[str, ...]:
    """The only texts that a parameter takes; none where it takes any."""
    return parameter.values or column.values


def some_values(toolbox: Toolbox, parameter: Parameter, contents: Contents) -> list[Value]:
    """A few values that a parameter may take where the database holds ``contents``."""
    table, column = toolbox.column(parameter.column)
    keyed = toolbox.keyed(parameter.column)
    if keyed is not None:
        keys: list[Value] = [*contents[keyed.name]]
        return keys[:_VALUES_SHOWN]
    if column.type == "integer":
        least = parameter.least if parameter.least is not None else column.least
        return [1 if least is None else least]
    place = table.columns.index(column)
    held = dict.fromkeys(row[place] for row in contents[table.name].values())
    found: list[Value] = list(allowed(parameter, column) or column.examples or [each for each in held if each])
    return found[:_VALUES_SHOWN]


def text_argument(value: Any, what: str) -> str:
    """Raises ``Unfit`` for what is no text, or one that the database could not keep."""
    if not isinstance(value, str):
        raise Unfit(f"{what} must be a text, not {_shown(value)}.")
    if len(value) > MAX_TEXT:
        raise Unfit(f"{what} has {len(value)} characters, and may have {MAX_TEXT}.")
    if not value.isprintable() and any(0xD800 <= ord(letter) < 0xE000 or letter == "\0" for letter in value):
        raise Unfit(f"{what} has characters that no text may have.")
    return value


def _property(toolbox: Toolbox, parameter: Parameter) -> JsonObject:
    _, column = toolbox.column(parameter.column)
    described: JsonObject = {"type": _JSON_TYPES[column.type]}
    values = allowed(parameter, column)
    if values:
        described["enum"] = list(values)
    if parameter.least is not None:
        described["minimum"] = parameter.least
    described["description"] = parameter.description or column.words
    return described


def _value(toolbox: Toolbox, tool: Tool, parameter: Parameter, value: Any) -> Value:
    _, column = toolbox.column(parameter.column)
    what = f"{tool.name}: the argument {parameter.name!r}"
    if column.type == "text":
        text = text_argument(value, what)
        values = allowed(parameter, column)
        if values and text not in values:
            raise Unfit(f"{what} must be one of {', '.join(values)}, not {_shown(value)}.")
        return text
    number = _number(value, what)
    if parameter.least is not None and number < parameter.least:
        raise Unfit(f"{what} must be at least {parameter.least}, not {_shown(value)}.")
    return number


def _number(value: Any, what: str) -> int:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    # A bool is an int in Python, and models write 3.0 for 3.
    if isinstance(value, bool) or not whole or abs(value) > LARGEST:
        raise Unfit(f"{what} must be a whole number, not {_shown(value)}.")
    return int(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_NAME = re.compile(r"\s*([A-Za-z_]\w*)\s*")
_DECODER = json.JSONDecoder(strict=False)
"""Models also write a text of several lines as it is, between the quotes."""


class Unreadable(Exception):
    """A text that is no call; the message says what one looks like."""


def write_command(name: str, arguments: JsonObject) -> str:
    """The call as one line."""
    listed = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items())
    return f"{name}({listed})"


def read_command(text: str) -> ApiAction:
    """The call that ``text`` is, quotes and full stops around it left out. Raises ``Unreadable``."""
    line = unwrapped(text)
    found = _NAME.match(line)
    if found is None or line[found.end() : found.end() + 1] != "(" or not line.endswith(")"):
        raise Unreadable('That is no call of a tool. Write one such as tool_name(argument=3, other="text").')
    return ApiAction(function=found[1], kwargs=_arguments(line[found.end() + 1 : -1]))


def _arguments(text: str) -> JsonObject:
    arguments: JsonObject = {}
    rest = text.strip()
    while rest:
        found = _NAME.match(rest)
        if found is None or rest[found.end() : found.end() + 1] != "=":
            raise Unreadable(f"Arguments are written name=value, not {rest[:40]!r}.")
        try:
            value, end = _DECODER.raw_decode(rest[found.end() + 1 :].lstrip())
        except (ValueError, RecursionError):  # also a number of too many digits
            raise Unreadable(f'The value of {found[1]} is no number and no "text" in double quotes.') from None
        if found[1] in arguments:
            raise Unreadable(f"The argument {found[1]} is given twice.")
        arguments[found[1]] = value
        rest = rest[found.end() + 1 :].lstrip()[end:].lstrip()
        if rest and not rest.startswith(","):
            raise Unreadable(f"A comma is missing before {rest[:40]!r}.")
        rest = rest[1:].lstrip()
    return arguments


class Unmet(Exception):
    """A call that the tool refuses; ``refusal`` is the answer to the agent."""

    def __init__(self, refusal: JsonObject) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


def read_call(action: AnyAction) -> ApiAction:
    """The call that an action is, or says. Raises ``Unfit`` for code, ``Unreadable`` for other texts."""
    if isinstance(action, CodeAction):
        raise Unfit("Code is not run here. Call a tool.")
    return read_command(action.content) if isinstance(action, MessageAction) else action


def same_call(gold: AnyAction, call: ApiAction) -> bool:
    """Whether ``call`` is the action ``gold`` of a solution."""
    return isinstance(gold, ApiAction) and (gold.function, gold.kwargs) == (call.function, call.kwargs)


def only_text(call: ApiAction, name: str) -> str:
    """The text that is the only argument, ``name``, of a call. Raises ``Unfit``."""
    if list(call.kwargs) != [name]:
        raise Unfit(f"{call.function} takes one argument, {name!r}, a text.")
    return text_argument(call.kwargs[name], f"{call.function}: the argument {name!r}")
