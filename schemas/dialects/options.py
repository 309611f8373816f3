"""The options that dialects share."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Annotated

import msgspec
from pydantic import AfterValidator, Field, field_validator, model_validator

from agentmill.schemas.config import Config, validate
from agentmill.schemas.dialects import DIALECTS
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.format import FormatError
from agentmill.schemas.messages.dialect import Dialect, ParsedText, calls_of, read_text, unsayable
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Action, AnyAction


def _named(names: list[str]) -> list[str]:
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{names!r} are no names of arguments; expected one or more that differ")
    return names


Parameters = dict[str, str | Annotated[list[str], AfterValidator(_named)]]
"""What the text in the brackets of a call is called, or the texts that commas separate in it."""


def terminal_calls(*names: str) -> list[str]:
    """The option ``terminal`` of a dialect whose agents end a task with one of these calls."""
    option: list[str] = Field(
        default=list(names),
        description="calls that end a task and get no result, by name or by their whole code; the user turn after one"
        " is the user's",
    )
    return option


def result_openings(*openings: str) -> list[str]:
    """The option ``results`` of a dialect whose environments open what they say with one of these."""
    option: list[str] = Field(
        default=list(openings),
        description="how a user turn opens that is the environment's, whether or not a call was before",
    )
    return option


class DialectConfig(Config):
    """Base of dialects: the options that all of them have."""

    terminal: list[str] = terminal_calls()
    results: list[str] = result_openings()
    only_results: bool = Field(
        default=False,
        description="a user turn is the environment's only if it opens so; by default any is that follows a call",
    )


class SeveralDialects:
    """``dialects`` in the order in which they are tried; their ``terminal`` calls and ``results`` are taken together.

    ``only_results`` holds if one of them says so.
    """

    def __init__(self, dialects: Sequence[Dialect]) -> None:
        self._dialects = tuple(dialects)
        self.terminal = [name for dialect in dialects for name in dialect.terminal]
        self.results = [opening for dialect in dialects for opening in dialect.results]
        self.only_results = any(dialect.only_results for dialect in dialects)

    def read(self, text: str) -> ParsedText | None:
        """What the first dialect reads that reads anything."""
        for place, dialect in enumerate(self._dialects):
            parsed = dialect.read(text)
            if parsed is not None:
                return parsed if place == 0 else msgspec.structs.replace(parsed, plainest=None)
        return None

    def compose(self, actions: Sequence[Action]) -> str:
        """The plainest text in the first dialect that has words for ``actions`` which no earlier one reads otherwise.

        Raises ``FormatError`` (``unsayable``).
        """
        why = unsayable("no dialect can write it")
        for dialect in self._dialects:
            try:
                text = dialect.compose(actions)
            except FormatError as error:
                why = error
                continue
            if calls_of(self._read(text)) == calls_of(actions):
                return text
        raise why

    def _read(self, text: str) -> list[AnyAction]:
        parsed = read_text(self, text)
        return parsed.actions if parsed is not None else []


class WithDialect(Config):
    """Base of formats whose assistants may call in text."""

    dialect: str | list[str] | None = Field(
        default=None,
        description="how calls are written in what assistants say, or several ways: the first that reads a text counts;"
        " none: what they say is a message",
    )
    dialect_options: JsonObject = Field(
        default={}, description="options of the dialect; of several, the options of each by its name"
    )

    @field_validator("dialect")
    @classmethod
    def _differ(cls, dialect: str | list[str] | None) -> str | list[str] | None:
        names = [] if dialect is None else [dialect] if isinstance(dialect, str) else dialect
        for name in names:
            if name not in DIALECTS:
                raise ValueError(f"expected {', '.join(DIALECTS)}, got {name!r}.{near_match(name, DIALECTS)}")
        if isinstance(dialect, list) and (not names or len(set(names)) < len(names)):
            raise ValueError(f"{dialect!r} are no dialects to try in turn; expected one or more that differ")
        return dialect

    @model_validator(mode="after")
    def _options_of_a_dialect(self) -> WithDialect:
        if self.dialect is None and self.dialect_options:
            raise ValueError("`dialect_options` are given and no `dialect`; name the one that they are for")
        return self

    @functools.cached_property
    def chosen_dialect(self) -> Dialect | None:
        """The dialect, ready to use. Raises ``UserError`` for options that it does not have."""
        if self.dialect is None:
            return None
        if isinstance(self.dialect, str):
            return _dialect(self.dialect, self.dialect_options)
        for name in self.dialect_options:
            if name not in self.dialect:
                tried = ", ".join(self.dialect)
                raise UserError(
                    f"dialect_options are for {name!r}; expected the name of a dialect that is tried: {tried}."
                    f"{near_match(name, self.dialect)}",
                    ErrorCode.UNKNOWN_NAME,
                )
        return SeveralDialects([_dialect(name, self.dialect_options.get(name, {})) for name in self.dialect])


def _dialect(name: str, options: JsonObject) -> Dialect:
    dialect: Dialect = validate(DIALECTS.load(name), options, f"dialect {name}")
    return dialect
