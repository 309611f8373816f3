"""What asking a model costs, and how much of it a run may cost.

Spending is counted where the model is asked, so turns of episodes that came to nothing count as well. The workers of a
run share a ledger in its folder, which a run that goes on takes up again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
from pydantic import Field, model_validator

from agentmill.schemas.config import Config
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.trajectory import Usage

LEDGER = "spending.sqlite"
"""The name of the ledger in a run directory."""

_SYNC_S = 1.0
_BUSY_TIMEOUT_S = 60.0
_MILLION = 1e6
_TABLE = "CREATE TABLE IF NOT EXISTS spent (model TEXT PRIMARY KEY, tokens INTEGER, usd REAL)"
_STEPS = (
    "CREATE TABLE IF NOT EXISTS steps (model TEXT, step TEXT, prompt_tokens INTEGER, completion_tokens INTEGER,"
    " cost_usd REAL, requests INTEGER, estimated INTEGER, PRIMARY KEY (model, step))"
)
_ADD_STEP = (
    "INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (model, step) DO UPDATE"
    " SET prompt_tokens = prompt_tokens + excluded.prompt_tokens,"
    " completion_tokens = completion_tokens + excluded.completion_tokens, cost_usd = cost_usd + excluded.cost_usd,"
    " requests = requests + excluded.requests, estimated = estimated + excluded.estimated"
)
_IN_FLIGHT = (
    "CREATE TABLE IF NOT EXISTS in_flight (model TEXT, worker TEXT, tokens INTEGER, usd REAL,"
    " PRIMARY KEY (model, worker))"
)
"""What the requests may cost that have not ended, by worker: its process, and a number in it."""
_ADD = (
    "INSERT INTO spent VALUES (?, ?, ?) ON CONFLICT (model) DO UPDATE"
    " SET tokens = tokens + excluded.tokens, usd = usd + excluded.usd RETURNING tokens, usd"
)


class Prices(Config):
    """What the tokens of a model cost."""

    input: float = Field(ge=0, description="US dollars per million tokens of prompts")
    output: float = Field(ge=0, description="US dollars per million tokens of answers")
    cached_input: float | None = Field(
        default=None,
        ge=0,
        description="US dollars per million tokens of prompts that the provider has in its cache; null: as `input`",
    )

    def cost_usd(self, usage: Usage) -> float:
        """What a turn cost, in US dollars; tokens that were not reported are free."""
        cached = usage.cached_tokens or 0
        cached_price = self.input if self.cached_input is None else self.cached_input
        fresh = max(0, (usage.prompt_tokens or 0) - cached)
        return (fresh * self.input + cached * cached_price + (usage.completion_tokens or 0) * self.output) / _MILLION


class Budget(Config):
    """What a model may cost in a run: either ``tokens`` or ``usd``.

    It is looked at before every request, with those in flight at what they may cost. When it is spent the stage ends;
    episodes that are in the middle then are played again when the run goes on.
    """

    tokens: int | None = Field(
        default=None, ge=1, description="tokens of prompts and answers together; null: `usd` is the limit"
    )
    usd: float | None = Field(
        default=None, gt=0, description="US dollars, by the `prices` of the model; null: `tokens` are the limit"
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> Budget:
        if (self.tokens is None) == (self.usd is None):
            raise ValueError("a budget is either `tokens` or `usd`, for example {usd: 20}")
        return self


class Spending:
    """What ``model``, an entry of a recipe, has cost in the run whose ledger lies at ``ledger``. Thread-safe.

    ``step`` is what asks it now. Without a ledger only this process is counted; without a ``budget`` nothing is spent.
    """

    def __init__(self, model: str, budget: Budget | None, ledger: str | None, step: str = "") -> None:
        self._model, self._step = model, step
        self._budget = budget or Budget.model_construct()
        self._lock = threading.Lock()
        self._tokens, self._usd = 0, 0.0
        self._new: list[tuple[Usage, float | None, bool]] = []
        # The first request is written at once.
        self._synced_at = -_SYNC_S
        self._in_flight, self._reserved_tokens, self._reserved_usd = 0, 0, 0.0
        self._settled, self._queue = asyncio.Event(), asyncio.Lock()
        self._ledger: sqlite3.Connection | None = None
        if ledger is not None:
            self._ledger = sqlite3.connect(
                ledger, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            self._ledger.execute("PRAGMA synchronous=OFF")  # a kill loses nothing, and an event loop may wait for it
            self._ledger.execute(_TABLE)
            self._ledger.execute(_STEPS)
            self._ledger.execute(_IN_FLIGHT)
        self._worker = f"{os.getpid()}/{_TOKEN}-{next(_NUMBERS)}"

    def add(self, usage: Usage, usd: float | None, estimated: bool = False) -> None:
        """Count a request; ``usd`` is ``None`` without prices, and ``estimated`` says that the server did not count."""
        with self._lock:
            self._new.append((usage, usd, estimated))
            self._sync_if_due()

    async def reserve(self, tokens: int, usd: float) -> str | None:
        """Wait until a request that may cost so much fits into the budget with those in flight; the words of
        ``exhausted`` if spent.

        One request may always go while anything is left, so the budget is overshot by one request at most in each
        process, where none costs more than it may. Call ``release`` with the same figures once its cost is added.
        """
        # First come, first served: only the first in the queue looks anew, and each look is a write to the ledger.
        async with self._queue:
            while True:
                with self._lock, self._alone():
                    reason = self._reason(at_once=True)
                    if reason is not None:
                        return reason
                    # With nothing in flight nobody would ever wake a request that is larger than what is left.
                    if not self._in_flight or self._fits(tokens, usd):
                        self._in_flight += 1
                        self._reserved_tokens += tokens
                        self._reserved_usd += usd
                        self._note_in_flight()
                        return None
                    # Under the lock, so that a release between the check and the wait is not missed.
                    self._settled.clear()
                # Where requests of other workers are in the way, this process does not learn when they end.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_SYNC_S):
                        await self._settled.wait()

    def release(self, tokens: int, usd: float) -> None:
        """A request that was reserved has ended."""
        with self._lock:
            self._in_flight -= 1
            self._reserved_tokens -= tokens
            self._reserved_usd -= usd
            self._note_in_flight()
            self._settled.set()

    def exhausted(self) -> str | None:
        """That the budget is spent, in words; ``None`` while it is not."""
        with self._lock:
            return self._reason(at_once=False)

    def close(self) -> None:
        """Write what is not yet in the ledger, and close it. Safe to call twice."""
        with self._lock:
            self._sync()
            if self._ledger is not None:
                self._ledger.execute("DELETE FROM in_flight WHERE worker = ?", (self._worker,))
                self._ledger.close()
                self._ledger = None

    @property
    def _limited(self) -> bool:
        return self._budget.tokens is not None or self._budget.usd is not None

    def _reason(self, at_once: bool) -> str | None:
        limits = self._budget
        if not self._limited:
            return None
        self._sync() if at_once else self._sync_if_due()
        tokens = self._tokens + sum(tokens_of(usage) for usage, _, _ in self._new)
        usd = self._usd + sum(cost or 0.0 for _, cost, _ in self._new)
        if limits.tokens is not None and tokens >= limits.tokens:
            return f"the budget of {self._model} is spent: {tokens:,} of {limits.tokens:,} tokens"
        if limits.usd is not None and usd >= limits.usd:
            return f"the budget of {self._model} is spent: {dollars(usd)} of {dollars(limits.usd)} USD"
        return None

    def _fits(self, tokens: int, usd: float) -> bool:
        limits = self._budget
        others_tokens, others_usd = self._of_others()
        if limits.tokens is not None:
            return self._tokens + self._reserved_tokens + others_tokens + tokens <= limits.tokens
        return limits.usd is None or self._usd + self._reserved_usd + others_usd + usd <= limits.usd

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other worker looks at the ledger meanwhile, or two would take the same rest of a budget."""
        if self._ledger is None or not self._limited:
            yield
            return
        self._ledger.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            self._ledger.execute("COMMIT")

    def _note_in_flight(self) -> None:
        """Let other workers know what the requests of this one may cost."""
        if self._ledger is not None and self._limited:
            given = (self._model, self._worker, self._reserved_tokens, self._reserved_usd)
            self._ledger.execute("INSERT OR REPLACE INTO in_flight VALUES (?, ?, ?, ?)", given)

    def _of_others(self) -> tuple[int, float]:
        """What the requests of other workers may cost; those of workers that were killed are forgotten."""
        if self._ledger is None:
            return 0, 0.0
        tokens, usd = 0, 0.0
        rows = self._ledger.execute("SELECT worker, tokens, usd FROM in_flight WHERE model = ?", (self._model,))
        for worker, own_tokens, own_usd in rows.fetchall():
            if not _is_running(worker):
                self._ledger.execute("DELETE FROM in_flight WHERE worker = ?", (worker,))
            elif worker != self._worker:
                tokens, usd = tokens + own_tokens, usd + own_usd
        return tokens, usd

    def _sync_if_due(self) -> None:
        if time.monotonic() - self._synced_at >= _SYNC_S:
            self._sync()

    def _sync(self) -> None:
        tokens, usd = sum(tokens_of(each) for each, _, _ in self._new), sum(cost or 0.0 for _, cost, _ in self._new)
        if self._ledger is None:
            self._tokens, self._usd = self._tokens + tokens, self._usd + usd
        else:
            if self._new:
                self._ledger.execute(_ADD_STEP, (self._model, self._step, *_summed(self._new)))
            # The same statement adds and reads, so the sum includes what other workers have spent.
            self._tokens, self._usd = self._ledger.execute(_ADD, (self._model, tokens, usd)).fetchone()
        self._new = []
        self._synced_at = time.monotonic()


_NUMBERS = itertools.count()
"""Of the ``Spending`` of this process."""

_TOKEN = secrets.token_hex(4)
"""Of this process and its forks: in a container that was started again another process has the number of an earlier."""


def _is_running(worker: str) -> bool:
    pid, _, own = worker.partition("/")
    if int(pid) == os.getpid():
        return own.startswith(f"{_TOKEN}-")
    try:
        os.kill(int(pid), 0)
    except OSError as error:
        # A process of somebody else may not be asked, and is there.
        return not isinstance(error, ProcessLookupError)
    return True


class StepSpending(msgspec.Struct, frozen=True):
    """What a step has asked of a model in all attempts; ``cost_usd`` is ``None`` where a price was missing.

    ``estimated`` requests had no usage in their answer, or no answer, and count as what they may have cost.
    """

    model: str
    step: str
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None
    requests: int
    estimated: int


def read_ledger(ledger: Path) -> list[StepSpending]:
    """What the steps of a run have spent; empty where there is no ledger, or one from before steps were counted.

    Raises ``UserError`` for one that is damaged.
    """
    if not ledger.is_file():
        return []
    try:
        with closing(sqlite3.connect(ledger, timeout=_BUSY_TIMEOUT_S)) as connection:
            # Ledgers from before steps were counted lack the table.
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'steps'").fetchone():
                return []
            return [StepSpending(*row) for row in connection.execute("SELECT * FROM steps ORDER BY step, model")]
    except sqlite3.OperationalError:
        # One that another process holds, or a disk that fails: the file is as it should be.
        raise
    except sqlite3.DatabaseError as error:
        raise UserError(
            f"{ledger}, what this run has spent, is damaged ({error})\n"
            "put it back from a copy, or remove it: tokens, costs and budgets of the run are then counted from 0",
            ErrorCode.DAMAGED_FILE,
        ) from error


def tokens_of(usage: Usage) -> int:
    """All tokens of a request; 0 if the server did not count them."""
    return (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)


def dollars(usd: float) -> str:
    """An amount with cents, or with four digits where it is less than a dollar and no whole number of cents."""
    return f"{usd:,.2f}" if usd >= 1 or round(usd, 2) == usd else f"{usd:.4g}"


def _summed(requests: Sequence[tuple[Usage, float | None, bool]]) -> tuple[int, int, float | None, int, int]:
    costs = [cost for _, cost, _ in requests if cost is not None]
    return (
        sum(usage.prompt_tokens or 0 for usage, _, _ in requests),
        sum(usage.completion_tokens or 0 for usage, _, _ in requests),
        sum(costs) if len(costs) == len(requests) else None,
        len(requests),
        sum(estimated for _, _, estimated in requests),
    )
