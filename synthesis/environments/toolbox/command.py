"""Calls as text: ``cancel_order(order_id=3, reason="late")``, the values as in JSON."""

from __future__ import annotations

import json
import re

from schemas.record import JsonObject
from schemas.trajectory import ApiAction
from synthesis.environments.command import tidy

_NAME = re.compile(r"\s*([A-Za-z_]\w*)\s*")


class Unreadable(Exception):
    """A text that is no call; the message says what one looks like."""


def write_command(name: str, arguments: JsonObject) -> str:
    """The call as one line."""
    said = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items())
    return f"{name}({said})"


def read_command(text: str) -> ApiAction:
    """The call that ``text`` is, quotes and full stops around it left out. Raises ``Unreadable``."""
    line = tidy(text)
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
            value, end = json.JSONDecoder().raw_decode(rest[found.end() + 1 :].lstrip())
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
