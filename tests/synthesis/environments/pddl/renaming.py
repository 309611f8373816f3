"""The same domain and problem under other names and in another order, drawn by chance."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from agentmill.synthesis.environments.pddl.domain import (
    EQUALS,
    OBJECT,
    Action,
    Atom,
    Domain,
    Literal,
    Predicate,
    Problem,
    Typed,
)

Item = TypeVar("Item")


class Renaming:
    """One random renaming of everything that has a name, and one random order of everything that has an order."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._names: dict[str, str] = {EQUALS: EQUALS, OBJECT: OBJECT}
        self._orders: dict[str, tuple[int, ...]] = {}

    def name(self, name: str) -> str:
        """The new name, the same whenever asked."""
        mark = "?" if name.startswith("?") else ""
        return self._names.setdefault(name, f"{mark}n{self._chance.randrange(10**9)}x{len(self._names)}")

    def shuffled(self, items: Sequence[Item]) -> tuple[Item, ...]:
        """``items`` in a random order."""
        return tuple(self._chance.sample(items, len(items)))

    def arguments(self, predicate: str, arguments: Sequence[Item]) -> tuple[Item, ...]:
        """``arguments`` in the new order of the predicate's parameters."""
        order = self._orders.setdefault(predicate, self.shuffled(range(len(arguments))))
        return tuple(arguments[place] for place in order)

    def typed(self, items: Sequence[Typed]) -> tuple[Typed, ...]:
        """Renamed, in the given order."""
        return tuple(Typed(self.name(item.name), self.name(item.type)) for item in items)

    def literals(self, literals: Sequence[Literal]) -> tuple[Literal, ...]:
        """Renamed and shuffled."""
        return self.shuffled([Literal(*self._atom(x.predicate, x.arguments), x.positive) for x in literals])

    def domain(self, domain: Domain) -> Domain:
        """Every order is shuffled, that of a predicate's parameters alike wherever it is used."""
        return Domain(
            name=self.name(domain.name),
            types=self.shuffled([(self.name(name), self.name(parent)) for name, parent in domain.types]),
            constants=self.shuffled(self.typed(domain.constants)),
            predicates=self.shuffled([self._predicate(predicate) for predicate in domain.predicates]),
            actions=self.shuffled([self._action(action) for action in domain.actions]),
        )

    def problem(self, problem: Problem) -> Problem:
        """Objects, facts and goal."""
        return Problem(
            name=self.name(problem.name),
            domain=self.name(problem.domain),
            objects=self.shuffled(self.typed(problem.objects)),
            init=self.shuffled([self._fact(atom) for atom in problem.init]),
            goal=self.literals(problem.goal),
        )

    def _atom(self, predicate: str, terms: Sequence[str]) -> tuple[str, tuple[str, ...]]:
        return self.name(predicate), self.arguments(predicate, tuple(map(self.name, terms)))

    def _fact(self, atom: Atom) -> Atom:
        predicate, terms = self._atom(atom[0], atom[1:])
        return (predicate, *terms)

    def _predicate(self, predicate: Predicate) -> Predicate:
        return Predicate(self.name(predicate.name), self.arguments(predicate.name, self.typed(predicate.parameters)))

    def _action(self, action: Action) -> Action:
        return Action(
            name=self.name(action.name),
            parameters=self.shuffled(self.typed(action.parameters)),
            precondition=self.literals(action.precondition),
            effect=self.literals(action.effect),
        )
