"""Plug-ins as tables of strings: they pickle to workers, load late, and a wrong name gets a near-match error."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from importlib.metadata import EntryPoints, entry_points
from typing import Generic, TypeVar, cast

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match

T = TypeVar("T")


class Registry(Mapping[str, str], Generic[T]):
    """Names to ``"package.module:attribute"`` of a ``T``.

    With ``group``, installed distributions add to it by entry points of ``agentmill.GROUP``. Reading it raises
    ``UserError`` where one of these has a name that is taken.

    >>> Registry("environment", {"pddl": "agentmill.synthesis.environments.pddl:PddlEnvironment"}).load("pdl")
    Traceback (most recent call last):
    agentmill.schemas.errors.UserError: unknown environment 'pdl'; known: pddl. Did you mean 'pddl'?
    """

    def __init__(self, kind: str, entries: Mapping[str, str], group: str | None = None) -> None:
        self.kind = kind
        self.group = group
        self._own = dict(entries)

    def __getitem__(self, name: str) -> str:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def load(self, name: str) -> T:
        """The plug-in itself. Raises ``UserError`` for an unknown name; an import error is passed on as it is."""
        if name not in self._entries:
            known = ", ".join(sorted(self._entries))
            raise UserError(
                f"unknown {self.kind} {name!r}; known: {known}.{near_match(name, self._entries)}",
                ErrorCode.UNKNOWN_NAME,
            )
        module, _, attribute = self._entries[name].partition(":")
        return cast(T, getattr(importlib.import_module(module), attribute))

    @cached_property
    def _entries(self) -> dict[str, str]:
        entries = dict(self._own)
        for point in _installed(f"agentmill.{self.group}") if self.group is not None else ():
            if entries.get(point.name, point.value) != point.value:
                where = "" if point.dist is None else f" of {point.dist.name} {point.dist.version}"
                raise UserError(
                    f"the entry point {point.name!r}{where} in group agentmill.{self.group} is {point.value}, but the "
                    f"{self.kind} {point.name!r} is {entries[point.name]}\ngive it another name, or uninstall it",
                    ErrorCode.NAME_TAKEN,
                )
            entries[point.name] = point.value
        return entries


@cache
def _installed(group: str) -> EntryPoints:
    """The entry points of a group; finding them reads a file of each installed distribution, so it is done once."""
    return entry_points(group=group)
