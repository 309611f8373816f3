"""The contract of a generator: it proposes environments or tasks; admission decides what stays."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Inspiration, Task

MOST_SPARE_TURNS = 6
"""Generators let an agent take at most twice the turns of the solution, and so many more."""

MOST_LONGER = 10
"""The solution of a harder variant is at most so many actions longer than that of its parent."""


def turns_of_plan(actions: int) -> int:
    """The most turns that a generator gives a task with a solution of so many ``actions``."""
    return 2 * actions + MOST_SPARE_TURNS


class GenerationError(Exception):
    """No proposal could be made, repair rounds included. ``history`` holds the faulty attempts with their errors."""

    def __init__(self, reason: str, detail: str, history: list[JsonObject] | None = None) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.history = history or []


class EnvironmentGenerator(Protocol):
    """Proposes one environment for one piece of inspiration. Same inspiration and seed, same proposal."""

    async def propose(self, inspiration: Inspiration, seed: int) -> EnvironmentSpec:
        """A candidate that at least loads. Raises ``GenerationError``."""


class TaskGenerator(Protocol):
    """Proposes tasks for one environment, from nothing or from a parent task (AgentGen's Bi-Evol)."""

    def propose(self, spec: EnvironmentSpec, n: int, seed: int) -> AsyncIterator[Task | GenerationError]:
        """Up to ``n`` candidate tasks, failures among them as values."""

    def evolve(
        self, spec: EnvironmentSpec, parent: Task, direction: str, n: int, seed: int
    ) -> AsyncIterator[Task | GenerationError]:
        """Up to ``n`` variants of ``parent``; ``direction`` is ``easier`` or ``harder``."""
