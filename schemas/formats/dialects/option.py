"""The option of a format to read calls from text, and to write them into it."""

from __future__ import annotations

import functools

from pydantic import Field

from schemas.config import Config, validate
from schemas.formats.dialects import DIALECTS, DialectName
from schemas.formats.dialects.dialect import Dialect
from schemas.record import JsonObject


class WithDialect(Config):
    """Base of formats whose assistants may call in text."""

    dialect: DialectName | None = Field(
        default=None, description="how calls are written in what assistants say; none: what they say is a message"
    )
    dialect_options: JsonObject = Field(default={}, description="options of the dialect")

    @functools.cached_property
    def speech(self) -> Dialect | None:
        """The dialect, ready to use. Raises ``UserError`` for options that it does not have."""
        if self.dialect is None:
            return None
        dialect: Dialect = validate(DIALECTS.load(self.dialect), self.dialect_options, f"dialect {self.dialect}")
        return dialect
