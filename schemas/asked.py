"""Which annotations the parameters of a step ask for, wherever they stand in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import msgspec
from pydantic.fields import FieldInfo

from schemas.annotation_names import Asks
from schemas.conditions import Condition
from schemas.config import Config
from schemas.views.score import KINDS


class Asked(msgspec.Struct, frozen=True):
    """``parameter``, as the recipe has it, asks for the annotation ``name`` of ``kind`` verdict, label or value."""

    parameter: str
    kind: str
    name: str

    @property
    def role(self) -> str:
        """The role of the tables that may hold it."""
        return f"{self.kind}s"


def asked(config: Config) -> Iterator[Asked]:
    """What all conditions, scores and names in ``config`` ask for. A name that is only a default asks for nothing."""
    for name, field in type(config).model_fields.items():
        mark = _mark(field) if name in config.model_fields_set else None
        yield from _asked(field.alias or name, getattr(config, name), mark)


def _asked(parameter: str, value: Any, mark: Asks | None) -> Iterator[Asked]:
    if isinstance(value, Condition):
        for kind, name in value.annotations():
            yield Asked(f"{parameter}: {{{kind}: {name}}}", kind, name)
    elif isinstance(value, Config):
        for each in asked(value):
            yield msgspec.structs.replace(each, parameter=f"{parameter}.{each.parameter}")
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _asked(parameter, each, mark)
    elif isinstance(value, str) and mark is not None:
        kind, _, name = value.partition(":") if mark.kind == "criterion" else (mark.kind, "", value)
        if kind in KINDS or mark.kind != "criterion":
            yield Asked(f"{parameter}: {value}", KINDS.get(kind, kind), name)


def _mark(field: FieldInfo) -> Asks | None:
    """The mark of a parameter, also of one that may be null."""
    inner = (mark for each in get_args(field.annotation) for mark in getattr(each, "__metadata__", ()))
    return next((each for each in (*field.metadata, *inner) if isinstance(each, Asks)), None)
