"""The option of a format to read calls from text, and to write them into it."""

from __future__ import annotations

import functools

from pydantic import Field, field_validator

from schemas.config import Config, validate
from schemas.errors import UserError, near_match
from schemas.formats.dialects import DIALECTS
from schemas.formats.dialects.dialect import Dialect
from schemas.formats.dialects.several import SeveralDialects
from schemas.record import JsonObject


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

    @functools.cached_property
    def speech(self) -> Dialect | None:
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
                    f"{near_match(name, self.dialect)}"
                )
        return SeveralDialects([_dialect(name, self.dialect_options.get(name, {})) for name in self.dialect])


def _dialect(name: str, options: JsonObject) -> Dialect:
    dialect: Dialect = validate(DIALECTS.load(name), options, f"dialect {name}")
    return dialect
