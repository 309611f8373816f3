"""Tools as a specification gives them, whatever its format: a name, arguments, and the fields of a row it shows."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["integer", "number", "string", "boolean", "nested", "unknown"]
"""The type of a field; ``nested`` is an object, an array or a choice of several types."""


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """An argument, or a field of a result; ``values`` are the only texts allowed, ``in_path`` a part of the address."""

    name: str
    kind: Kind
    form: str = ""
    values: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None
    required: bool = False
    in_path: bool = False


class GivenTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool. ``result`` are the fields of a row of its result; ``None`` where the specification does not tell.

    ``method`` and ``path`` are those of an HTTP operation; ``left_out`` names arguments that no call can give here.
    """

    tool_id: str
    name: str
    description: str
    arguments: tuple[Field, ...]
    result: tuple[Field, ...] | None = None
    method: str = ""
    path: str = ""
    left_out: tuple[str, ...] = ()


class Unusable(msgspec.Struct, frozen=True):
    """A tool that is not made, with the reason: a short code, and a sentence."""

    tool_id: str
    reason: str
    detail: str


class ToolError(Exception):
    """A tool that cannot be read or expressed."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class Specification(msgspec.Struct, frozen=True):
    """All tools of a file or a server, and those that could not be read; ``about`` is its title."""

    about: str
    tools: tuple[GivenTool, ...]
    unusable: tuple[Unusable, ...] = ()
