"""Grounded STRIPS over bits: a state is a Python int, one bit per atom that can change.

An action is (needs, forbids, adds, deletes); deletes come first. Atoms of static predicates are decided while
grounding, and only what is reachable when deletes are ignored (and, for negative literals, when additions are) gets
a bit. Objects, atoms and actions keep the order of their declaration, so a grounding is the same in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from agentmill.synthesis.environments.pddl.domain import (
    EQUALS,
    Action,
    Atom,
    Domain,
    Literal,
    PddlError,
    Problem,
    objects_by_type,
)

MAX_GROUND_ACTIONS = 50_000
"""Above this a problem is refused, not ground half."""

MAX_BINDINGS = 2_000_000
"""Of objects to parameters, whole or in part, that are tried; a few seconds. Most may fail a static precondition."""

CHUNK_BITS = 12
"""Width of the slices of a state by which applicable actions are looked up."""


class GroundAction(msgspec.Struct, frozen=True):
    """An action with its objects; the four masks are sets of atoms, and ``adds & deletes == 0``."""

    name: str
    arguments: tuple[str, ...]
    needs: int
    forbids: int
    adds: int
    deletes: int


class Candidate(msgspec.Struct, frozen=True):
    """A type-correct instance whose static preconditions hold; its literals over fluents are still atoms."""

    action: Action
    arguments: tuple[str, ...]
    needs: tuple[Atom, ...]
    forbids: tuple[Atom, ...]
    adds: tuple[Atom, ...]
    deletes: tuple[Atom, ...]


class Grounded:
    """A problem ready to be stepped. Read only, apart from a memory of which actions a slice of a state calls for.

    ``goal_needs`` and ``goal_forbids`` are masks; ``reachable_goal`` is false where a goal literal can never hold.
    ``static`` are the atoms that hold in every state and have no bit.
    """

    def __init__(
        self,
        atoms: Sequence[Atom],
        actions: Sequence[GroundAction],
        init: int,
        goal: tuple[int, int, bool],
        static: frozenset[Atom],
    ) -> None:
        self.atoms = tuple(atoms)
        self.index = {atom: bit for bit, atom in enumerate(self.atoms)}
        self.actions = tuple(actions)
        self.init = init
        self.goal_needs, self.goal_forbids, self.reachable_goal = goal
        self.static = static
        self._changes = [(~(a.deletes | a.adds), a.adds) for a in self.actions]
        self._successors = _Successors(self.actions, len(self.atoms))

    def applicable(self, state: int) -> list[int]:
        """The indices of the actions that are legal in ``state``, ascending."""
        return self._successors(state)

    def apply(self, state: int, action: int) -> int:
        """The state after the action of that index, which must be applicable."""
        keep, adds = self._changes[action]
        return (state & keep) | adds

    def is_goal(self, state: int) -> bool:
        """Whether every goal literal holds."""
        return self.reachable_goal and state & self.goal_needs == self.goal_needs and not state & self.goal_forbids

    def holds(self, state: int, atom: Atom) -> bool:
        """Whether ``atom`` holds, be it a bit, static or impossible."""
        bit = self.index.get(atom)
        return bool(state >> bit & 1) if bit is not None else atom in self.static

    def true_atoms(self, state: int) -> list[Atom]:
        """The atoms with a bit that hold in ``state``, in their fixed order."""
        return [self.atoms[bit] for bit in bits(state)]


def bits(mask: int) -> Iterator[int]:
    """The positions of the ones of ``mask``, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class _Successors:
    """Finds applicable actions by slices: an action waits on one atom it needs, the one fewest actions need.

    For each slice of the state the actions waiting on its atoms are remembered by the slice's value, so that listing
    costs one lookup per slice and one test per action whose awaited atom holds.
    """

    def __init__(self, actions: Sequence[GroundAction], n_atoms: int) -> None:
        demand = [0] * n_atoms
        for action in actions:
            for bit in bits(action.needs):
                demand[bit] += 1
        self._always: list[tuple[int, int, int]] = []
        self._waiting: list[list[tuple[int, int, int]]] = [[] for _ in range(n_atoms)]
        for number, action in enumerate(actions):
            entry = (number, action.needs | action.forbids, action.needs)
            awaited = min(bits(action.needs), key=lambda bit: (demand[bit], bit), default=None)
            (self._always if awaited is None else self._waiting[awaited]).append(entry)
        self._slices: list[tuple[int, dict[int, list[tuple[int, int, int]]]]] = [
            (shift, {}) for shift in range(0, n_atoms, CHUNK_BITS) if any(self._waiting[shift : shift + CHUNK_BITS])
        ]

    def __call__(self, state: int) -> list[int]:
        found = [number for number, mask, value in self._always if state & mask == value]
        for shift, known in self._slices:
            part = state >> shift & ((1 << CHUNK_BITS) - 1)
            if part:
                entries = known.get(part)
                if entries is None:
                    entries = known[part] = [entry for bit in bits(part) for entry in self._waiting[shift + bit]]
                found += [number for number, mask, value in entries if state & mask == value]
        found.sort()
        return found


def ground(domain: Domain, problem: Problem) -> Grounded:
    """Ground ``problem``. Raises ``PddlError`` where it has more than ``MAX_GROUND_ACTIONS`` candidate actions.

    So it is for one of which more than ``MAX_BINDINGS`` bindings would have to be tried.
    """
    fluents = domain.fluents()
    init = frozenset(problem.init)
    static = frozenset(atom for atom in init if atom[0] not in fluents)
    candidates: list[Candidate] = []
    members = objects_by_type(domain, problem)
    tried = 0
    for action in domain.actions:
        for candidate in _instances(action, members, fluents, static):
            tried += 1
            if candidate is not None:
                candidates.append(candidate)
            if len(candidates) > MAX_GROUND_ACTIONS:
                raise _too_large(f"{MAX_GROUND_ACTIONS} ground actions", action)
            if tried > MAX_BINDINGS:
                raise _too_large(f"{MAX_BINDINGS} bindings of objects to parameters to try", action)
    return _encode(domain, problem, *_reachable(candidates, init), init)


def _too_large(what: str, action: Action) -> PddlError:
    return PddlError(
        f"the problem has more than {what}",
        f"action {action.name!r}",
        "fewer objects, fewer parameters, or more static preconditions that tie the parameters together",
    )


def _instances(
    action: Action, members: dict[str, tuple[str, ...]], fluents: frozenset[str], static: frozenset[Atom]
) -> Iterator[Candidate | None]:
    """Bind the parameters one after the other, testing static preconditions as soon as their terms are bound.

    Yields ``None`` for each binding, whole or in part, that leads to no candidate by itself.
    """
    names = [parameter.name for parameter in action.parameters]
    tests: list[list[Literal]] = [[] for _ in range(len(names) + 1)]
    for literal in action.precondition:
        if literal.predicate not in fluents:
            tests[max((names.index(term) + 1 for term in literal.arguments if term in names), default=0)].append(
                literal
            )

    def bind(binding: dict[str, str]) -> Iterator[Candidate | None]:
        depth = len(binding)
        holds = all(_static_holds(literal, binding, static) for literal in tests[depth])
        if holds and depth == len(names):
            candidate = _candidate(action, binding, fluents)
            # An action that needs and forbids one atom is never legal.
            yield None if set(candidate.needs).intersection(candidate.forbids) else candidate
            return
        yield None
        if not holds:
            return
        for value in members[action.parameters[depth].type]:
            yield from bind({**binding, names[depth]: value})

    return bind({})


def _static_holds(literal: Literal, binding: dict[str, str], static: frozenset[Atom]) -> bool:
    terms = [binding.get(term, term) for term in literal.arguments]
    truth = terms[0] == terms[1] if literal.predicate == EQUALS else (literal.predicate, *terms) in static
    return truth == literal.positive


def _candidate(action: Action, binding: dict[str, str], fluents: frozenset[str]) -> Candidate:
    def atoms(literals: tuple[Literal, ...], positive: bool) -> tuple[Atom, ...]:
        chosen = [literal for literal in literals if literal.positive == positive and literal.predicate in fluents]
        return tuple((x.predicate, *(binding.get(term, term) for term in x.arguments)) for x in chosen)

    adds = atoms(action.effect, True)
    deletes = tuple(atom for atom in atoms(action.effect, False) if atom not in adds)
    needs, forbids = atoms(action.precondition, True), atoms(action.precondition, False)
    return Candidate(action, tuple(binding.values()), needs, forbids, adds, deletes)


def _reachable(candidates: list[Candidate], init: frozenset[Atom]) -> tuple[list[Candidate], set[Atom], set[Atom]]:
    """The candidates that the relaxation reaches, the atoms that may become true, and those that may become false."""
    may_hold, may_fail = set(init), set[Atom]()
    missing = [len(set(c.needs) - init) + len(init.intersection(c.forbids)) for c in candidates]
    waiting: dict[tuple[Atom, bool], list[int]] = {}
    for number, candidate in enumerate(candidates):
        for atom in set(candidate.needs) - init:
            waiting.setdefault((atom, True), []).append(number)
        for atom in init.intersection(candidate.forbids):
            waiting.setdefault((atom, False), []).append(number)
    ready = [number for number, count in enumerate(missing) if not count]
    # The list grows while it is walked through: actions become ready by what others bring.
    for number in ready:
        for atoms, known, value in (
            (candidates[number].adds, may_hold, True),
            (candidates[number].deletes, may_fail, False),
        ):
            for atom in set(atoms) - known:
                known.add(atom)
                for other in waiting.get((atom, value), []):
                    missing[other] -= 1
                    if not missing[other]:
                        ready.append(other)
    # In the order of declaration, and not in that in which they became ready.
    return [candidates[number] for number in sorted(ready)], may_hold, may_fail


def _encode(
    domain: Domain,
    problem: Problem,
    candidates: list[Candidate],
    may_hold: set[Atom],
    may_fail: set[Atom],
    init: frozenset[Atom],
) -> Grounded:
    """Give bits to the atoms that can change, and drop what always holds or never does."""
    order = _atom_order(domain, problem)
    varying = sorted((atom for atom in may_hold if atom not in init or atom in may_fail), key=order)
    index = {atom: bit for bit, atom in enumerate(varying)}

    def mask(atoms: Sequence[Atom]) -> int:
        # A set, since an atom that is given twice would be added twice.
        return sum({1 << index[atom] for atom in atoms if atom in index})

    actions = [
        GroundAction(c.action.name, c.arguments, mask(c.needs), mask(c.forbids), mask(c.adds), mask(c.deletes))
        for c in candidates
    ]
    always = init - set(varying)
    needs = [(x.predicate, *x.arguments) for x in problem.goal if x.positive]
    forbids = [(x.predicate, *x.arguments) for x in problem.goal if not x.positive]
    possible = all(atom in index or atom in always for atom in needs) and not always.intersection(forbids)
    goal = (mask(needs), mask(forbids), possible and not set(needs) & set(forbids))
    return Grounded(varying, actions, mask(list(init)), goal, frozenset(always))


def _atom_order(domain: Domain, problem: Problem) -> Callable[[Atom], tuple[int, list[int]]]:
    predicates = {predicate.name: number for number, predicate in enumerate(domain.predicates)}
    objects = {item.name: number for number, item in enumerate((*domain.constants, *problem.objects))}
    return lambda atom: (predicates[atom[0]], [objects[name] for name in atom[1:]])
