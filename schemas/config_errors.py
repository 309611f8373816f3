"""What is wrong with a configuration, in words a user can act on."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from schemas.errors import near_match


def explain(error: ValidationError, config_type: type[BaseModel]) -> str:
    """The first mistake with the nearest match, and how many more there are."""
    mistakes = error.errors(include_url=False, include_context=True)
    more = f" (and {len(mistakes) - 1} more)" if len(mistakes) > 1 else ""
    return _mistake(mistakes[0], config_type) + more


def _mistake(mistake: ErrorDetails, config_type: type[BaseModel]) -> str:
    location = mistake["loc"]
    path = ".".join(map(str, location)) or "the configuration"
    given = mistake["input"]
    if mistake["type"] == "extra_forbidden":
        key = str(location[-1])
        known = _keys(config_type, location[:-1])
        where = f" in {'.'.join(map(str, location[:-1]))}" if location[:-1] else ""
        return f"unknown key {key!r}{where}; known: {', '.join(known)}.{near_match(key, known)}"
    if mistake["type"] == "missing":
        where = f" in {'.'.join(map(str, location[:-1]))}" if location[:-1] else ""
        return f"the key {str(location[-1])!r}{where} is missing"
    if mistake["type"] in ("value_error", "assertion_error"):
        return f"{path}: {mistake['msg'].partition(', ')[2]}"
    choices = str(mistake.get("ctx", {}).get("expected", "")) if mistake["type"] == "literal_error" else ""
    expected = choices or mistake["msg"].removeprefix("Input should be ").partition(", ")[0]
    if expected.startswith("a valid dictionary"):
        expected = "a mapping"
    options = [choice.strip().strip("'") for choice in choices.replace(" or ", ",").split(",")]
    return f"{path}: expected {expected}, got {_shown(given)}.{near_match(str(given), options) if choices else ''}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _keys(annotation: Any, location: tuple[int | str, ...]) -> list[str]:
    """The keys that the model at ``location`` knows; those of all models that may stand there."""
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
