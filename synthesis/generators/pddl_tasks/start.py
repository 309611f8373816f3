"""Rules by which valid initial states of an environment are sampled; plain data, so that an environment carries its
own.

A rule names the predicate whose initial facts it makes; types come from the domain. Rules are applied in order, and
each may look at the facts made before it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from agentmill.synthesis.environments.pddl.domain import Atom, Domain


class Unsamplable(Exception):
    """The objects at hand do not admit an initial state."""


class Sampling(msgspec.Struct):
    """An initial state in the making. ``members`` are the objects of every type, ``facts`` in order of their making."""

    domain: Domain
    members: dict[str, tuple[str, ...]]
    chance: random.Random
    facts: dict[Atom, None] = {}

    def pools(self, predicate: str) -> list[tuple[str, ...]]:
        """The objects that may be in each place of ``predicate``."""
        declared = next(p for p in self.domain.predicates if p.name == predicate)
        return [self.members[parameter.type] for parameter in declared.parameters]

    def holding(self, predicate: str) -> Iterator[Atom]:
        """The facts of ``predicate`` so far."""
        return (atom for atom in self.facts if atom[0] == predicate)

    def pick(self, pool: Sequence[str]) -> str:
        """A random one of ``pool``. Raises ``Unsamplable`` if it is empty."""
        if not pool:
            raise Unsamplable("too few objects")
        return self.chance.choice(pool)


class Rule(msgspec.Struct, frozen=True, tag_field="rule", forbid_unknown_fields=True):
    """One rule; ``atoms`` are the facts it adds."""

    predicate: str

    def atoms(self, sampling: Sampling) -> Iterable[Atom]:
        """Raises ``Unsamplable``."""
        raise NotImplementedError


class One(Rule, frozen=True, tag="one"):
    """Exactly one fact: the agent is somewhere."""

    def atoms(self, sampling: Sampling) -> Iterable[Atom]:
        """One random object in each place."""
        return [(self.predicate, *(sampling.pick(pool) for pool in sampling.pools(self.predicate)))]


class All(Rule, frozen=True, tag="all"):
    """Every possible fact."""

    def atoms(self, sampling: Sampling) -> Iterable[Atom]:
        """All combinations of objects."""
        return [(self.predicate, *objects) for objects in itertools.product(*sampling.pools(self.predicate))]


class Some(Rule, frozen=True, tag="some"):
    """The predicate, of at most one place, holds of ``count`` = (least, most) objects."""

    count: tuple[int, int] = (1, 1)

    def atoms(self, sampling: Sampling) -> Iterable[Atom]:
        """Random different objects, fewer where there are not enough."""
        possible = list(itertools.product(*sampling.pools(self.predicate)))
        return [
            (self.predicate, *x)
            for x in sampling.chance.sample(possible, min(len(possible), sampling.chance.randint(*self.count)))
        ]


class Each(Rule, frozen=True, tag="each"):
    """Every object of the first place gets one fact, of ``predicate`` or one of ``options``; the rest is random.

    ``distinct``: no two objects share the last place.
    """

    options: tuple[str, ...] = ()
    distinct: bool = False

    def atoms(self, sampling: Sampling) -> Iterable[Atom]:
        """Raises ``Unsamplable`` where there are too few distinct objects."""
        used: set[str] = set()
        for thing in sampling.pools(self.predicate)[0]:
            predicate = sampling.chance.choice(self.options or (self.predicate,))
            rest = sampling.pools(predicate)[1:]
            values = [sampling.pick([x for x in pool if not (self.distinct and x in used)]) for pool in rest]
            used.update(values)
            yield (predicate, thing, *values)


class EachLast(Rule, frozen=True, tag="each_last"):
    """Every object of the last place gets one fact; ``where`` restricts them to those of which a predicate holds."""

    distinct: bool = False
    where: str | None = None

    def atoms(self, sampling: Sampling) -> Iterable[Atom]:
        """Raises ``Unsamplable`` where there are too few distinct objects."""
        *rest, last = sampling.pools(self.predicate)
        chosen = {atom[1] for atom in sampling.holding(self.where)} if self.where else set(last)
        used: set[str] = set()
        for thing in last:
            if thing in chosen:
                values = [sampling.pick([x for x in pool if not (self.distinct and x in used)]) for pool in rest]
                used.update(values)
                yield (self.predicate, *values, thing)


class Unless(Rule, frozen=True, tag="unless"):
    """The predicate holds of every object that no fact of ``other`` mentions."""

    other: str

    def atoms(self, sampling: Sampling) -> Iterable[Atom]:
        """The objects left over."""
        mentioned = {name for atom in sampling.holding(self.other) for name in atom[1:]}
        return [(self.predicate, thing) for thing in sampling.pools(self.predicate)[0] if thing not in mentioned]


class Chain(Rule, frozen=True, tag="chain"):
    """The predicate links each object to the next, in the order of declaration or ``shuffled``."""

    shuffled: bool = False

    def atoms(self, sampling: Sampling) -> Iterable[Atom]:
        """A total order."""
        order = list(sampling.pools(self.predicate)[0])
        if self.shuffled:
            sampling.chance.shuffle(order)
        return [(self.predicate, *pair) for pair in itertools.pairwise(order)]


class Graph(Rule, frozen=True, tag="graph"):
    """The last two places of the predicate are the edges of a graph of a random one of ``shapes``.

    Both directions: ``path``, ``ring``, ``star``. One direction: ``one_way`` (a ring), ``out_tree`` (parent, child),
    ``in_tree`` (child, parent). ``root`` is a predicate that then holds of the graph's first node. Places before
    the last two are random.
    """

    shapes: tuple[Literal["path", "ring", "star", "one_way", "out_tree", "in_tree"], ...]
    root: str | None = None

    def atoms(self, sampling: Sampling) -> Iterable[Atom]:
        """Edges in the order of the nodes."""
        *before, nodes, _ = sampling.pools(self.predicate)
        order = list(nodes)
        sampling.chance.shuffle(order)
        if self.root:
            yield (self.root, order[0])
        for edge in _edges(sampling.chance.choice(self.shapes), order, sampling.chance):
            yield (self.predicate, *(sampling.pick(pool) for pool in before), *edge)


class Doors(Rule, frozen=True, tag="doors"):
    """(door, place, place): the first doors make a tree of places, the others join what they like; both directions."""

    def atoms(self, sampling: Sampling) -> Iterable[Atom]:
        """Two facts a door."""
        doors, nodes, _ = sampling.pools(self.predicate)
        places = list(nodes)
        sampling.chance.shuffle(places)
        pairs = [*_tree(places, sampling.chance), *(tuple(sampling.chance.sample(places, 2)) for _ in doors)]
        for door, (near, far) in zip(doors, pairs, strict=False):
            yield (self.predicate, door, near, far)
            yield (self.predicate, door, far, near)


class Recipes(Rule, frozen=True, tag="recipes"):
    """(piece, piece, product): each product is made of two earlier pieces; ``have`` holds of the raw ones."""

    have: str

    def atoms(self, sampling: Sampling) -> Iterable[Atom]:
        """Half the pieces and one more are raw; those used least are used first."""
        pieces = list(sampling.pools(self.predicate)[0])
        n_raw = len(pieces) // 2 + 1
        uses = dict.fromkeys(pieces[:n_raw], 0)
        for product in pieces[n_raw:]:
            left, right = sorted(uses, key=lambda piece: (uses[piece], sampling.chance.random()))[:2]
            uses[left] += 1
            uses[right] += 1
            uses[product] = 0
            yield (self.predicate, left, right, product)
        for piece in pieces[:n_raw]:
            yield (self.have, piece)


class Towers(Rule, frozen=True, tag="towers"):
    """(item, what it lies on): towers, each item on one declared later, or on a ``base`` (a predicate of the item).

    Without ``base`` the towers stand on the objects of the second place that are not of the first. ``clear`` holds
    of what nothing lies on.
    """

    clear: str
    base: str | None = None

    def atoms(self, sampling: Sampling) -> Iterable[Atom]:
        """Items are put on from the last to the first."""
        items, things = sampling.pools(self.predicate)
        tops = [] if self.base else [thing for thing in things if thing not in items]
        for item in reversed(items):
            spot = sampling.chance.randrange(len(tops) + (1 if self.base else 0))
            if spot == len(tops):
                yield (self.base or "", item)
                tops.append(item)
            else:
                yield (self.predicate, item, tops[spot])
                tops[spot] = item
        for top in tops:
            yield (self.clear, top)


class Sizes(Rule, frozen=True, tag="sizes"):
    """(item, what it may lie on): every item goes onto those declared later and onto all that are no items."""

    def atoms(self, sampling: Sampling) -> Iterable[Atom]:
        """All pairs that fit."""
        items, things = sampling.pools(self.predicate)
        for number, item in enumerate(items):
            larger = [thing for thing in things if thing not in items[: number + 1]]
            yield from ((self.predicate, item, thing) for thing in larger)


AnyRule = One | All | Some | Each | EachLast | Unless | Chain | Graph | Doors | Recipes | Towers | Sizes


def sample_facts(
    rules: Iterable[AnyRule], domain: Domain, members: dict[str, tuple[str, ...]], chance: random.Random
) -> tuple[Atom, ...]:
    """An initial state by ``rules``, without repetition. Raises ``Unsamplable``."""
    sampling = Sampling(domain, members, chance)
    for rule in rules:
        # Rule by rule: each may look at the facts of those before it.
        sampling.facts |= dict.fromkeys(rule.atoms(sampling))
    return tuple(sampling.facts)


def _tree(order: list[str], chance: random.Random) -> list[tuple[str, str]]:
    return [(chance.choice(order[:number]), order[number]) for number in range(1, len(order))]


def _edges(shape: str, order: list[str], chance: random.Random) -> list[tuple[str, str]]:
    ring = list(zip(order, [*order[1:], order[0]], strict=True))
    match shape:
        case "path":
            return _both(ring[:-1])
        case "ring":
            # A ring of two has each edge twice.
            return list(dict.fromkeys(_both(ring)))
        case "star":
            return _both([(order[0], other) for other in order[1:]])
        case "one_way":
            return ring
        case "out_tree":
            return _tree(order, chance)
        case _:
            return [(child, parent) for parent, child in _tree(order, chance)]


def _both(edges: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [edge for near, far in edges for edge in ((near, far), (far, near))]
