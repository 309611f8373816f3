"""What asking a model costs, and how much of it a run may cost.

Spending is counted where the model is asked, so turns of episodes that came to nothing count as well. The workers of a
run share a ledger in its folder, which a run that goes on takes up again.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from typing import Annotated

from pydantic import Field, model_validator

from schemas.config import Config
from schemas.trajectory import Usage

LEDGER = "spending.sqlite"
"""The name of the ledger in a run directory."""

_SYNC_S = 1.0
_BUSY_TIMEOUT_S = 60.0
_MILLION = 1e6
_TABLE = "CREATE TABLE IF NOT EXISTS spent (model TEXT PRIMARY KEY, tokens INTEGER, usd REAL)"
_ADD = (
    "INSERT INTO spent VALUES (?, ?, ?) ON CONFLICT (model) DO UPDATE"
    " SET tokens = tokens + excluded.tokens, usd = usd + excluded.usd RETURNING tokens, usd"
)


class Prices(Config):
    """US dollars per million tokens; ``cached_input``, by default as dear as ``input``, is for tokens in the cache."""

    input: Annotated[float, Field(ge=0)]
    output: Annotated[float, Field(ge=0)]
    cached_input: Annotated[float | None, Field(ge=0)] = None

    def cost_usd(self, usage: Usage) -> float:
        """What a turn cost, in US dollars; tokens that were not reported are free."""
        cached = usage.cached_tokens or 0
        cached_price = self.input if self.cached_input is None else self.cached_input
        fresh = (usage.prompt_tokens or 0) - cached
        return (fresh * self.input + cached * cached_price + (usage.completion_tokens or 0) * self.output) / _MILLION


class Budget(Config):
    """What a model may cost in a run: ``tokens`` read and written, or ``usd`` by its ``prices``.

    When it is spent no new episode begins; those in flight end, so a little more than the budget is spent.
    """

    tokens: Annotated[int | None, Field(ge=1)] = None
    usd: Annotated[float | None, Field(gt=0)] = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Budget:
        if (self.tokens is None) == (self.usd is None):
            raise ValueError("a budget is either `tokens` or `usd`, for example {usd: 20}")
        return self


class Spending:
    """What ``model``, an entry of a recipe, has cost in the run whose ledger lies at ``ledger``. Thread-safe.

    Without a ledger only this process is counted.
    """

    def __init__(self, model: str, budget: Budget, ledger: str | None) -> None:
        self._model = model
        self._budget = budget
        self._lock = threading.Lock()
        self._tokens, self._usd = 0, 0.0
        self._new_tokens, self._new_usd = 0, 0.0
        self._synced_at = -_SYNC_S
        self._ledger: sqlite3.Connection | None = None
        if ledger is not None:
            self._ledger = sqlite3.connect(
                ledger, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            self._ledger.execute("PRAGMA synchronous=OFF")  # a kill loses nothing, and an event loop may wait for it
            self._ledger.execute(_TABLE)

    def add(self, tokens: int, usd: float) -> None:
        """Count a turn."""
        with self._lock:
            self._new_tokens += tokens
            self._new_usd += usd
            self._sync_if_due()

    def exhausted(self) -> str | None:
        """That the budget is spent, in words; ``None`` while it is not."""
        with self._lock:
            self._sync_if_due()
            tokens, usd = self._tokens + self._new_tokens, self._usd + self._new_usd
        if self._budget.tokens is not None and tokens >= self._budget.tokens:
            return f"the budget of {self._model} is spent: {tokens:,} of {self._budget.tokens:,} tokens"
        if self._budget.usd is not None and usd >= self._budget.usd:
            return f"the budget of {self._model} is spent: {usd:,.2f} of {self._budget.usd:,.2f} USD"
        return None

    def close(self) -> None:
        """Write what is not yet in the ledger, and close it. Safe to call twice."""
        with self._lock:
            self._sync()
            if self._ledger is not None:
                self._ledger.close()
                self._ledger = None

    def _sync_if_due(self) -> None:
        if time.monotonic() - self._synced_at >= _SYNC_S:
            self._sync()

    def _sync(self) -> None:
        new = (self._new_tokens, self._new_usd)
        if self._ledger is None:
            self._tokens, self._usd = self._tokens + new[0], self._usd + new[1]
        else:
            self._tokens, self._usd = self._ledger.execute(_ADD, (self._model, *new)).fetchone()
        self._new_tokens, self._new_usd = 0, 0.0
        self._synced_at = time.monotonic()
