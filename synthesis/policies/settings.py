"""A policy as data: what a worker needs to build one, small enough to pickle and free of secrets."""

from __future__ import annotations

import os
from collections.abc import Mapping

from schemas.errors import UserError
from schemas.record import JsonObject, Record
from synthesis.policies.limits import Limits
from synthesis.policies.spending import Budget, Prices


class PolicySettings(Record):
    """Which policy, and how it acts.

    ``policy`` names an entry of ``POLICIES``, and ``entry`` one of the recipe's ``models``, by which its spending is
    known. ``name`` and ``revision`` say which model this is, and go into the identity of what it makes.
    ``model`` is the name it is served under at each of ``endpoints`` (base URLs that end in
    ``/v1``). ``sampling`` is merged into each request body. ``api_key_variable`` names the environment variable that
    holds the key. ``headers`` are sent with each request; a value ``env:NAME`` is read from the environment.
    ``turn_timeout_s`` bounds a turn with all its retries, but for the time that a server which cannot be reached is
    waited for, at most ``patience_s``, and a provider that refuses, at most ``limits.patience_s``.
    ``limits`` are those of one worker; ``ledger`` is the file in which the workers of a run share what was spent of
    ``budget``, by ``step``. ``turns`` is the script of ``scripted``.
    """

    policy: str
    entry: str | None = None
    name: str | None = None
    revision: str | None = None
    model: str | None = None
    endpoints: list[str] = []
    api_key_variable: str | None = None
    headers: dict[str, str] = {}
    sampling: JsonObject = {}
    turn_timeout_s: float = 300.0
    patience_s: float = 60.0
    max_retries: int = 8
    limits: Limits = Limits()
    prices: Prices | None = None
    budget: Budget | None = None
    ledger: str | None = None
    step: str = ""
    turns: list[str] = []


FROM_ENVIRONMENT = "env:"
"""How a header begins whose value is that of an environment variable."""


def header_values(headers: Mapping[str, str]) -> dict[str, str]:
    """``headers`` with the values of environment variables. Raises ``UserError`` for one that is not set."""
    values = dict(headers)
    for name, value in headers.items():
        if value.startswith(FROM_ENVIRONMENT):
            variable = value.removeprefix(FROM_ENVIRONMENT)
            values[name] = os.environ.get(variable, "")
            if not values[name]:
                raise UserError(
                    f"the environment variable {variable!r}, named by the header {name!r}, is not set;"
                    f" run: export {variable}=..."
                )
    return values


def api_key(variable: str | None) -> str | None:
    """The key in an environment variable. Raises ``UserError`` if the variable is named but not set."""
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise UserError(
            f"the environment variable {variable!r}, named by `api_key_variable`, is not set;"
            f" run: export {variable}=..."
        )
    return key
