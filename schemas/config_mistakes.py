"""The message for a configuration that breaks the rules of its model: one line, for the first mistake of pydantic's."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match

_CODES = {
    "extra_forbidden": ErrorCode.UNKNOWN_KEY,
    "missing": ErrorCode.MISSING_KEY,
    "value_error": ErrorCode.RULE_BROKEN,
    "assertion_error": ErrorCode.RULE_BROKEN,
}


UNION_PART = re.compile(r"(literal|list|dict|function-\w+|constrained-\w+)\[")
"""What pydantic calls a branch of a union in the place of a mistake."""


def mistake_code(error: ValidationError) -> ErrorCode:
    """The code of the first mistake, which is the one that ``explain`` shows."""
    mistake = first_mistake(error)
    # A validator can raise only ValueError, so a UserError with its own code is the cause of one.
    cause = getattr(mistake.get("ctx", {}).get("error"), "__cause__", None)
    return cause.code if isinstance(cause, UserError) else _CODES.get(mistake["type"], ErrorCode.INVALID_VALUE)


def explain(error: ValidationError, config_type: type[BaseModel]) -> str:
    """The first mistake with the nearest match, all keys that are missing with it, and how many more there are."""
    mistake, missing = first_mistake(error), missing_keys(error)
    more = error.error_count() - (len(missing) if mistake["type"] == "missing" else 1)
    return _mistake(mistake, config_type, missing) + (f" (and {more} more)" if more else "")


def missing_keys(error: ValidationError) -> list[str]:
    """The keys that are missing in the place of the mistake that is shown first."""
    place = first_mistake(error)["loc"][:-1]
    missing = (each["loc"] for each in error.errors(include_url=False) if each["type"] == "missing")
    return [str(loc[-1]) for loc in missing if loc[:-1] == place]


def first_mistake(error: ValidationError) -> ErrorDetails:
    """The mistake to show first. A key that is not known goes before one that is missing: it may be the same key."""
    mistakes = error.errors(include_url=False, include_context=True)
    unknown = (each for each in mistakes if each["type"] == "extra_forbidden")
    return next(unknown, mistakes[0]) if mistakes[0]["type"] == "missing" else mistakes[0]


def _mistake(mistake: ErrorDetails, config_type: type[BaseModel], missing: Sequence[str] = ()) -> str:
    # The branches of a union are no keys.
    location = tuple(part for part in mistake["loc"] if not UNION_PART.match(str(part)))
    path = ".".join(map(str, location)) or "the configuration"
    given = mistake["input"]
    if mistake["type"] == "extra_forbidden":
        key = str(location[-1])
        known = _keys(config_type, location[:-1])
        where = f" in {'.'.join(map(str, location[:-1]))}" if location[:-1] else ""
        # Where one key alone is missing, it is likely to be what the unknown one means, however it is spelled.
        instead = f" Did you mean {missing[0]!r}, which is missing?" if len(missing) == 1 else ""
        return f"unknown key {key!r}{where}; known: {', '.join(known)}.{near_match(key, known) or instead}"
    if mistake["type"] == "missing":
        where = f" in {'.'.join(map(str, location[:-1]))}" if location[:-1] else ""
        keys = " and ".join(map(repr, missing or location[-1:]))
        return f"the key {keys}{where} is missing" if len(missing) < 2 else f"the keys {keys}{where} are missing"
    if mistake["type"] in ("value_error", "assertion_error"):
        # pydantic puts "Value error, " before the message of a validator.
        return f"{path}: {mistake['msg'].partition(', ')[2]}"
    choices = str(mistake.get("ctx", {}).get("expected", "")) if mistake["type"] == "literal_error" else ""
    expected = choices or mistake["msg"].removeprefix("Input should be ").partition(", ")[0]
    if expected.startswith("a valid dictionary"):
        expected = "a mapping"
    if mistake["type"] in ("too_long", "too_short"):
        end, least = ("max_length", "most") if mistake["type"] == "too_long" else ("min_length", "least")
        n = mistake["ctx"][end]
        expected = f"at {least} {n} {'entry' if n == 1 else 'entries'}"
    options = [choice.strip().strip("'") for choice in choices.replace(" or ", ",").split(",")]
    return (
        f"{path}: expected {expected}, got {_shown_value(given)}.{near_match(str(given), options) if choices else ''}"
    )


def _shown_value(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _keys(annotation: Any, location: tuple[int | str, ...]) -> list[str]:
    """The keys that the model at ``location`` knows; those of all models that may be there."""
    models = list(_models(annotation))
    if not location:
        return sorted({field.alias or name for model in models for name, field in model.model_fields.items()})
    head, rest = location[0], location[1:]
    found: list[str] = []
    for model in models:
        if head in model.model_fields:
            found += _keys(model.model_fields[str(head)].annotation, rest)
    if found:
        return sorted(set(found))
    # The step is a list index, a mapping key or the tag of a union: it stays within the annotation.
    return _keys(annotation, rest)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and not typing.get_args(annotation):
        yield annotation
    elif isinstance(annotation, types.GenericAlias | types.UnionType) or typing.get_origin(annotation) is not None:
        for argument in typing.get_args(annotation):
            yield from _models(argument)
