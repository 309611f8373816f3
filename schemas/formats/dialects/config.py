"""The options that dialects share."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from schemas.config import Config


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
