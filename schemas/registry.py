"""Plug-ins as tables of strings: they pickle to workers, load late, and a wrong name gets a near-match error."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match


class Registry(Mapping[str, str]):
    """Names to ``"package.module:attribute"``.

    >>> Registry("environment", {"pddl": "agentmill.synthesis.environments.pddl:PddlEnvironment"}).load("pdl")
    Traceback (most recent call last):
    agentmill.schemas.errors.UserError: unknown environment 'pdl'; known: pddl. Did you mean 'pddl'?
    """

    def __init__(self, kind: str, entries: Mapping[str, str]) -> None:
        self.kind = kind
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> str:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def load(self, name: str) -> Any:
        """The plug-in itself. Raises ``UserError`` for an unknown name; an import error is passed on as it is."""
        if name not in self._entries:
            known = ", ".join(sorted(self._entries))
            raise UserError(
                f"unknown {self.kind} {name!r}; known: {known}.{near_match(name, self._entries)}",
                ErrorCode.UNKNOWN_NAME,
            )
        module, _, attribute = self._entries[name].partition(":")
        return getattr(importlib.import_module(module), attribute)
