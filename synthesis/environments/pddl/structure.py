"""Digests of domains and problems that are equal up to renaming and reordering.

Names become nodes of a structure whose facts say how they hang together, and the nodes are coloured by refinement
(1-dimensional Weisfeiler-Leman on relations) until the colours are stable; where nodes remain alike, each is singled
out in turn and the refinement repeated. Equal structures always have equal digests. The converse holds for all but
highly regular structures: two such problems may share a digest.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable

from agentmill.synthesis.environments.pddl.domain import EQUALS, OBJECT, Action, Atom, Domain, Literal, Problem

LITERALS = ("precondition", "effect", "init", "goal")
"""Labels of nodes that are never singled out: a literal is distinguished by its terms."""

Node = Hashable
Fact = tuple[str, tuple[Node, ...]]


class Structure:
    """Nodes with labels, and facts (label, nodes in order) over them. Labels hold no names of the domain."""

    def __init__(self) -> None:
        self._labels: dict[Node, str] = {}
        self._facts: list[Fact] = []

    def node(self, node: Node, label: str) -> None:
        """Add a node."""
        self._labels[node] = label

    def fact(self, label: str, *nodes: Node) -> None:
        """Add a fact over nodes that were added."""
        self._facts.append((label, nodes))

    def digest(self) -> str:
        """32 hex digits, equal for structures that differ in the identity and the order of nodes and facts only."""
        numbers = {node: number for number, node in enumerate(self._labels)}
        facts = [(label, tuple(numbers[node] for node in nodes)) for label, nodes in self._facts]
        labels = list(self._labels.values())
        # Ranks of sorted labels, since the order of the nodes must not count.
        ranks = {label: rank for rank, label in enumerate(sorted(set(labels)))}
        digest = hashlib.sha256(repr(sorted(Counter(labels).items())).encode())
        colours, history = _refine([ranks[label] for label in labels], facts)
        digest.update(history)
        sizes = Counter(colours)
        names = [number for number, label in enumerate(labels) if not label.endswith(LITERALS)]
        alike = [number for number in names if sizes[colours[number]] > 1]
        singled = [_refine([*colours[:n], len(colours), *colours[n + 1 :]], facts)[1] for n in alike]
        for history in sorted(singled):
            digest.update(history)
        return digest.hexdigest()[:32]


def _refine(colours: list[int], facts: list[tuple[str, tuple[int, ...]]]) -> tuple[list[int], bytes]:
    """Stable colours, and a digest of how they came about; colours are ranks, so they do not depend on node order."""
    digest = hashlib.sha256()
    n_colours = len(set(colours))
    while True:
        seen: list[list[tuple[str, int, tuple[int, ...]]]] = [[] for _ in colours]
        for label, nodes in facts:
            view = tuple([colours[node] for node in nodes])
            for place, node in enumerate(nodes):
                seen[node].append((label, place, view))
        signatures = [(colour, tuple(sorted(views))) for colour, views in zip(colours, seen, strict=True)]
        counts = sorted(Counter(signatures).items())
        digest.update(repr(counts).encode())
        ranks = {signature: rank for rank, (signature, _) in enumerate(counts)}
        colours = [ranks[signature] for signature in signatures]
        if len(ranks) == n_colours:
            return colours, digest.digest()
        n_colours = len(ranks)


def domain_structure(domain: Domain) -> str:
    """Digest of a domain up to renaming of types, predicates, actions, parameters and constants, and to all orders.

    The order of a predicate's or an action's parameters counts as such an order.
    """
    return _domain(domain).digest()


def task_structure(domain: Domain, problem: Problem) -> str:
    """Digest of a problem with its domain, up to the same and to renaming of objects."""
    structure = _domain(domain)
    for item in problem.objects:
        structure.node(("term", item.name), "object")
        structure.fact("of type", ("term", item.name), ("type", item.type))
    for atom in set(problem.init):
        _ground(structure, "init", atom, True)
    for literal in set(problem.goal):
        _ground(structure, "goal", (literal.predicate, *literal.arguments), literal.positive)
    return structure.digest()


def _domain(domain: Domain) -> Structure:
    structure = Structure()
    structure.node(("type", OBJECT), "root type")
    for name, _ in domain.types:
        structure.node(("type", name), "type")
    for name, parent in domain.types:
        structure.fact("kind of", ("type", name), ("type", parent))
    for constant in domain.constants:
        structure.node(("term", constant.name), "constant")
        structure.fact("of type", ("term", constant.name), ("type", constant.type))
    for predicate in domain.predicates:
        structure.node(("predicate", predicate.name), "predicate")
        for place, parameter in enumerate(predicate.parameters):
            structure.node(("place", predicate.name, place), "place")
            structure.fact(
                "place", ("place", predicate.name, place), ("predicate", predicate.name), ("type", parameter.type)
            )
    for action in domain.actions:
        _action(structure, action)
    return structure


def _action(structure: Structure, action: Action) -> None:
    here = ("action", action.name)
    structure.node(here, "action")
    for parameter in action.parameters:
        structure.node((*here, parameter.name), "parameter")
        structure.fact("parameter", (*here, parameter.name), here, ("type", parameter.type))
    for part, literals in (("precondition", action.precondition), ("effect", action.effect)):
        for literal in set(literals):
            _lifted(structure, action, part, literal)


def _lifted(structure: Structure, action: Action, part: str, literal: Literal) -> None:
    here = ("action", action.name)
    names = {parameter.name for parameter in action.parameters}
    terms = [(*here, term) if term in names else ("term", term) for term in literal.arguments]
    sign = "" if literal.positive else "not "
    if literal.predicate == EQUALS:
        structure.fact(f"{sign}equal", here, *terms)
        # Equality has no first and second side.
        structure.fact(f"{sign}equal", here, *reversed(terms))
        return
    node = (*here, part, literal)
    structure.node(node, f"{sign}{part}")
    structure.fact("literal", node, here, ("predicate", literal.predicate))
    for place, term in enumerate(terms):
        structure.fact("argument", node, ("place", literal.predicate, place), term)


def _ground(structure: Structure, part: str, atom: Atom, positive: bool) -> None:
    node = (part, atom, positive)
    structure.node(node, f"{'' if positive else 'not '}{part}")
    structure.fact("literal", node, ("predicate", atom[0]))
    for place, name in enumerate(atom[1:]):
        structure.fact("argument", node, ("place", atom[0], place), ("term", name))
