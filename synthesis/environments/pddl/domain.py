"""Planning domains and problems as frozen data: STRIPS with types, negative preconditions and equality.

Names are lower case, as PDDL is case-insensitive. A term that starts with ``?`` is a parameter, any other an object.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

EQUALS = "="
"""The predicate of equality literals, which stand in preconditions only."""

OBJECT = "object"
"""The root of the type hierarchy; it is not listed in ``Domain.types``."""


class PddlError(Exception):
    """A PDDL text that cannot be used, with what its author needs to repair it: what is wrong, where, what is right."""

    def __init__(self, what: str, where: str = "", expected: str = "") -> None:
        parts = [what, f"at {where}" if where else "", f"expected {expected}" if expected else ""]
        super().__init__("; ".join(part for part in parts if part))
        self.what = what
        self.where = where
        self.expected = expected


class Typed(msgspec.Struct, frozen=True):
    """A name with its type: an object, a constant, or (``?name``) a parameter."""

    name: str
    type: str = OBJECT


class Predicate(msgspec.Struct, frozen=True):
    """A relation and its parameters."""

    name: str
    parameters: tuple[Typed, ...] = ()


class Literal(msgspec.Struct, frozen=True, order=True):
    """A predicate applied to terms, or its negation."""

    predicate: str
    arguments: tuple[str, ...] = ()
    positive: bool = True


Atom = tuple[str, ...]
"""A ground positive literal: the predicate's name, then its objects."""


class Action(msgspec.Struct, frozen=True):
    """An action schema. Of an atom that ``effect`` both deletes and adds, the addition wins."""

    name: str
    parameters: tuple[Typed, ...]
    precondition: tuple[Literal, ...]
    effect: tuple[Literal, ...]


class Domain(msgspec.Struct, frozen=True):
    """What can be and what can be done. ``types`` are (type, its supertype)."""

    name: str
    types: tuple[tuple[str, str], ...]
    constants: tuple[Typed, ...]
    predicates: tuple[Predicate, ...]
    actions: tuple[Action, ...]

    def supertypes(self, type_name: str) -> Iterator[str]:
        """``type_name`` itself, then what it is a kind of, up to ``object``."""
        parents = dict(self.types)
        while type_name != OBJECT:
            yield type_name
            type_name = parents.get(type_name, OBJECT)
        yield OBJECT

    def fluents(self) -> frozenset[str]:
        """The names of the predicates that some action changes; all others are static."""
        return frozenset(literal.predicate for action in self.actions for literal in action.effect)


class Problem(msgspec.Struct, frozen=True):
    """One instance of a domain. ``objects`` are without the domain's constants; ``goal`` is a conjunction."""

    name: str
    domain: str
    objects: tuple[Typed, ...]
    init: tuple[Atom, ...]
    goal: tuple[Literal, ...]


def objects_by_type(domain: Domain, problem: Problem) -> dict[str, tuple[str, ...]]:
    """For every type, ``object`` included, its objects: constants first, in the order of declaration."""
    members: dict[str, list[str]] = {OBJECT: [], **{name: [] for name, _ in domain.types}}
    for item in (*domain.constants, *problem.objects):
        for type_name in domain.supertypes(item.type):
            members[type_name].append(item.name)
    return {name: tuple(objects) for name, objects in members.items()}
