"""The contract of a generator: it proposes environments or tasks; admission decides what stays."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Protocol

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Inspiration, Task

MOST_SPARE_TURNS = 6
"""Generators let an agent take at most twice the turns of the solution, and so many more."""

MOST_LONGER = 10
"""The solution of a harder variant is at most so many actions longer than that of its parent."""


VARIED = ("easier", "harder", "other")
DIRECTIONS: Mapping[str, Sequence[str]] = {
    "babyai": VARIED,
    "codegym": VARIED,
    "interpreter": VARIED,
    "pddl": VARIED,
    "search": ("inject", "fuzz"),
    "toolbox": VARIED,
}
"""By family, the ways in which tasks are varied (``TaskGenerator.evolve``)."""


def check_direction(family: str, direction: str) -> None:
    """Raises ``UserError`` for a direction that tasks of a family are not varied in."""
    if direction not in DIRECTIONS[family]:
        raise UserError(
            f"unknown direction {direction!r}; tasks of family {family} have {', '.join(DIRECTIONS[family])}",
            ErrorCode.UNKNOWN_NAME,
        )


def is_on_side(length: int, before: int, direction: str) -> bool:
    """Whether a solution of so many actions makes a variant ``easier``, ``harder`` or ``other`` than ``before``."""
    return length < before if direction == "easier" else length > before if direction == "harder" else length == before


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


TOO_FEW = "too_few_tasks"
"""The reason of proposals that were not tried: the environment has no more different tasks of that kind."""

DRY = 6
"""So many proposals in a row that come to nothing show that there are no more."""


def too_few(made: int, n: int, wanted: str, why: str, parameter: str = "plan_length") -> GenerationError:
    """The failure of all proposals beyond the ``made`` ones; ``wanted``, which ``parameter`` sets, is asked for."""
    found = f"{made} different tasks" if made else "no task"
    advice = f"lower n to {made} or change {parameter}" if made else f"change {parameter}"
    return GenerationError(TOO_FEW, f"the environment has {found} with {wanted}: {why}; n is {n}, so {advice}")


def plan_range(plan_length: tuple[int, int]) -> tuple[int, int]:
    """The least and the most actions of a plan. Raises ``UserError`` for an empty range."""
    least, most = plan_length
    if not 1 <= least <= most:
        raise UserError(
            f"plan_length is [{least}, {most}]; expected [least, most] with 1 <= least <= most",
            ErrorCode.RANGE_EMPTY,
        )
    return least, most


def different_tasks(
    propose: Callable[[int], Task | GenerationError], n: int, wanted: str, tries: int, parameter: str = "plan_length"
) -> Iterator[Task | GenerationError]:
    """``n`` tasks of ``propose``, called with 0, 1, 2, …; one that fails gives way to the next.

    After ``DRY`` failures in a row, of ``tries`` draws each, the rest are ``too_few``.
    """
    made, failures, number = 0, 0, 0
    while made < n and failures < DRY:
        proposal = propose(number)
        number += 1
        failures += 1
        if isinstance(proposal, Task):
            made, failures = made + 1, 0
            yield proposal
    for _ in range(n - made):
        yield too_few(made, n, wanted, f"{DRY * tries} draws in a row gave no more", parameter)


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
        """Up to ``n`` variants of ``parent``; ``direction`` is one of ``DIRECTIONS``.

        Solutions are shorter if ``easier``, longer if ``harder``, and as long if ``other``: another start or goal. A
        fact takes the place of a name if ``inject``, a vague detail that of an exact one if ``fuzz`` (ASearcher,
        arXiv:2508.07976).
        """
